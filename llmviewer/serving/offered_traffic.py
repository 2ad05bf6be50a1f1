"""Requests over time from the options of a simulation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final

import numpy as np

from .. import arguments
from ..errors import InputError
from ..options import only
from ..setting import whole_number
from .calls import drawn_sessions
from .clients import client_length, find_client
from .delays import parse_delays
from .lengths import Lengths, parse_lengths
from .options import DrawnLengthOptions, TrafficOptions
from .task_files import Task
from .trace_files import read_traffic
from .traffic import Traffic, closed_loop, poisson

_DEFAULT_LENGTHS: Final = {"prompt_lengths": "1024", "gen_lengths": "128"}
_DEFAULT_REQUESTS: Final = 1000
_MIN_REQUESTS_PER_CLIENT: Final = 10  # in a closed loop
_MAX_REQUESTS: Final = 1_000_000
_MAX_TENANTS: Final = 1000
_MAX_ARRIVAL_SPAN_S: Final = 1e9  # float64 seconds still resolve 0.1 us there


def offered_traffic(options: TrafficOptions, task: Task | None) -> Traffic:
    """Requests with random arrivals, of a trace file, or of a closed loop; of sessions or of a `task` if given.

    Raises InputError unless exactly one of these is given, and for options that are invalid or would change nothing.
    """
    call_source = _call_source(options, task)
    traffic = _of_tenants(_traffic(_as_client_sends(options), call_source), options["tenants"], options["seed"])
    _check_span(traffic, "arrivals" if options["rate"] is None else "rate")
    return traffic


def _as_client_sends(options: TrafficOptions) -> TrafficOptions:
    """The options with number of requests, and input and output lengths, of a benchmark's client, if there is one.

    Raises InputError without a number of clients.
    """
    if options["client"] is None:
        return options
    if options["concurrency"] is None:
        raise InputError(f"client must be left out without concurrency, its number of users; got {options['client']!r}")
    client = find_client(options["client"])
    requests = options["requests"]
    return options | {
        "requests": client.count(whole_number("concurrency", options["concurrency"])) if requests is None else requests,
        "prompt_lengths": client_length(
            client, options["prompt_lengths"], "prompt_lengths", _DEFAULT_LENGTHS["prompt_lengths"]
        ),
        "gen_lengths": client_length(client, options["gen_lengths"], "gen_lengths", _DEFAULT_LENGTHS["gen_lengths"]),
    }


def _traffic(options: TrafficOptions, call_source: Callable[..., Traffic] | None) -> Traffic:
    """The requests, without tenants; of sessions or tasks from `call_source`.

    Raises InputError as offered_traffic() does.
    """
    rate, arrivals, concurrency = options["rate"], options["arrivals"], options["concurrency"]
    if sum(one is not None for one in (rate, arrivals, concurrency)) != 1:
        raise InputError(
            "exactly one of rate (--rate, in req/s), arrivals (--arrivals, a trace file) and concurrency "
            "(--concurrency, a number of clients) must be given"
        )
    clients = 0 if concurrency is None else whole_number("concurrency", concurrency)
    requests = options["requests"]
    if requests is None and _MIN_REQUESTS_PER_CLIENT * clients > _MAX_REQUESTS:
        max_clients = _MAX_REQUESTS // _MIN_REQUESTS_PER_CLIENT
        raise InputError(
            f"concurrency must be at most {max_clients} without requests, as each client then sends "
            f"{_MIN_REQUESTS_PER_CLIENT}; got {clients}"
        )
    count = check_requests(max(_DEFAULT_REQUESTS, _MIN_REQUESTS_PER_CLIENT * clients) if requests is None else requests)
    if arrivals is not None:
        for name, value in {**only(options, DrawnLengthOptions), "sessions or tasks": call_source}.items():
            if value is not None:
                raise InputError(
                    f"{name} must be left out with arrivals, a trace file with the lengths of each request"
                )
        return read_traffic(Path(str(arrivals)), count)
    generator = np.random.default_rng(options["seed"])
    if rate is None:
        if count < clients:
            raise InputError(f"requests must be at least the concurrency, {clients}; got {count}")
    else:
        arguments.check_numbers(rate=rate)
        if not 0 < rate < inf:
            raise InputError(f"rate must be a positive number of req/s; got {rate:g}")
    if call_source is not None:
        return call_source(rate=rate, in_flight=clients or None, requests=count, generator=generator)
    lengths = length_distributions(options)
    drawn: dict[str, Any] = {
        "prompts": lengths[0], "gens": lengths[1], "requests": count, "generator": generator,
    }  # fmt: skip
    return closed_loop(in_flight=clients, **drawn) if rate is None else poisson(rate=rate, **drawn)


def _call_source(options: TrafficOptions, task: Task | None) -> Callable[..., Traffic] | None:
    """Function that draws sessions of several turns, or tasks of a file; None without.

    Raises InputError for invalid options, and for those that would change nothing.
    """
    session_turns, think_time, system_prompt = (
        options["session_turns"],
        options["think_time"],
        options["system_prompt"],
    )
    if task is not None:
        for name, value in {"session_turns": session_turns, **only(options, DrawnLengthOptions)}.items():
            if value is not None:
                raise InputError(f"{name} must be left out with tasks, a file with the calls of a task")
    if session_turns is None:
        for name, value in {"think_time": think_time, "system_prompt": system_prompt}.items():
            if value is not None:
                raise InputError(
                    f"{name} must be left out without session_turns, the turns of a session; got {value!r}"
                )
        return None if task is None else task.traffic
    lengths = length_distributions(options)
    return partial(
        drawn_sessions, turns_per_session=parse_lengths(str(session_turns), "session_turns"),
        think=parse_delays(str(think_time or 0), "think_time"), prompts=lengths[0], gens=lengths[1],
        system_tokens=whole_number("system_prompt", system_prompt or 0, least=0),
    )  # fmt: skip


def _of_tenants(traffic: Traffic, tenants: str | None, seed: int) -> Traffic:
    """Traffic of tenants with the shares of requests in `tenants`, such as "1,2"; None leaves those of a trace file."""
    if tenants is None:
        return traffic
    if traffic.tenants is not None:
        raise InputError(f"tenants must be left out with arrivals that name the tenant of each; got {tenants!r}")
    return traffic.shared_among(tenant_shares(tenants), seed)


def tenant_shares(tenants: str, name: str = "tenants") -> list[float]:
    """Shares of the requests of each tenant, such as "1,2".

    name  name of the argument, for messages

    Raises InputError if the text has no such shares.
    """
    try:
        shares = [float(part) for part in str(tenants).split(",")]
    except ValueError:
        shares = []
    if not 0 < len(shares) <= _MAX_TENANTS or not all(share > 0 for share in shares) or not sum(shares) < inf:
        raise InputError(
            f"{name} must be 1 to {_MAX_TENANTS} positive shares of the requests, such as 1,2; got {tenants!r}"
        )
    return shares


def _check_span(traffic: Traffic, name: str) -> None:
    """Raises InputError if arrivals span so long that times of steps are rounded off; `name` is the argument."""
    if not traffic.in_flight and (span := float(np.max(traffic.arrival_s))) > _MAX_ARRIVAL_SPAN_S:
        must = f"{name} must put all arrivals within {_MAX_ARRIVAL_SPAN_S:.0e} s, in which the clock resolves steps"
        raise InputError(f"{must}; got {span:.3g} s")


def length_distributions(options: DrawnLengthOptions) -> tuple[Lengths, Lengths]:
    """Distributions of input and output lengths, of the options or by default."""
    prompts, gens = options.get("prompt_lengths"), options.get("gen_lengths")
    return _lengths("prompt_lengths", prompts), _lengths("gen_lengths", gens)


def _lengths(name: str, value: int | str | None) -> Lengths:
    return parse_lengths(_DEFAULT_LENGTHS[name] if value is None else str(value), name)


def check_requests(count: int) -> int:
    """Raises InputError unless the number of requests is from 1 to the maximum."""
    if whole_number("requests", count) > _MAX_REQUESTS:
        raise InputError(f"requests must be at most {_MAX_REQUESTS}; got {count}")
    return count
