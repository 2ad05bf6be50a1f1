"""For servers of WSGI: `gunicorn --workers 4 llmviewer.webapp.wsgi:server`."""

from __future__ import annotations

from .app import create

server = create().server
