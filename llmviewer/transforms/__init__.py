"""Transforms: functions from graph to graph, one file each, that every analysis applies."""
