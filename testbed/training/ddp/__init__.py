"""Compression as a communication hook of PyTorch's DDP."""
