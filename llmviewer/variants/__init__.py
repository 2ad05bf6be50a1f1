"""Evaluation of settings and of changes to them."""
