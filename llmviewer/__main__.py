"""`python -m llmviewer` is the command line."""

from llmviewer.cli import main

raise SystemExit(main())
