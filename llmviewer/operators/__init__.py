"""Operators of networks, one file per family. An operator is one kernel launch with its OPs and moved tensors."""
