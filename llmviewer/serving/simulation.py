"""simulate(): copies of a model serve requests that arrive over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from itertools import accumulate
from math import inf, isfinite
from pathlib import Path
from typing import Any, Final, Unpack

import numpy as np

from .. import arguments
from ..devices.files import each_changed, loaded
from ..devices.hardware import Hardware
from ..errors import InputError
from ..expectation.engines import Default, find_engine
from ..model import Model
from ..options import ServedOptions, document_options
from ..parallel.layout import Layout
from ..parameters import KvLink, KvTransfer
from ..setting import Setting, layout_of, setting_of, whole_number
from ..techniques import altered
from .lengths import Lengths, parse_lengths
from .metrics import Served, Usage
from .outcome import Goals, Simulation
from .policy import POLICIES, Policy, parse_policy
from .prefill_pool import prefill, transfer_s
from .server import serve
from .stages import waiting_ranks
from .steady import steady
from .steps import Steps
from .trace_files import read_traffic
from .traffic import Times, Traffic, closed_loop, poisson

_POLICY: Final = "chunked:512"  # where nothing is said; the block and the lengths likewise
_BLOCK: Final = 16
_LENGTHS: Final = {"prompt_lengths": "1024", "gen_lengths": "128"}
_REQUESTS: Final = 1000
_ROUNDS: Final = 10  # requests of each client of a closed loop, at least
_MAX_BATCH: Final = 256
_MOST_REQUESTS: Final = 1_000_000
_LONGEST_S: Final = 1e9  # of all arrivals: a clock that far on still tells a tenth of a microsecond


@document_options(ServedOptions)
def simulate(
    model: str | Model | Setting,
    hardware: str | Hardware | None = None,
    *,
    rate: float | None = None,
    arrivals: str | Path | None = None,
    concurrency: int | None = None,
    prompt_lengths: int | str | None = None,
    gen_lengths: int | str | None = None,
    policy: str | None = None,
    requests: int | None = None,
    seed: int = 0,
    max_batch: int | None = None,
    block: int | None = None,
    copies: int = 1,
    readers: int = 0,
    prefill_hardware: str | Hardware | None = None,
    prefill_layout: str | Layout | None = None,
    kv_transfer: str | None = None,
    kv_link: str | None = None,
    ttft: float = inf,
    tpot: float = inf,
    years: float | None = None,
    progress: Callable[[int, int], object] = lambda finished, requests: None,
    **options: Unpack[ServedOptions],
) -> Simulation:
    """Serves requests step by step, once with steps at their lower bounds and once at their expected times.

    rate              mean requests per second, with random arrivals (Poisson)
    arrivals          in place of rate: a CSV file with columns timestamp, prompt, gen and optionally cached, or a
                      .jsonl trace like Mooncake's
    concurrency       in place of rate: requests in flight, of clients that each send the next when theirs is answered
    prompt_lengths    a number, uniform:LEAST-MOST, lognormal:mean=..,p95=.. or a file; None: 1024 [tokens]
    gen_lengths       the same; None: 128 [tokens]
    policy            one of POLICIES, maybe with tokens per step and a `hold`; None: that of the engine, else
                      "chunked:512"
    requests          number of requests; None: 1000, and at least 10 of each client
    max_batch         most concurrent sequences; None: the limit of the engine, else 256, or `concurrency` if larger
    block             tokens per block of the KV cache; None: that of the engine, else 16
    copies            copies of the model, each on the devices of `layout`; requests are assigned in turn
    readers           additional copies that run all prefills, on `prefill_hardware` and in `prefill_layout` if given;
                      the others then only decode
    kv_transfer       as in disaggregate(); None: "after"
    kv_link           as in disaggregate(); None: "scale-out"
    ttft, tpot        goals of each request [s]
    years             time of use over which a purchase price is spread, for devices without a cloud price
    progress          called with the number of finished requests, and of all; requests are served twice unless `bound`

    The options are as in analyze(); a Setting may replace model, hardware and options. `hardware_set` changes both
    kinds of device, or one, as in "h100-sxm:memory.bandwidth=2x"; `engine` also sets policy, block and max_batch.

    Raises InputError if an argument is invalid, or a request does not fit the memory.
    """
    arguments.check_numbers(ttft=ttft, tpot=tpot)
    arguments.check_positive(years=years)
    given = arguments.with_defaults(options, ServedOptions)
    apart = {
        "prefill_hardware": prefill_hardware, "prefill_layout": prefill_layout, "kv_transfer": kv_transfer,
        "kv_link": kv_link,
    }  # fmt: skip
    _check_readers(readers, apart, policy)
    readers, seed = whole_number("readers", readers, least=0), whole_number("seed", seed, least=0)
    if concurrency is not None and readers:
        raise InputError("concurrency must be left out beside readers, to which prompts come whoever is answered")
    asked_of: dict[str, Any] = {"prompts": prompt_lengths, "gens": gen_lengths, "requests": requests, "seed": seed}
    traffic = _traffic(rate, arrivals, concurrency, **asked_of)
    _check_span(traffic, "arrivals" if rate is None else "rate")
    when = arguments.enum_member("kv_transfer", kv_transfer or KvTransfer.AFTER, KvTransfer)
    link = arguments.enum_member("kv_link", kv_link or KvLink.SCALE_OUT, KvLink)
    if isinstance(model, Setting) or hardware is None:
        setting = setting_of(model, hardware, **options)
        device = setting.hardware
        reads = replace(setting, hardware=loaded(prefill_hardware or device)).agreed()
    else:
        other = hardware if prefill_hardware is None else prefill_hardware
        for each in (hardware, other):
            arguments.check_types(hardware=each)
        device = loaded(hardware)
        own, others = each_changed((hardware, other), given["hardware_set"])
        setting = Setting.of(model, hardware, **options | {"hardware_set": own})
        reads = Setting.of(model, other, **options | {"hardware_set": others}) if readers else setting
    _check_hits(setting, traffic)
    engine, bound = setting.engine.name if setting.engine else "", setting.bound
    chosen, block, most = scheduler(engine, policy, block, device, setting.layout)
    usual = most or max(_MAX_BATCH, traffic.in_flight or 0)
    common: dict[str, Any] = {
        "traffic": traffic.leaving(Steps(setting).leaves, seed), "copies": whole_number("copies", copies),
        "max_batch": whole_number("max_batch", usual if max_batch is None else max_batch), "block": block,
        "goals": Goals(ttft_s=ttft, tpot_s=tpot), "years": years, "seed": None if arrivals else seed,
    }  # fmt: skip
    if readers:
        if prefill_layout is not None:
            reads = replace(reads, layout=layout_of({"layout": prefill_layout})).agreed()
        run = partial(
            _apart, reads, replace(setting, decodes_only=True), common, readers=readers,
            travel_s=transfer_s(reads, setting, common["traffic"], link), overlapped=when is KvTransfer.OVERLAPPED,
        )  # fmt: skip
    else:
        run = partial(_alone, setting, chosen, common)
    unknown = "" if bound else Steps(setting).unknown or (Steps(reads).unknown if readers else "")
    count, times = len(traffic), 1 if bound or unknown else 2

    def served(time: int) -> Simulation:
        return run(expected=time > 0, progress=lambda finished: progress(time * count + finished, times * count))

    found = served(0)
    return replace(found, unknown=unknown, expected=served(1) if times > 1 else None)


def _traffic(
    rate: float | None,
    arrivals: str | Path | None,
    concurrency: int | None,
    *,
    prompts: int | str | None,
    gens: int | str | None,
    requests: int | None,
    seed: int,
) -> Traffic:
    """Random arrivals, the requests of a trace file, or a closed loop.

    Raises InputError unless exactly one of them is given, and for arguments that would change nothing.
    """
    if sum(one is not None for one in (rate, arrivals, concurrency)) != 1:
        raise InputError(
            "one of rate (--rate), arrivals (--arrivals) and concurrency (--concurrency) must be given, and no more: "
            "requests a second, a file, or requests in flight"
        )
    clients = 0 if concurrency is None else whole_number("concurrency", concurrency)
    if requests is None and _ROUNDS * clients > _MOST_REQUESTS:
        most = _MOST_REQUESTS // _ROUNDS
        raise InputError(
            f"concurrency must be at most {most} without requests, of which each client sends {_ROUNDS} then; got "
            f"{clients}"
        )
    count = check_requests(max(_REQUESTS, _ROUNDS * clients) if requests is None else requests)
    if arrivals is not None:
        for name, value in {"prompt_lengths": prompts, "gen_lengths": gens}.items():
            if value is not None:
                raise InputError(f"{name} must be left out beside arrivals, a file that has the length of each request")
        return read_traffic(Path(str(arrivals)), count)
    lengths = drawn_from(prompts, gens)
    drawn: dict[str, Any] = {
        "prompts": lengths[0], "gens": lengths[1], "requests": count, "generator": np.random.default_rng(seed),
    }  # fmt: skip
    if rate is None:
        if count < clients:
            raise InputError(f"requests must be at least the concurrency, {clients}; got {count}")
        return closed_loop(in_flight=clients, **drawn)
    arguments.check_numbers(rate=rate)
    if not 0 < rate < inf:
        raise InputError(f"rate must be a positive number of requests a second; got {rate:g}")
    return poisson(rate=rate, **drawn)


def _check_span(traffic: Traffic, name: str) -> None:
    """Raises InputError if arrivals span so long that times of steps are rounded off; `name` is the argument."""
    if not traffic.in_flight and (span := float(traffic.arrival_s[-1])) > _LONGEST_S:
        must = (
            f"{name} must have all requests within {_LONGEST_S:.0e} s, in which steps of milliseconds can be told apart"
        )
        raise InputError(f"{must}; got {span:.3g} s")


def _check_hits(setting: Setting, traffic: Traffic) -> None:
    """Raises InputError if a trace file and a technique both set cached tokens."""
    for one in setting.techniques:
        if traffic.cached is not None and altered(one, "known"):
            raise InputError(
                f"{one.name} must be left out beside arrivals, a file that says what of each prompt is cached"
            )


def scheduler(
    engine: str, policy: str | None, block: int | None, hardware: Hardware, layout: Layout
) -> tuple[Policy, int, int | None]:
    """Policy and tokens of a block, as given or those of the engine on the device; and the engine's limit of running
    sequences, None without one.

    Raises InputError if prefills are to be held back for ranks that do not wait.
    """
    made = find_engine(engine) if engine else None
    usual, size = (made.default_on(hardware), made.block) if made else (Default(_POLICY), _BLOCK)
    wait = waiting_ranks(layout) > 1
    chosen = parse_policy(policy or (usual.together if wait and usual.together else usual.policy))
    if chosen.hold > 1 and not wait:
        raise InputError(
            f"policy must leave out hold where no ranks wait for each other, as those of dp do with ep above tp; got "
            f"{policy!r}"
        )
    return chosen, whole_number("block", size if block is None else block), usual.max_batch


def drawn_from(prompts: int | str | None, gens: int | str | None) -> tuple[Lengths, Lengths]:
    """Input and output lengths, as given or by default."""
    asked = {"prompt_lengths": prompts, "gen_lengths": gens}
    texts = {name: str(value) if isinstance(value, int) else value for name, value in asked.items()}
    found = [parse_lengths(_LENGTHS[name] if text is None else text, name) for name, text in texts.items()]
    return found[0], found[1]


def check_requests(count: int) -> int:
    """Raises InputError unless the number of requests is from 1 to the maximum."""
    if whole_number("requests", count) > _MOST_REQUESTS:
        raise InputError(f"requests must be at most {_MOST_REQUESTS}; got {count}")
    return count


def _check_readers(readers: int, apart: Mapping[str, object], policy: object) -> None:
    """Raises InputError for arguments that would change nothing."""
    for name, value in apart.items():
        if not readers and value is not None:
            raise InputError(
                f"{name} must be left out without readers, copies of the model that read prompts apart from the others"
            )
    if readers and policy is not None:
        raise InputError("policy must be left out beside readers: no device both reads and decodes")


def _alone(
    setting: Setting, policy: Policy, common: dict[str, Any], *, expected: bool, progress: Callable[[int], object]
) -> Simulation:
    """Simulation of copies that prefill and decode."""
    steps, traffic = Steps(setting, expected), common["traffic"]
    most: dict[str, Any] = {"policy": policy, "max_batch": common["max_batch"]}
    servers, offered = common["copies"] * steps.apart, traffic.rate / common["copies"]
    served = _shared(steps, traffic, servers, progress, block=common["block"], **most)
    had = replace(traffic, cached=served.known) if traffic.blocks else traffic
    known = not traffic.in_flight and isfinite(offered) and steps.ranks == 1
    closed = steady(steps, had, rate=offered, **most) if known else None
    came = replace(traffic, arrival_s=served.arrival_s) if traffic.in_flight else traffic
    return Simulation(
        setting=setting, servers=servers, policy=policy, closed=closed, start_s=served.start_s, first_s=served.first_s,
        finish_s=served.finish_s, gap_s=served.gap_s, preemptions=int(np.sum(served.preempted)), usage=served.usage,
        **(common | {"traffic": came}),
    )  # fmt: skip


def _apart(
    reads: Setting,
    writes: Setting,
    common: dict[str, Any],
    *,
    readers: int,
    travel_s: Times,
    overlapped: bool,
    expected: bool,
    progress: Callable[[int], object],
) -> Simulation:
    """Simulation of separate prefill and decode copies."""
    traffic: Traffic = common["traffic"]
    policy = POLICIES["prefill-first"]  # of what lost its cache and is read again
    reader, writer = (Steps(side, expected) for side in (reads, writes))
    read = prefill(reader, traffic, copies=readers, transfer_s=travel_s, overlapped=overlapped)
    order = np.argsort(read.ready_s, kind="stable")
    ready = replace(traffic.only(order), arrival_s=read.ready_s[order], blocks=None)
    servers = common["copies"] * writer.apart
    served = _shared(
        writer, ready, servers, progress, policy=policy, max_batch=common["max_batch"], block=common["block"],
        prefilled=True,
    )  # fmt: skip
    back = np.argsort(order)
    return Simulation(
        setting=writes, servers=servers, policy=policy, closed=None, reads=reads, readers=readers,
        reading_utilization=read.utilization, start_s=read.start_s, first_s=served.first_s[back],
        finish_s=served.finish_s[back], gap_s=served.gap_s[back],
        preemptions=int(np.sum(served.preempted)), usage=served.usage, **common,
    )  # fmt: skip


def _shared(steps: Steps, traffic: Traffic, copies: int, progress: Callable[[int], object], **how: Any) -> Served:
    """Requests served by several copies, in turn."""
    used = min(copies, traffic.in_flight or len(traffic))
    each = [np.arange(copy, len(traffic), used) for copy in range(used)]
    before = (0, *accumulate(map(len, each)))

    def since(start: int) -> Callable[[int], object]:
        return lambda finished: progress(start + finished)

    parts = [
        serve(steps, traffic.only(own), progress=since(start), **how) for own, start in zip(each, before, strict=False)
    ]
    if len(parts) == 1:
        return parts[0]
    columns = {}
    for f in fields(Served):
        if f.name != "usage":
            column = np.empty(len(traffic), dtype=getattr(parts[0], f.name).dtype)
            for own, part in zip(each, parts, strict=True):
                column[own] = getattr(part, f.name)
            columns[f.name] = column
    usage = Usage(**{f.name: sum(getattr(part.usage, f.name) for part in parts) for f in fields(Usage)})
    return Served(usage=usage, **columns)
