"""Many devices side by side: `compare()`, where bounds change, and `choose()`."""
