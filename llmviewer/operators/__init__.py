"""What a network is made of: one file a family. An operator is one kernel launch; it states OPs and moved tensors."""
