"""What the tests share: a pool of worker processes."""
