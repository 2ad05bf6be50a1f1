"""Sweeps: what they go over, the table they make, and folders of shards that several processes fill."""
