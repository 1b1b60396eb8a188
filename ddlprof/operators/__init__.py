"""What one step of a model computes: its operators, their FLOPs, bytes and memory, from a graph or on fake tensors."""
