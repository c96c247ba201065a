"""`verify --level outputs`: the compiled program of a small instance against its PyTorch class, on the same weights."""
