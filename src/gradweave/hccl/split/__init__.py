"""HCCL's `hccl.split` package."""
