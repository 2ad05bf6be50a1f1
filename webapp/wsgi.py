"""Entry point of WSGI servers: `gunicorn --worker-class gthread --threads 4 llmviewer.webapp.wsgi:server`."""

from __future__ import annotations

import os

from .app import create

server = create(hosts=os.environ.get("LLMVIEWER_ALLOWED_HOSTS", "").replace(",", " ").split()).server
