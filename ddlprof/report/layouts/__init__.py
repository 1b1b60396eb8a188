"""What is shown of layouts of a model over many GPUs."""
