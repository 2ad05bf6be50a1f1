"""Command `llmviewer web`: serves the dashboard on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from ..errors import InputError
from . import options as shared


@click.command()
@click.option(
    "--port",
    type=shared.WholeNumber(0, 65535),
    default=8050,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 allows other machines."
)
@click.option("--open/--no-open", "opens", default=True, help="Open the page in a browser.")
@click.option(
    "--trace",
    metavar="FILE",
    type=shared.PATH,
    help="Profiler trace of any size to show on the timeline tab.",
)
def web(port: int, host: str, opens: bool, trace: Path | None) -> None:
    """Open the dashboard in a browser.

    It shows what bounds a model on a device, and what would help. Needs the extra `web` (pip install
    'llmviewer[web]'); `llmviewer docs web` explains hosting.
    """
    try:
        from ..webapp.app import create
        from ..webapp.security import hosts_of
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in ("dash", "dash_ag_grid", "dash_cytoscape", "flask"):
            raise InputError("web: needs the extra `web`: pip install 'llmviewer[web]'") from None
        raise
    import logging
    import socket
    import threading
    import webbrowser

    from werkzeug.serving import make_server

    if trace and not trace.is_file():
        raise InputError(f"--trace {trace}: no such file")
    try:
        (family, *_), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise InputError(f"--host {host} --port {port}: cannot listen there: {error.strerror}") from None
    server = make_server(host, port, create(trace, hosts_of(host)).server, threaded=True, fd=listening.fileno())
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    shown_host = f"[{host}]" if ":" in host else host
    url = f"http://{shown_host}:{listening.getsockname()[1]}/{'?tab=timeline' if trace else ''}"
    click.echo(f"{url} (stop with Ctrl-C)", err=True)
    if opens:
        threading.Timer(0.3, webbrowser.open, (url,)).start()
    server.serve_forever()
