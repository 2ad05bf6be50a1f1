"""Delivery of the page: compressed responses, caching, bundles loaded on demand, probes and a structured log."""

from __future__ import annotations

import gzip
import json
import logging
import sys
import time
from typing import Any, Final

import dash_ag_grid
import dash_cytoscape
from dash import Dash
from flask import Flask, Response, g, jsonify, request

from llmviewer import __version__
from llmviewer.errors import InputError

from .results import device_results
from .state import State

HEALTH: Final = "/healthz"  # the process answers
READINESS: Final = "/readyz"  # it has read its data and analyzes a request
PROBES: Final = (HEALTH, READINESS)
_COMPRESSIBLE: Final = ("text/", "application/json", "application/javascript", "image/svg+xml")
_MIN_COMPRESSED_BYTES: Final = 1_000
_STATIC_LEVEL, _FRESH_LEVEL = 9, 4  # of gzip, for files that are kept compressed and for results
_FILES: Final[dict[tuple[str, int], bytes]] = {}  # compressed files by address and size, which Dash limits to its own
_IMMUTABLE: Final = "public, max-age=31536000, immutable"
_ON_DEMAND: Final = {dash_ag_grid: "AgGrid", dash_cytoscape: "Cytoscape"}  # packages and their components
_LOG: Final = logging.getLogger("llmviewer.requests")


def load_on_demand(app: Dash) -> None:
    """Keeps the scripts of grids and graphs out of the page, which loads them when it first shows one."""
    bundles = {}
    for package, component in _ON_DEMAND.items():
        name = package.__name__
        file = f"{name}.min.js"
        for one in package._js_dist:  # noqa: SLF001 - where Dash reads what a page loads
            if one.get("relative_package_path") == file:
                one["dynamic"] = True
        version = package.__version__.replace(".", "_")
        url = f"_dash-component-suites/{name}/{name}.v{version}m1.min.js"  # as Dash writes what it lets browsers keep
        bundles[name] = {"component": component, "url": url}
    script = f"<script>window.llmviewerBundles = {json.dumps(bundles)};</script>"
    app.index_string = app.index_string.replace("{%app_entry%}", f"{script}{{%app_entry%}}")


def deliver(app: Dash, *, log: bool = False) -> None:
    """Adds compression, caching and probes to a server, and with `log` a line of JSON on stderr for each request."""
    server: Flask = app.server

    @server.get(HEALTH)
    def health() -> Response:
        return jsonify(status="ok", version=__version__)

    @server.get(READINESS)
    def readiness() -> tuple[Response, int]:
        try:
            device_results(State())
        except (InputError, OSError) as error:
            return jsonify(status="not ready", reason=str(error)), 503
        return jsonify(status="ready", version=__version__), 200

    @server.before_request
    def start_clocks() -> None:
        g.started = time.perf_counter(), time.thread_time()

    @server.after_request
    def finish(response: Response) -> Response:
        if "m" in request.args and request.path.startswith("/assets/") and response.status_code == 200:
            response.headers["Cache-Control"] = _IMMUTABLE  # the address changes with the file
        _compress(response)
        if log:
            _log(response)
        return response

    if log and not _LOG.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        _LOG.addHandler(handler)
        _LOG.setLevel(logging.INFO)
        _LOG.propagate = False


def _compress(response: Response) -> None:
    """Compresses a response that the browser accepts compressed; files are compressed once per worker."""
    media_type = response.mimetype or ""
    if (
        response.status_code != 200
        or "Content-Encoding" in response.headers
        or not media_type.startswith(_COMPRESSIBLE)
        or "gzip" not in request.headers.get("Accept-Encoding", "")
    ):
        return
    response.direct_passthrough = False
    source = response.response  # an open file, which the compressed data replace
    data = response.get_data()
    if hasattr(source, "close"):
        source.close()
    if len(data) < _MIN_COMPRESSED_BYTES:
        return
    is_file = request.path.startswith(("/_dash-component-suites/", "/assets/"))
    if is_file:
        key = f"{request.path}?{request.args.get('m', '')}", len(data)
        if key not in _FILES:
            _FILES[key] = gzip.compress(data, _STATIC_LEVEL, mtime=0)
        response.set_data(_FILES[key])
    else:
        response.set_data(gzip.compress(data, _FRESH_LEVEL))
    response.headers["Content-Encoding"] = "gzip"
    response.headers.add("Vary", "Accept-Encoding")


def _log(response: Response) -> None:
    """Writes a request as a line of JSON, without the link, which may hold what a user dropped."""
    wall, cpu = g.get("started", (time.perf_counter(), time.thread_time()))
    line: dict[str, Any] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "method": request.method,
        "path": request.path,
        "status": response.status_code,
        "wall_ms": round(1e3 * (time.perf_counter() - wall), 1),
        "cpu_ms": round(1e3 * (time.thread_time() - cpu), 1),
        "bytes": response.content_length,
    }
    _LOG.info(json.dumps(line))
