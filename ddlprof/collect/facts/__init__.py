"""What the manifest says of the machine, the model and the training, found by looking only."""
