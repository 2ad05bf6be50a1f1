"""simulate(): replicas of a model serve requests that arrive over time."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import accumulate
from math import inf, isfinite
from pathlib import Path
from typing import Any, Final, Unpack

import numpy as np
import numpy.typing as npt

from .. import arguments
from ..devices.files import changes_by_device, loaded
from ..devices.hardware import Hardware
from ..errors import InputError
from ..expectation.engines import Default, Engine
from ..model import Model
from ..options import ServedOptions, document_options
from ..parallel.layout import Layout
from ..parameters import KvLink, KvTransfer
from ..setting import Setting, layout_of, setting_of, whole_number
from ..sweeping.shard_files import worker_pool
from ..techniques import overrides
from .calls import drawn_sessions
from .clients import client_length, find_client
from .delays import parse_delays
from .fleet import ServerGroup, serve_fleet
from .fleet_rules import fleet_rules
from .lengths import Lengths, parse_lengths
from .metrics import Served, Usage
from .model_groups import ModelGroup, check_models, other_settings
from .outcome import DEFAULT_MAX_BATCH, Goals, Simulation
from .policy import FIRST_COME_FIRST_SERVED, POLICIES, Policy, parse_policy
from .prefill_pool import prefill, transfer_s
from .routers import ROUND_ROBIN, ROUTERS
from .server import serve
from .steady import steady
from .steps import Steps
from .task_files import Task, read_task
from .trace_files import read_traffic
from .traffic import Times, Traffic, closed_loop, poisson

_DEFAULT_POLICY: Final = "chunked:512"
_DEFAULT_BLOCK_TOKENS: Final = 16
_DEFAULT_LENGTHS: Final = {"prompt_lengths": "1024", "gen_lengths": "128"}
_DEFAULT_REQUESTS: Final = 1000
_MIN_REQUESTS_PER_CLIENT: Final = 10  # in a closed loop
_MAX_REQUESTS: Final = 1_000_000
_MAX_TENANTS: Final = 1000
_MAX_ARRIVAL_SPAN_S: Final = 1e9  # float64 seconds still resolve 0.1 us there


@arguments.renamed_arguments(copies="replicas", readers="prefill_replicas")
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
    client: str | None = None,
    session_turns: int | str | None = None,
    think_time: float | str | None = None,
    system_prompt: int | None = None,
    tasks: str | Path | Task | None = None,
    tenants: str | None = None,
    policy: str | None = None,
    requests: int | None = None,
    seed: int = 0,
    max_batch: int | None = None,
    block: int | None = None,
    replicas: int = 1,
    router: str | None = None,
    mtbf: float | str | None = None,
    notice: float | str | None = None,
    recovery: str | None = None,
    autoscale: str | None = None,
    scale_target: float | None = None,
    startup: float | str | None = None,
    prefill_replicas: int = 0,
    prefill_hardware: str | Hardware | None = None,
    prefill_layout: str | Layout | None = None,
    kv_transfer: str | None = None,
    kv_link: str | None = None,
    ttft: float = inf,
    tpot: float = inf,
    years: float | None = None,
    workers: int = 1,
    progress: Callable[[int, int], object] = lambda finished, requests: None,
    **options: Unpack[ServedOptions],
) -> Simulation:
    """Simulates a server step by step, once with steps at their lower bounds and once at their expected times.

    rate              mean requests per second, with random arrivals (Poisson)
    arrivals          in place of rate: a CSV file with columns timestamp, prompt, gen and optionally cached, or a
                      .jsonl trace like Mooncake's
    concurrency       in place of rate: a closed loop of clients that each send the next request when theirs finishes
    prompt_lengths    a number, uniform:LEAST-MOST, lognormal:mean=..,p95=.. or a file; None: 1024 [tokens]
    gen_lengths       the same; None: 128 [tokens]
    client            with concurrency, one of CLIENTS, whose number of requests and lengths apply; prompt_lengths and
                      gen_lengths are then whole numbers
    session_turns     turns of a session, as prompt_lengths; prompts are then new input of a turn, each of which repeats
                      the conversation before it. rate is of sessions, concurrency of users with one session each
    think_time        with session_turns, time from an answer to the next turn: a number [s], "500 ms",
                      exponential:MEAN or uniform:LEAST-MOST; None: 0
    system_prompt     with session_turns, tokens with which every session begins; None: 0
    tasks             in place of lengths, a YAML file with the calls of an agent's task; rate is of tasks, concurrency
                      of tasks in progress
    tenants           shares of the requests of each tenant, such as "1,2" for a third and two thirds; None: those of
                      the file, or one
    policy            one of POLICIES, optionally with tokens per step, hold, poll, order and bins; None: that
                      of the engine, else "chunked:512"
    requests          number of requests; None: 1000, and at least 10 of each client. Sessions are drawn until they
                      have at least so many
    max_batch         maximum running sequences; None: the limit of the engine, else 256, or `concurrency` if larger
    block             tokens per block of the KV cache; None: that of the engine, else 16
    replicas          replicas of the model, each on the devices of `layout`
    router            which replica serves a request, one of ROUTERS; None: "round-robin"
    mtbf              mean time between failures of a replica, or its spot pre-emptions, as a number [s] or "1 h"
    notice            time between the notice of a failure and the failure; None: 0
    recovery          how requests of a failed replica go on, one of RECOVERIES; None: "recompute"
    autoscale         in place of replicas, the fewest and the most, such as "1-8"
    scale_target      with autoscale, unfinished requests per replica at which replicas are added
    startup           time from the start of a replica until it serves; None: that of reading the weights from the
                      storage of its device
    prefill_replicas  additional replicas that run all prefills, on `prefill_hardware` and in `prefill_layout` if given;
                      the others then only decode
    kv_transfer       as in disaggregate(); None: "after"
    kv_link           as in disaggregate(); None: "scale-out"
    ttft, tpot        latency targets of each request [s]
    years             time of use over which a purchase price is spread, for devices without a cloud price
    workers           processes; with two, the simulations at the bound and expected run at once
    progress          called with the number of finished requests, and of all; each is simulated twice unless `bound`

    The options are as in analyze(); a Setting may replace model, hardware and options. `hardware_set` changes both
    kinds of device, or one, as in "h100-sxm:memory.bandwidth=2x"; `engine` also sets policy, block and max_batch.

    Raises InputError if an argument is invalid, or a request does not fit the memory.
    """
    arguments.check_numbers(ttft=ttft, tpot=tpot)
    arguments.check_positive(years=years)
    prefill_options = {
        "prefill_hardware": prefill_hardware, "prefill_layout": prefill_layout, "kv_transfer": kv_transfer,
        "kv_link": kv_link,
    }  # fmt: skip
    _check_prefill_replicas(prefill_replicas, prefill_options, policy)
    task = tasks if tasks is None or isinstance(tasks, Task) else read_task(Path(str(tasks)))
    call_source = _call_source(session_turns, think_time, system_prompt, task, prompts=prompt_lengths, gens=gen_lengths)
    prefill_replicas = whole_number("prefill_replicas", prefill_replicas, least=0)
    seed, workers = whole_number("seed", seed, least=0), whole_number("workers", workers)
    if concurrency is not None and prefill_replicas:
        raise InputError("concurrency must be left out with prefill_replicas, whose closed loop is not simulated")
    if client is not None:
        requests, (prompt_lengths, gen_lengths) = _of_client(
            client, concurrency, requests, prompts=prompt_lengths, gens=gen_lengths
        )
    traffic = _with_tenants(
        _traffic(
            rate,
            arrivals,
            concurrency,
            prompts=prompt_lengths,
            gens=gen_lengths,
            requests=requests,
            seed=seed,
            call_source=call_source,
        ),
        tenants,
        seed,
    )
    _check_waits(traffic, prefill_replicas)
    _check_span(traffic, "arrivals" if rate is None else "rate")
    transfer = arguments.enum_member("kv_transfer", kv_transfer or KvTransfer.AFTER, KvTransfer)
    link = arguments.enum_member("kv_link", kv_link or KvLink.SCALE_OUT, KvLink)
    models = task.models if task else ()
    setting, prefill_setting = _settings(
        model, hardware, prefill_hardware, options, prefills=prefill_replicas > 0,
        other_devices=[one.hardware for one in models if one.hardware],
    )  # fmt: skip
    device = setting.hardware if hardware is None else loaded(hardware)
    check_server_options(setting.engine, policy, max_batch, int(np.max(traffic.prompt + traffic.gen)))
    scheduling = partial(_scheduling, policy=policy, block=block, max_batch=max_batch, traffic=traffic)
    limits = scheduling(setting, device)
    parsed_policy = limits["policy"]
    changes = mtbf is not None or autoscale is not None
    check_models(traffic, models, changes=changes, padded=parsed_policy.padded)
    rules = fleet_rules(
        Steps(setting), traffic, parsed_policy, mtbf=mtbf, notice=notice, recovery=recovery, startup=startup,
        autoscale=autoscale, scale_target=scale_target, seed=seed, replicas=replicas, prefill_replicas=prefill_replicas,
    )  # fmt: skip
    settings = [setting, *other_settings(models, setting, hardware or device, options)]
    source = "sessions or tasks, from which follow the" if call_source else "arrivals, a trace file with the"
    for one in settings:
        _check_hits(one, traffic, source)
    run_options: dict[str, Any] = {
        "rules": rules,
        "traffic": traffic.with_acceptances([Steps(one).acceptance_probabilities for one in settings], seed),
        "replicas": rules.scaling.most if rules and rules.scaling else whole_number("replicas", replicas),
        "router": _router_name(router, prefill_replicas, parsed_policy),
        "block": limits["block"], "years": years,
        "seed": None if arrivals else seed,
        "max_batch": limits["max_batch"],
        "goals": Goals(ttft_s=ttft, tpot_s=tpot), "client": client or "",
    }  # fmt: skip
    if prefill_replicas:
        if prefill_layout is not None:
            prefill_setting = replace(prefill_setting, layout=layout_of({"layout": prefill_layout})).agreed()
        run = partial(
            _simulate_disaggregated, prefill_setting, replace(setting, decodes_only=True), run_options,
            prefill_replicas=prefill_replicas, overlapped=transfer is KvTransfer.OVERLAPPED,
            travel_s=transfer_s(prefill_setting, setting, run_options["traffic"], link),
        )  # fmt: skip
    elif models:
        groups = [
            ModelGroup(
                name=model.name, setting=one, replicas=model.replicas, usd_per_token=model.usd_per_token,
                **scheduling(one, one.hardware),
            )
            for model, one in zip(models, settings, strict=True)
        ]  # fmt: skip
        groups[0] = replace(groups[0], replicas=run_options["replicas"])
        run = partial(_simulate_models, groups, run_options)
    else:
        run = partial(_simulate_colocated, setting, parsed_policy, run_options)
    unknown = "" if setting.bound else _unknown(*settings, *((prefill_setting,) if prefill_replicas else ()))
    if setting.bound or unknown:
        return replace(_at_bound(run, len(traffic), 1, progress), unknown=unknown)
    bound, expected = (_both_at_once if workers > 1 else _both)(run, len(traffic), progress)
    return replace(bound, expected=expected)


def _of_client(
    client: str, concurrency: int | None, requests: int | None, *, prompts: int | str | None, gens: int | str | None
) -> tuple[int, list[int | str]]:
    """Number of requests, and input and output lengths, of a benchmark's client.

    Raises InputError without a number of clients.
    """
    if concurrency is None:
        raise InputError(f"client must be left out without concurrency, its number of users; got {client!r}")
    benchmark = find_client(client)
    lengths = {"prompt_lengths": prompts, "gen_lengths": gens}
    return benchmark.count(whole_number("concurrency", concurrency)) if requests is None else requests, [
        client_length(benchmark, value, name, _DEFAULT_LENGTHS[name]) for name, value in lengths.items()
    ]


def _settings(
    model: str | Model | Setting, hardware: str | Hardware | None, prefill_hardware: str | Hardware | None,
    options: ServedOptions, *, prefills: bool, other_devices: Sequence[str],
) -> tuple[Setting, Setting]:  # fmt: skip
    """A replica, and one for prefills alone.

    prefills       whether there are replicas for prefills alone
    other_devices  devices of other models, which `hardware_set` may name
    """
    if isinstance(model, Setting) or hardware is None:
        setting = setting_of(model, hardware, **options)
        return setting, replace(setting, hardware=loaded(prefill_hardware or setting.hardware)).agreed()
    prefill_device = hardware if prefill_hardware is None else prefill_hardware
    for each in (hardware, prefill_device):
        arguments.check_types(hardware=each)
    changes = changes_by_device(
        (hardware, prefill_device, *other_devices), arguments.with_defaults(options, ServedOptions)["hardware_set"]
    )
    setting = Setting.of(model, hardware, **options | {"hardware_set": changes[0]})
    if not prefills:
        return setting, setting
    return setting, Setting.of(model, prefill_device, **options | {"hardware_set": changes[1]})


def _at_bound(
    run: Callable[..., Simulation], requests: int, runs: int, progress: Callable[[int, int], object]
) -> Simulation:
    """The simulation at the bound, the first of so many `runs`, of as many requests each."""
    return run(expected=False, progress=lambda finished: progress(finished, runs * requests))


def _both(
    run: Callable[..., Simulation], requests: int, progress: Callable[[int, int], object]
) -> tuple[Simulation, Simulation]:
    """The simulations at the bound and expected."""
    bound = _at_bound(run, requests, 2, progress)
    return bound, run(expected=True, progress=lambda finished: progress(requests + finished, 2 * requests))


def _both_at_once(
    run: Callable[..., Simulation], requests: int, progress: Callable[[int, int], object]
) -> tuple[Simulation, Simulation]:
    """The simulations at the bound and, in another process, expected; `progress` is of the first.

    Raises InputError if the process is killed.
    """
    from concurrent.futures.process import BrokenProcessPool

    # Pickled here, as the pool's thread would do so while the simulation at the bound fills caches.
    task = pickle.dumps(partial(run, expected=True, progress=_no_progress))
    with worker_pool(1) as pool:
        expected = pool.submit(_run_pickled, task)
        try:
            return _at_bound(run, requests, 1, progress), expected.result()
        except BrokenProcessPool:
            raise InputError("a worker was killed, perhaps out of memory; leave out workers for one process") from None


def _run_pickled(task: bytes) -> Simulation:
    """Runs a pickled simulation."""
    simulation: Simulation = pickle.loads(task)()  # noqa: S301 (of the parent process)
    return simulation


def _no_progress(finished: int) -> None:
    """Ignores the number of finished requests."""


def _unknown(*settings: Setting) -> str:
    """The reason why there are no expected times; "" if there are."""
    return next(filter(None, (Steps(setting).unknown for setting in settings)), "")


def _traffic(
    rate: float | None,
    arrivals: str | Path | None,
    concurrency: int | None,
    *,
    prompts: int | str | None,
    gens: int | str | None,
    requests: int | None,
    seed: int,
    call_source: Callable[..., Traffic] | None,
) -> Traffic:
    """Requests with random arrivals, of a trace file, or of a closed loop; of sessions or tasks from `call_source`.

    Raises InputError unless exactly one of them is given, and for arguments that would change nothing.
    """
    if sum(one is not None for one in (rate, arrivals, concurrency)) != 1:
        raise InputError(
            "exactly one of rate (--rate, in req/s), arrivals (--arrivals, a trace file) and concurrency "
            "(--concurrency, a number of clients) must be given"
        )
    clients = 0 if concurrency is None else whole_number("concurrency", concurrency)
    if requests is None and _MIN_REQUESTS_PER_CLIENT * clients > _MAX_REQUESTS:
        max_clients = _MAX_REQUESTS // _MIN_REQUESTS_PER_CLIENT
        raise InputError(
            f"concurrency must be at most {max_clients} without requests, as each client then sends "
            f"{_MIN_REQUESTS_PER_CLIENT}; got {clients}"
        )
    count = check_requests(max(_DEFAULT_REQUESTS, _MIN_REQUESTS_PER_CLIENT * clients) if requests is None else requests)
    if arrivals is not None:
        for name, value in {"prompt_lengths": prompts, "gen_lengths": gens, "sessions or tasks": call_source}.items():
            if value is not None:
                raise InputError(
                    f"{name} must be left out with arrivals, a trace file with the lengths of each request"
                )
        return read_traffic(Path(str(arrivals)), count)
    generator = np.random.default_rng(seed)
    if rate is None:
        if count < clients:
            raise InputError(f"requests must be at least the concurrency, {clients}; got {count}")
    else:
        arguments.check_numbers(rate=rate)
        if not 0 < rate < inf:
            raise InputError(f"rate must be a positive number of req/s; got {rate:g}")
    if call_source is not None:
        return call_source(rate=rate, in_flight=clients or None, requests=count, generator=generator)
    lengths = length_distributions(prompts, gens)
    drawn: dict[str, Any] = {
        "prompts": lengths[0], "gens": lengths[1], "requests": count, "generator": generator,
    }  # fmt: skip
    return closed_loop(in_flight=clients, **drawn) if rate is None else poisson(rate=rate, **drawn)


def _router_name(name: str | None, prefill_replicas: int, policy: Policy) -> str:
    """Name of a router.

    Raises InputError for an unknown one, and where the load of replicas at an arrival is not simulated.
    """
    if name is None or name == ROUND_ROBIN:
        return ROUND_ROBIN
    if name not in ROUTERS:
        raise InputError(f"router must be one of {', '.join(ROUTERS)}; got {name!r}")
    if prefill_replicas:
        raise InputError(f"router must be left out with prefill_replicas, which serve requests in turn; got {name!r}")
    if policy.padded:
        raise InputError(f"router must be left out with policy {policy}, whose batches run to their end; got {name!r}")
    return name


def _call_source(
    session_turns: int | str | None, think_time: float | str | None, system_prompt: int | None,
    task: Task | None, *, prompts: int | str | None, gens: int | str | None,
) -> Callable[..., Traffic] | None:  # fmt: skip
    """Function that draws sessions of several turns, or tasks of a file; None without.

    Raises InputError for invalid arguments, and for those that would change nothing.
    """
    if task is not None:
        excluded: dict[str, object] = {"session_turns": session_turns, "prompt_lengths": prompts, "gen_lengths": gens}
        for name in (name for name, value in excluded.items() if value is not None):
            raise InputError(f"{name} must be left out with tasks, a file with the calls of a task")
    if session_turns is None:
        for name, value in (("think_time", think_time), ("system_prompt", system_prompt)):
            if value is not None:
                raise InputError(
                    f"{name} must be left out without session_turns, the turns of a session; got {value!r}"
                )
        return None if task is None else task.traffic
    lengths = length_distributions(prompts, gens)
    return partial(
        drawn_sessions, turns_per_session=parse_lengths(str(session_turns), "session_turns"),
        think=parse_delays(str(think_time or 0), "think_time"), prompts=lengths[0], gens=lengths[1],
        system_tokens=whole_number("system_prompt", system_prompt or 0, least=0),
    )  # fmt: skip


def _check_waits(traffic: Traffic, prefill_replicas: int) -> None:
    """Raises InputError if requests wait for answers, and prefills are simulated before these are there."""
    if traffic.calls and prefill_replicas:
        raise InputError(
            f"{traffic.calls.kind}s must be left out with prefill_replicas: requests that wait for answers are not "
            "simulated there"
        )


def _with_tenants(traffic: Traffic, tenants: str | None, seed: int) -> Traffic:
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


def _check_hits(setting: Setting, traffic: Traffic, source: str) -> None:
    """Raises InputError if a technique sets cached tokens, and the `source` of the requests does too."""
    for one in setting.techniques:
        if traffic.cached is not None and overrides(one, "cached_prefix_tokens"):
            raise InputError(f"{one.name} must be left out with {source} cached tokens of each prompt")


def check_server_options(engine: Engine | None, policy: str | None, max_batch: int | None, tokens: int) -> None:
    """Raises InputError if an argument sets what an option of the server sets too, or if the server refuses requests.

    tokens  of the longest request, prompt and output
    """
    if engine is None:
        return
    engine.check_accepts(tokens)
    if max_batch is not None and engine.options.max_num_seqs:
        raise InputError(f"max_batch must be left out with max_num_seqs, which is the same limit; got {max_batch}")
    if policy and engine.options.max_num_batched_tokens:
        raise InputError(
            f"policy must be left out with max_num_batched_tokens, the tokens of a step of {engine.title}; got "
            f"{policy!r}"
        )


def scheduling_options(
    engine: Engine | None, policy: str | None, block: int | None, hardware: Hardware, layout: Layout
) -> tuple[Policy, int, int | None]:
    """Policy and tokens of a KV block, of the arguments or else of the engine on the device; and the maximum of running
    sequences of the engine, None without one.

    Raises InputError for a `hold` of prefills, without `fill`, if no ranks wait for each other, and for `fill` if they
    do.
    """
    defaults, block_tokens = (
        (engine.default_on(hardware), engine.block) if engine else (Default(_DEFAULT_POLICY), _DEFAULT_BLOCK_TOKENS)
    )
    wait = layout.waiting_ranks > 1
    parsed_policy = parse_policy(
        policy or (defaults.lockstep_policy if wait and defaults.lockstep_policy else defaults.policy)
    )
    if parsed_policy.hold > 1 and not wait and not parsed_policy.fill:
        raise InputError(
            f"policy must leave out hold where no ranks wait for each other, as those of dp do with ep above tp, or "
            f"give fill=SHARE of a step that prompts wait to fill; got {policy!r}"
        )
    if parsed_policy.fill and wait:
        raise InputError(f"policy must leave out fill where ranks wait for each other; got {policy!r}")
    return parsed_policy, whole_number("block", block_tokens if block is None else block), defaults.max_batch


def length_distributions(prompts: int | str | None, gens: int | str | None) -> tuple[Lengths, Lengths]:
    """Distributions of input and output lengths, of the arguments or by default."""
    values = {"prompt_lengths": prompts, "gen_lengths": gens}
    texts = {name: str(value) if isinstance(value, int) else value for name, value in values.items()}
    distributions = [
        parse_lengths(_DEFAULT_LENGTHS[name] if text is None else text, name) for name, text in texts.items()
    ]
    return distributions[0], distributions[1]


def check_requests(count: int) -> int:
    """Raises InputError unless the number of requests is from 1 to the maximum."""
    if whole_number("requests", count) > _MAX_REQUESTS:
        raise InputError(f"requests must be at most {_MAX_REQUESTS}; got {count}")
    return count


def _check_prefill_replicas(prefill_replicas: int, prefill_options: Mapping[str, object], policy: object) -> None:
    """Raises InputError for arguments that would change nothing."""
    for name, value in prefill_options.items():
        if not prefill_replicas and value is not None:
            raise InputError(f"{name} must be left out without prefill_replicas")
    if prefill_replicas and policy is not None:
        raise InputError("policy must be left out with prefill_replicas: no replica both prefills and decodes")


def _scheduling(
    setting: Setting, hardware: Hardware, *, policy: str | None, block: int | None, max_batch: int | None,
    traffic: Traffic,
) -> dict[str, Any]:  # fmt: skip
    """Policy, tokens of a KV block and maximum of running sequences of a replica, of the arguments or else of its
    engine.
    """
    parsed_policy, block_tokens, engine_max_batch = scheduling_options(
        setting.engine, policy, block, hardware, setting.layout
    )
    default_max_batch = engine_max_batch or max(DEFAULT_MAX_BATCH, traffic.in_flight or 0)
    return {
        "policy": parsed_policy, "block": block_tokens,
        "max_batch": whole_number("max_batch", default_max_batch if max_batch is None else max_batch),
    }  # fmt: skip


def _simulate_colocated(
    setting: Setting, policy: Policy, common: dict[str, Any], *, expected: bool, progress: Callable[[int], object]
) -> Simulation:
    """Simulation of replicas that prefill and decode."""
    steps, traffic = Steps(setting, expected), common["traffic"]
    limits: dict[str, Any] = {"policy": policy, "max_batch": common["max_batch"]}
    servers, offered = common["replicas"] * steps.rank_sets, traffic.rate / common["replicas"]
    router, options = common["router"], {"block": common["block"], "frontend": steps.frontend, **limits}
    fleet, rules = None, common["rules"]
    if router == ROUND_ROBIN and not rules:
        served = _serve_replicas(steps, traffic, servers, progress, **options)
    else:
        group = ServerGroup(steps=steps, servers=servers, block=common["block"], **limits)
        fleet_run = serve_fleet(
            [group], traffic, ROUTERS[router], frontend=steps.frontend, rules=rules, progress=progress
        )  # fmt: skip
        served, fleet = fleet_run.served, fleet_run.log
    hit_traffic = replace(traffic, cached=served.known) if traffic.blocks else traffic
    sent_later = traffic.in_flight or traffic.calls
    has_closed_form = (
        not sent_later
        and not rules
        and isfinite(offered)
        and steps.ranks == 1
        and policy.order == FIRST_COME_FIRST_SERVED
        and not policy.fill
    )
    closed = None
    if has_closed_form:
        closed = steady(steps, hit_traffic, rate=offered, **limits).behind(steps.frontend, traffic.prompt)
    sent_traffic = replace(traffic, arrival_s=served.arrival_s) if sent_later else traffic
    return Simulation(
        setting=setting, servers=servers, policy=policy, closed=closed, start_s=served.start_s, first_s=served.first_s,
        finish_s=served.finish_s, gap_s=served.gap_s, cached=served.known,
        preemptions=int(np.sum(served.preempted)), usage=served.usage, fleet=fleet,
        **(common | {"traffic": sent_traffic}),
    )  # fmt: skip


def _simulate_models(
    groups: Sequence[ModelGroup], common: dict[str, Any], *, expected: bool, progress: Callable[[int], object]
) -> Simulation:
    """Simulation of replicas of several models, each of which serves its calls of tasks."""
    traffic: Traffic = common["traffic"]
    assert traffic.models is not None
    all_steps = [Steps(group.setting, expected) for group in groups]
    server_groups = [
        ServerGroup(
            steps=steps, servers=group.replicas * steps.rank_sets, policy=group.policy, max_batch=group.max_batch,
            block=group.block,
        )
        for group, steps in zip(groups, all_steps, strict=True)
    ]  # fmt: skip
    run = serve_fleet(
        server_groups, traffic, ROUTERS[common["router"]], frontend=all_steps[0].frontend, progress=progress
    )
    served, sent_traffic = run.served, replace(traffic, arrival_s=run.served.arrival_s)
    each_alone = replace(sent_traffic, calls=None, in_flight=None)

    def simulation(ids: npt.NDArray[np.intp], requests: Traffic, **fields: Any) -> Simulation:
        return Simulation(
            closed=None, start_s=served.start_s[ids], first_s=served.first_s[ids], finish_s=served.finish_s[ids],
            gap_s=served.gap_s[ids], cached=served.known[ids], preemptions=int(np.sum(served.preempted[ids])),
            **(common | {"traffic": requests} | fields),
        )  # fmt: skip

    models = {}
    for number, (group, servers, usage) in enumerate(zip(groups, server_groups, run.usages, strict=True)):
        ids = np.flatnonzero(traffic.models == number)
        models[group.name] = simulation(
            ids, each_alone.only(ids), setting=group.setting, policy=group.policy, usage=usage,
            replicas=group.replicas, servers=servers.servers, max_batch=group.max_batch, block=group.block,
            usd_per_token=group.usd_per_token,
        )  # fmt: skip
    main = groups[0]
    return simulation(
        np.arange(len(traffic)), sent_traffic, setting=main.setting, policy=main.policy, usage=served.usage,
        replicas=sum(group.replicas for group in groups), servers=sum(group.servers for group in server_groups),
        max_batch=main.max_batch, block=main.block, models=models,
    )  # fmt: skip


def _simulate_disaggregated(
    reads: Setting,
    writes: Setting,
    common: dict[str, Any],
    *,
    prefill_replicas: int,
    travel_s: Times,
    overlapped: bool,
    expected: bool,
    progress: Callable[[int], object],
) -> Simulation:
    """Simulation of separate prefill and decode replicas."""
    traffic: Traffic = common["traffic"]
    policy = POLICIES["prefill-first"]  # of preempted requests, which decode replicas recompute
    reader, writer = (Steps(side, expected) for side in (reads, writes))
    read = prefill(reader, traffic, replicas=prefill_replicas, transfer_s=travel_s, overlapped=overlapped)
    order = np.argsort(read.ready_s, kind="stable")
    ready = replace(traffic.only(order), arrival_s=read.ready_s[order], blocks=None)
    servers = common["replicas"] * writer.rank_sets
    served = _serve_replicas(
        writer, ready, servers, progress, policy=policy, max_batch=common["max_batch"], block=common["block"],
        prefilled=True,
    )  # fmt: skip
    back = np.argsort(order)
    return Simulation(
        setting=writes, servers=servers, policy=policy, closed=None, reads=reads, prefill_replicas=prefill_replicas,
        reading_utilization=read.utilization, start_s=read.start_s, first_s=served.first_s[back],
        finish_s=served.finish_s[back], gap_s=served.gap_s[back], cached=reader.hit_tokens(traffic),
        preemptions=int(np.sum(served.preempted)), usage=served.usage, **common,
    )  # fmt: skip


def _serve_replicas(
    steps: Steps, traffic: Traffic, replicas: int, progress: Callable[[int], object], **options: Any
) -> Served:
    """Simulates replicas to which requests, or whole sessions, are assigned round-robin, and merges their results."""
    used = min(replicas, traffic.in_flight or traffic.task_count)
    ids_by_replica = [np.flatnonzero(traffic.task % used == first) for first in range(used)]
    first_ids = (0, *accumulate(map(len, ids_by_replica)))

    def since(start: int) -> Callable[[int], object]:
        return lambda finished: progress(start + finished)

    results = [
        serve(steps, traffic.only(ids), progress=since(start), **options)
        for ids, start in zip(ids_by_replica, first_ids, strict=False)
    ]
    if len(results) == 1:
        return results[0]
    columns = {}
    for f in fields(Served):
        if f.name != "usage":
            column = np.empty(len(traffic), dtype=getattr(results[0], f.name).dtype)
            for ids, result in zip(ids_by_replica, results, strict=True):
                column[ids] = getattr(result, f.name)
            columns[f.name] = column
    return Served(usage=Usage.total([result.usage for result in results]), **columns)
