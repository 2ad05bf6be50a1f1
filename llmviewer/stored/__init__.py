"""How a checkpoint is stored: what its config says of quantization, and what the headers of its files say."""
