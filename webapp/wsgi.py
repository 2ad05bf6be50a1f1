"""Entry point of WSGI servers: `gunicorn --worker-class gthread --threads 4 llmviewer.webapp.wsgi:server`."""

from __future__ import annotations

from .app import create

server = create().server
