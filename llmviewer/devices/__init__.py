"""Devices: hardware files are read, checked and changed; drafts for this machine."""
