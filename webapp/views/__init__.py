"""Contents of the tabs as pure functions of results: figures, rows, texts. No module here imports Dash."""
