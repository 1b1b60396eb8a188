"""What the manifest says about the machine, the model and the training, found by inspection only."""
