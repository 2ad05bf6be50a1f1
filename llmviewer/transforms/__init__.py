"""Techniques: functions from graph to graph, one file each. The engine knows of none of them."""
