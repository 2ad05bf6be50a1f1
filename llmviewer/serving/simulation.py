"""simulate(): replicas of a model serve requests that arrive over time."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import accumulate
from math import isfinite
from pathlib import Path
from typing import Any, Final, Unpack

import numpy as np
import numpy.typing as npt

from .. import arguments
from ..analyzing.disaggregation import transfer_of
from ..devices.files import changes_by_device, loaded
from ..devices.hardware import Hardware
from ..errors import InputError
from ..expectation.engines import Default, Engine
from ..model import Model
from ..options import ServedOptions, document_options, only
from ..parallel.layout import Layout
from ..parameters import KvTransfer
from ..setting import Setting, layout_of, setting_of, whole_number
from ..sweeping.shard_files import worker_pool
from ..techniques import overrides
from .fleet import ServerGroup, serve_fleet
from .fleet_rules import changes_fleet, fleet_rules
from .metrics import Served, Usage
from .model_groups import ModelGroup, check_models, other_settings
from .offered_traffic import offered_traffic
from .options import PrefillOptions, SchedulingOptions, SimulationArguments, SimulationOptions
from .outcome import DEFAULT_MAX_BATCH, Goals, Simulation
from .policy import FIRST_COME_FIRST_SERVED, POLICIES, Policy, parse_policy
from .prefill_pool import prefill, transfer_s
from .routers import ROUND_ROBIN, ROUTERS
from .server import serve
from .steady import steady
from .steps import Steps
from .task_files import Task, read_task
from .traffic import Times, Traffic

_DEFAULT_POLICY: Final = "chunked:512"
_DEFAULT_BLOCK_TOKENS: Final = 16


@arguments.renamed_arguments(copies="replicas", readers="prefill_replicas")
@document_options(SimulationArguments)
def simulate(
    model: str | Model | Setting,
    hardware: str | Hardware | None = None,
    *,
    workers: int = 1,
    progress: Callable[[int, int], object] = lambda finished, requests: None,
    **options: Unpack[SimulationArguments],
) -> Simulation:
    """Simulates a server step by step, once with steps at their lower bounds and once at their expected times.

    workers   processes; with two, the simulations at the bound and expected run at once
    progress  called with the number of finished requests, and of all; each is simulated twice unless `bound`

    The options of the setting are as in analyze(); a Setting may replace model, hardware and these. `hardware_set`
    changes both kinds of device, or one, as in "h100-sxm:memory.bandwidth=2x"; `engine` also sets policy, block and
    max_batch. Without engine and policy, prompts are read in chunks of 512 tokens.

    Raises InputError if an argument is invalid, or a request does not fit the memory.
    """
    values = arguments.with_defaults(options, SimulationArguments)
    goals, years = Goals.of(values), values["years"]
    transfer, link = transfer_of(values)
    arguments.check_positive(years=years)
    prefill_replicas = _prefill_replicas(values)
    seed, workers = whole_number("seed", values["seed"], least=0), whole_number("workers", workers)
    tasks = values["tasks"]
    task = tasks if tasks is None or isinstance(tasks, Task) else read_task(Path(str(tasks)))
    traffic = offered_traffic(values, task)
    _check_waits(traffic, prefill_replicas)
    models = task.models if task else ()
    setting, prefill_setting = _settings(
        model, hardware, values["prefill_hardware"], only(options, ServedOptions), prefills=prefill_replicas > 0,
        other_devices=[one.hardware for one in models if one.hardware],
    )  # fmt: skip
    device = setting.hardware if hardware is None else loaded(hardware)
    check_server_options(setting.engine, values, int(np.max(traffic.prompt + traffic.gen)))
    scheduling = partial(_scheduling, options=values, in_flight=traffic.in_flight or 0)
    limits = scheduling(setting, device)
    parsed_policy = limits["policy"]
    check_models(traffic, models, changes=changes_fleet(values), padded=parsed_policy.padded)
    rules = fleet_rules(Steps(setting), traffic, parsed_policy, values)
    settings = [setting, *other_settings(models, setting, hardware or device, only(options, ServedOptions))]
    source = (
        "sessions or tasks, from which follow the"
        if task or values["session_turns"] is not None
        else "arrivals, a trace file with the"
    )
    for one in settings:
        _check_hits(one, traffic, source)
    run_options: dict[str, Any] = {
        "rules": rules,
        "traffic": traffic.with_acceptances([Steps(one).acceptance_probabilities for one in settings], seed),
        "replicas": rules.scaling.most if rules and rules.scaling else whole_number("replicas", values["replicas"]),
        "router": _router_name(values["router"], prefill_replicas, parsed_policy),
        "block": limits["block"], "years": years,
        "seed": None if values["arrivals"] else seed,
        "max_batch": limits["max_batch"],
        "goals": goals, "client": values["client"] or "",
    }  # fmt: skip
    if prefill_replicas:
        if values["prefill_layout"] is not None:
            prefill_setting = replace(prefill_setting, layout=layout_of({"layout": values["prefill_layout"]})).agreed()
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


def _check_waits(traffic: Traffic, prefill_replicas: int) -> None:
    """Raises InputError if requests wait for answers, and prefills are simulated before these are there."""
    if traffic.calls and prefill_replicas:
        raise InputError(
            f"{traffic.calls.kind}s must be left out with prefill_replicas: requests that wait for answers are not "
            "simulated there"
        )


def _check_hits(setting: Setting, traffic: Traffic, source: str) -> None:
    """Raises InputError if a technique sets cached tokens, and the `source` of the requests does too."""
    for one in setting.techniques:
        if traffic.cached is not None and overrides(one, "cached_prefix_tokens"):
            raise InputError(f"{one.name} must be left out with {source} cached tokens of each prompt")


def check_server_options(engine: Engine | None, options: SchedulingOptions, tokens: int) -> None:
    """Raises InputError if an option sets what another option of the server sets too, or if the server refuses
    requests.

    tokens  of the longest request, prompt and output
    """
    if engine is None:
        return
    engine.check_accepts(tokens)
    policy, max_batch = options.get("policy"), options.get("max_batch")
    if max_batch is not None and engine.options.max_num_seqs:
        raise InputError(f"max_batch must be left out with max_num_seqs, which is the same limit; got {max_batch}")
    if policy and engine.options.max_num_batched_tokens:
        raise InputError(
            f"policy must be left out with max_num_batched_tokens, the tokens of a step of {engine.title}; got "
            f"{policy!r}"
        )


def scheduling_options(
    engine: Engine | None, options: SchedulingOptions, hardware: Hardware, layout: Layout
) -> tuple[Policy, int, int | None]:
    """Policy and tokens of a KV block, of the options or else of the engine on the device; and the maximum of running
    sequences of the engine, None without one.

    Raises InputError for a `hold` of prefills, without `fill`, if no ranks wait for each other, and for `fill` if they
    do.
    """
    defaults, block_tokens = (
        (engine.default_on(hardware), engine.block) if engine else (Default(_DEFAULT_POLICY), _DEFAULT_BLOCK_TOKENS)
    )
    policy, block, wait = options.get("policy"), options.get("block"), layout.waiting_ranks > 1
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


def _prefill_replicas(options: SimulationOptions) -> int:
    """Number of replicas for prefills alone.

    Raises InputError for options that would change nothing, or that are not simulated with such replicas.
    """
    count = whole_number("prefill_replicas", options["prefill_replicas"], least=0)
    for name, value in only(options, PrefillOptions).items():
        if not count and value is not None and name != "prefill_replicas":
            raise InputError(f"{name} must be left out without prefill_replicas")
    if count and options["policy"] is not None:
        raise InputError("policy must be left out with prefill_replicas: no replica both prefills and decodes")
    if count and options["concurrency"] is not None:
        raise InputError("concurrency must be left out with prefill_replicas, whose closed loop is not simulated")
    return count


def _scheduling(setting: Setting, hardware: Hardware, *, options: SchedulingOptions, in_flight: int) -> dict[str, Any]:
    """Policy, tokens of a KV block and maximum of running sequences of a replica, of the options or else of its engine.

    in_flight  requests of a closed loop; 0 without one
    """
    parsed_policy, block_tokens, engine_max_batch = scheduling_options(
        setting.engine, options, hardware, setting.layout
    )
    max_batch = options.get("max_batch")
    default_max_batch = engine_max_batch or max(DEFAULT_MAX_BATCH, in_flight)
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
