"""Settings of the server, from environment variables that begin with LLMVIEWER_."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, Self

from llmviewer.errors import InputError
from llmviewer.records import frozen

from .cpu_limit import LIMIT_S

_BOOLEANS: Final = {"": False, "0": False, "1": True}
_MIN_CPU_LIMIT_S, _MAX_CPU_LIMIT_S = 0.5, 60.0
_MIN_REQUEST_MB, _MAX_REQUEST_MB = 1.0, 1000.0


@frozen(kw_only=True)
class Settings:
    """Settings of the server.

    hosts              LLMVIEWER_ALLOWED_HOSTS: names that requests may give as their host; any if empty
    prefix             LLMVIEWER_PREFIX: path below which a reverse proxy serves the page, such as /llmviewer/
    log                LLMVIEWER_LOG=1: a line of JSON on stderr for each request
    cpu_limit_s        LLMVIEWER_CPU_LIMIT_S: CPU time of a request [s]
    max_request_bytes  LLMVIEWER_MAX_REQUEST_MB: size of a request, with dropped files [B]
    """

    hosts: tuple[str, ...] = ()
    prefix: str = "/"
    log: bool = False
    cpu_limit_s: float = LIMIT_S
    max_request_bytes: int = 80_000_000  # with base64 files, which are larger by 4/3

    @classmethod
    def of_environment(cls, variables: Mapping[str, str] = os.environ) -> Self:
        """The settings that environment variables give, defaults for others.

        Raises InputError if one is invalid.
        """
        defaults = cls()
        log, prefix = variables.get("LLMVIEWER_LOG", ""), variables.get("LLMVIEWER_PREFIX", defaults.prefix)
        if log not in _BOOLEANS:
            raise InputError(f"LLMVIEWER_LOG: must be 0 or 1; got {log!r}")
        if not (prefix.startswith("/") and prefix.endswith("/")):
            raise InputError(f"LLMVIEWER_PREFIX: must begin and end with /; got {prefix!r}")
        megabytes = _number(
            variables, "LLMVIEWER_MAX_REQUEST_MB", defaults.max_request_bytes / 1e6, _MIN_REQUEST_MB, _MAX_REQUEST_MB
        )
        return cls(
            hosts=tuple(variables.get("LLMVIEWER_ALLOWED_HOSTS", "").replace(",", " ").split()),
            prefix=prefix,
            log=_BOOLEANS[log],
            cpu_limit_s=_number(variables, "LLMVIEWER_CPU_LIMIT_S", LIMIT_S, _MIN_CPU_LIMIT_S, _MAX_CPU_LIMIT_S),
            max_request_bytes=int(1e6 * megabytes),
        )


def _number(variables: Mapping[str, str], name: str, default: float, minimum: float, maximum: float) -> float:
    text = variables.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = float("nan")
    if not minimum <= value <= maximum:
        raise InputError(f"{name}: must be a number from {minimum:g} to {maximum:g}; got {text!r}")
    return value
