"""The operators of one step of a model with their FLOPs, bytes and memory, from autograd's graph or on fake tensors."""
