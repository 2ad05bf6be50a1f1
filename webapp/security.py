"""Security of the server: accepted hosts and requests, and response headers that restrict the page."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from dash import Dash
from dash.exceptions import DependencyException
from flask import Flask, Response, abort, request

from llmviewer.errors import InputError

from .cpu_limit import end_limit, start_limit
from .delivery import PROBES
from .payloads import checked

_MAX_JSON_DELIMITERS: Final = 2_000_000  # each value between them takes about 100 bytes of memory
_UPDATE: Final = "/_dash-update-component"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_POLICY: Final = (  # no other host; Dash and plotly need the unsafe sources
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "form-action 'self'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def hosts_of(bound: str) -> tuple[str, ...]:
    """Host names that a server bound to an address accepts, against DNS rebinding.

    Another site's name server can point its name at this machine, but cannot claim names of this machine or numeric
    addresses, which are all accepted by a server that listens on all addresses.
    """
    try:
        address = ipaddress.ip_address(bound)
    except ValueError:
        return (*_LOOPBACK, bound)
    if not address.is_unspecified:
        return (*_LOOPBACK, bound)
    return (*_LOOPBACK, socket.gethostname(), socket.getfqdn(), ANY_ADDRESS)


ANY_ADDRESS: Final = "*.*.*.*"  # any numeric address


def guard(app: Dash, hosts: Sequence[str], *, max_bytes: int, limit_s: float) -> None:
    """Makes the server refuse requests from other hosts and sites, and requests that the page never sends.

    hosts      accepted values of the Host header, except of probes; any if empty
    max_bytes  size of a request [B]
    limit_s    CPU time of a request [s]
    """
    server: Flask = app.server
    server.config["MAX_CONTENT_LENGTH"] = max_bytes
    names = frozenset(map(str.lower, hosts))

    @server.before_request
    def check_request() -> None:
        if names and request.path not in PROBES and not _is_among(f"//{request.host}", names):
            abort(403, f"this server does not accept the host {request.host[:80]!r}; see `llmviewer docs web`, Hosting")
        if request.method != "POST":
            return
        site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
        if site not in (None, "same-origin", "none") or (names and origin and not _is_among(origin, names)):
            abort(403, "requests from other sites are refused")
        if request.path == _UPDATE:
            start_limit(limit_s)
            body = _body()
            new = checked(body, app.callback_map)  # in place, as Dash reads the same object
            body.clear()
            body.update(new)

    @server.teardown_request
    def end_work(_error: BaseException | None) -> None:
        end_limit()

    @server.after_request
    def set_headers(response: Response) -> Response:
        response.headers.update(_HEADERS)
        return response

    server.register_error_handler(InputError, lambda error: (f"{error}\n", 400, {"Content-Type": "text/plain"}))
    server.register_error_handler(DependencyException, lambda _: ("no such file\n", 404))


def _body() -> Any:
    data = request.get_data()
    if sum(map(data.count, (b"{", b"[", b","))) > _MAX_JSON_DELIMITERS:
        abort(413)
    try:
        return request.get_json()
    except RecursionError:
        abort(400, "nested too deeply")


def _is_among(url: str, names: frozenset[str]) -> bool:
    try:
        host = (urlsplit(url).hostname or "").lower()
    except ValueError:
        return False
    return host in names or (ANY_ADDRESS in names and _is_address(host))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
