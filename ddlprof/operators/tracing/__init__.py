"""The parts of `operator_trace`: what one step of a model on fake tensors consists of.

`recorder` sees every operator, `kinds` says what it is, `cuda` and `autocast` put in place what would run on a GPU,
`storages` follows the memory, `fusion` estimates what torch.compile would join, `pairing` tells what follows the batch.
Nothing here is part of a training.
"""
