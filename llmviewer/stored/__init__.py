"""Storage of checkpoints: the quantization in their configs, and the headers of their files."""
