"""Analyses as text, tables, pictures and pages."""
