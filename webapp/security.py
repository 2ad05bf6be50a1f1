"""Who may call the server, what a request may hold, and headers that tell browsers what the page may do."""

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

from .payloads import checked
from .work import begin, end

LARGEST_REQUEST: Final = 80_000_000  # with the files of a page, as the browser sends them: by 4/3 larger [B]
_MOST_PARTS: Final = 2_000_000  # braces and commas of a request: what they hold takes some 100 bytes each
_UPDATE: Final = "/_dash-update-component"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_POLICY: Final = (  # nothing from another host; Dash and plotly need the rest
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
    """The hosts whose pages a server that is bound to an address answers for.

    A page of another host could be pointed at this machine by its own name server (DNS rebinding). Names of this
    machine and, where it listens on all addresses, any address are none that another host can have.
    """
    try:
        address = ipaddress.ip_address(bound)
    except ValueError:
        return (*_LOOPBACK, bound)
    if not address.is_unspecified:
        return (*_LOOPBACK, bound)
    return (*_LOOPBACK, socket.gethostname(), socket.getfqdn(), ANY_ADDRESS)


ANY_ADDRESS: Final = "*.*.*.*"  # stands for every numeric address among hosts


def guard(app: Dash, hosts: Sequence[str] = ()) -> None:
    """Makes the server of an app refuse requests of other hosts and sites, and requests that the page does not make.

    hosts  names that requests may give as their host; any if empty
    """
    server: Flask = app.server
    server.config["MAX_CONTENT_LENGTH"] = LARGEST_REQUEST
    names = frozenset(map(str.lower, hosts))

    @server.before_request
    def check_request() -> None:
        if names and not _is_among(f"//{request.host}", names):
            abort(403, f"this server does not answer for {request.host[:80]!r}; see `llmviewer docs web`, Hosting")
        if request.method != "POST":
            return
        site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
        if site not in (None, "same-origin", "none") or (names and origin and not _is_among(origin, names)):
            abort(403, "requests of other sites are refused")
        if request.path == _UPDATE:
            begin()
            body = _body()
            new = checked(body, app.callback_map)  # in place, as Dash reads the same object
            body.clear()
            body.update(new)

    @server.teardown_request
    def end_work(_error: BaseException | None) -> None:
        end()

    @server.after_request
    def set_headers(response: Response) -> Response:
        response.headers.update(_HEADERS)
        return response

    server.register_error_handler(InputError, lambda error: (f"{error}\n", 400, {"Content-Type": "text/plain"}))
    server.register_error_handler(DependencyException, lambda _: ("no such file\n", 404))


def _body() -> Any:
    data = request.get_data()
    if sum(map(data.count, (b"{", b"[", b","))) > _MOST_PARTS:
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
