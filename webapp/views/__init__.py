"""What the tabs show, as pure functions of answers: figures, rows, texts. Nothing here knows of Dash."""
