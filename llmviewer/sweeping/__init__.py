"""Sweeps: axes, the table of results, and folders of shards that several processes fill."""
