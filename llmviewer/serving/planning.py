"""plan(): the devices, their number, layout, precision and batch that serve a load at the lowest cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import inf, isnan
from typing import Any, Final, Unpack

import numpy as np

from .. import arguments
from .._layout import data_dir
from ..analyzing.costs import Criterion
from ..analyzing.disaggregation import transfer_of
from ..comparing.choice import unsold
from ..devices.files import changes_by_device, hardware_files, hardware_names, loaded
from ..devices.hardware import Hardware
from ..errors import InputError
from ..expectation.engines import Engine, find_engine
from ..expectation.kernels import Kernels
from ..expectation.whole_passes import typical
from ..graph import Graph
from ..model import Model
from ..operators.linear import ExpertsLinear
from ..options import FleetOptions, PlanArguments, RequestLengthOptions, TransferOptions, document_options, only
from ..parallel.layout import Layout, parse_layout
from ..parameters import KvTransfer, declared
from ..request import Request, lengths_of
from ..setting import (
    Setting,
    check_engine_options,
    engine_inputs,
    opened,
    quant_text,
    server_options,
    single_device,
    whole_number,
)  # fmt: skip
from ..techniques import parse_techniques
from ..transforms.quantize import PUBLISHED, parse_quantization
from ..variants.changes import narrower
from .candidates import PRICES, Candidate
from .confirmation import as_simulated, confirmed
from .load import Grid, Load
from .outcome import Goals, Simulation
from .pairing import Pairing
from .search import Search
from .service_plan import ServicePlan, first_of_each, unknown_last
from .simulation import simulate
from .steps import Steps

QUANTS: Final = (PUBLISHED, "fp8", "fp8KV8", "W8A8", "W8A8KV8", "W4A16g128", "W4A8g128", "KV8")
LAYOUTS: Final = ("", "tp=2", "tp=4", "tp=8", "tp=16", "pp=2", "tp=2 pp=2", "tp=4 pp=2")
EXPERT_DEVICES: Final = (2, 4, 8, 16)  # degrees of expert parallelism, tried if they divide the number of experts
BATCHES: Final = tuple(sorted({*range(1, 33), *(round(32 * 2 ** (i / 6)) for i in range(1, 33))}))  # 64, to 1290
_MAX_DEVICES: Final = 100_000
_MAX_COMBINATIONS: Final = 300_000_000  # takes half a minute


@document_options(PlanArguments)
def plan(
    model: str | Model | Setting,
    request: Request | None = None,
    *,
    rate: float,
    hardware: Sequence[str | Hardware] | None = None,
    layouts: Sequence[str] | None = None,
    batches: Sequence[int] = BATCHES,
    by: str | None = None,
    disaggregated: bool = False,
    prefill_hardware: Sequence[str | Hardware] | None = None,
    top: int = 0,
    confirm: bool = True,
    progress: Callable[[int, int], object] = lambda finished, settings: None,
    **options: Unpack[PlanArguments],
) -> ServicePlan:
    """The cheapest way to serve `rate` requests per second within targets of TTFT and TPOT.

    request           prompt and gen in one; a Setting may replace model and options: its precision, layout and device
                      are the only ones, unless quants, layouts or hardware are given
    gen               None: 256; requests arrive at random (Poisson)
    hardware          devices to choose from; None: shipped devices that are for sale, and those of the user's folder
    layouts           layouts of a replica, as in "tp=4 pp=2"; "": one device; None: default_layouts()
    batches           limits of concurrent sequences to choose from, besides 1
    by                "cost", "energy" (watts at TDP) or "devices"; None: the first of these that is known
    disaggregated     whether to also try separate prefill workers
    prefill_hardware  devices that may run prefills for any of `hardware`; None: the same device on both sides
    top               number of the cheapest candidates that the report shows, of any device; 0: one of each device
    confirm           whether the cheapest are simulated until one meets the targets
    progress          called with the number of finished combinations of layout and precision, and of all

    The options apply to all settings, as in simulate(); of the default precisions, those that are narrower than the
    published weights are tried. `hardware_set` changes every device, or one, as in
    "l40s:price.cloud=1 USD/h"; with `bound`, lower bounds must meet the targets.

    Prefills take precedence over decode steps (prefill-first), or run on separate workers; docs/serving.md has the
    closed forms.

    Raises InputError if an argument is invalid.
    """
    quants = QUANTS if options.get("quants", ()) == () else options["quants"]
    prompt, gen = lengths_of(options, request, gen=declared(RequestLengthOptions)["gen"].default)
    if isinstance(model, Setting):
        quants = (quant_text(model),) if quants is QUANTS else quants
        layouts = (str(model.layout) if model.layout.devices > 1 else "",) if layouts is None else layouts
        hardware = (model.hardware,) if hardware is None else hardware
        model, _, options = opened(single_device(model), None, options, PlanArguments)
    arguments.check_numbers(rate=rate)
    all_options = arguments.with_defaults(options, PlanArguments)
    goals, years = Goals.parse(all_options), all_options["years"]
    arguments.check_positive(years=years)
    library, engine, bound = all_options["library"], all_options["engine"], all_options["bound"]
    arguments.check_bound_only(bound, library, engine, all_options["profiles"])
    measure = None if by is None else arguments.enum_member("by", by, PRICES)
    disaggregated_options = {"prefill_hardware": prefill_hardware, **only(all_options, TransferOptions)}
    _check_disaggregated(disaggregated, gen, disaggregated_options)
    transfer, link = transfer_of(all_options)
    devices, prefill_devices, unavailable = _devices(hardware, prefill_hardware, all_options["hardware_set"])
    precisions = _nonempty("quants", quants)
    serving_engine = find_engine(engine, library, server_options(all_options)) if engine else None
    if serving_engine is None:
        check_engine_options(server_options(all_options))
    base_device = (
        typical(serving_engine.name, devices) if serving_engine and serving_engine.has_whole_passes else devices[0]
    )
    base = _base_setting(model, base_device, serving_engine, all_options)
    if tuple(precisions) == QUANTS:
        precisions = narrower(base.model, precisions)
    load = _load(
        base, rate=rate, prompt=prompt, gen=gen, goals=goals, batches=batches,
        max_devices=all_options["max_devices"], years=years, disaggregated=disaggregated,
    )  # fmt: skip
    named_layouts = None if layouts is None else _nonempty("layouts", layouts)
    layouts_considered = _considered_layouts(base, named_layouts, load.max_devices)
    by_name = {device.name: device for device in (*devices, *prefill_devices)}
    pairing = Pairing(
        prefill_devices=frozenset(device.name for device in prefill_devices),
        decode_devices=frozenset(device.name for device in devices),
        overlapped=transfer is KvTransfer.OVERLAPPED, link=link,
    )  # fmt: skip

    @cache
    def kernels(device: str) -> Kernels:
        return Kernels(
            by_name[device], serving_engine.library if serving_engine else library, base.profiles, engine=serving_engine
        )

    full_search = Search(
        load=load, devices=list(by_name.values()), settings=_settings(base, precisions, layouts_considered),
        kernels=None if bound else kernels, engine=serving_engine, pairing=pairing if disaggregated else None,
    )  # fmt: skip
    _check_combinations(full_search)
    by_price = hardware is None and prefill_hardware is None and measure in (None, Criterion.COST)
    search, candidates = _searched(full_search, years, progress, by_price=by_price)
    if named_layouts is not None:
        _check_divides(candidates, layouts_considered)
    within_targets = [one for one in candidates if not one.factor]
    ranked_by = measure or next(
        (b for b in PRICES if any(not isnan(one.price(b)) for one in within_targets)), Criterion.COST
    )
    order = partial(_ranking_key, ranked_by)
    within_targets.sort(key=order)
    shared_options = {
        "model": model, "library": library, **engine_inputs(serving_engine), "profiles": tuple(all_options["profiles"]),
        "bound": bound or None, "hardware_set": tuple(all_options["hardware_set"]),
        "techniques": tuple(map(str, base.techniques)),
    }  # fmt: skip
    cheapest = (_lowest_at_bound(candidates, order, disaggregated=separate) for separate in (False, True))
    result = ServicePlan(
        shared_arguments=shared_options, model=base.model, rate=rate, prompt=load.prompt, gen=load.gen,
        goals=load.goals, by=ranked_by, requested_measure=measure, years=years, considered=len(search.devices),
        priced=sum(Criterion.COST.known(device, years) for device in search.devices), unavailable=unavailable,
        without_price=tuple(device.name for device in full_search.devices if device not in search.devices),
        max_devices=load.max_devices, kv_transfer=transfer if disaggregated else None, kv_link=link,
        quants=precisions, kernels=None if bound else serving_engine.title if serving_engine else library,
        within_targets=tuple(one for one in within_targets if one.at_bound or bound),
        unmeasured=first_of_each([one for one in within_targets if not (one.at_bound or bound)]),
        lowest_at_bound=tuple(filter(None, cheapest)),
        rejected=tuple(search.closest(candidates)), combinations=search.combinations,
        top=whole_number("top", top, least=0),
    )  # fmt: skip
    return _confirmed(result, order) if confirm else result


def _confirmed(result: ServicePlan, order: Callable[[Candidate], tuple[Any, ...]]) -> ServicePlan:
    """The plan with simulations of the cheapest candidates; those that miss the targets are no longer within them."""
    priced = [one for one in result.within_targets if not isnan(one.price(result.by))]
    tried = confirmed(
        priced, partial(_simulated, result), result.goals, order=order, max_devices=result.max_devices,
        years=result.years,
    )  # fmt: skip
    missed = {id(one.candidate) for one in tried if not one.within}
    met = {id(one.candidate): as_simulated(one) for one in tried if one.within}
    other_candidates = [one for one in result.within_targets if id(one) not in missed | met.keys()]
    within_targets = sorted([*other_candidates, *met.values()], key=order)
    simulations = tuple(replace(one, candidate=met.get(id(one.candidate), one.candidate)) for one in tried)
    return replace(result, within_targets=tuple(within_targets), simulations=simulations)


def _simulated(result: ServicePlan, candidate: Candidate) -> Simulation:
    """A simulation of a candidate, with expected times if the plan has them."""
    workers = candidate.prefill_workers
    simulation_options = result.simulation(candidate) | {"hardware": candidate.hardware}
    simulation_options.pop("hardware_set", None)
    if workers:
        simulation_options["prefill_hardware"] = workers.hardware
    return simulate(**simulation_options).likely


def _base_setting(model: str | Model, device: Hardware, engine: Engine | None, options: FleetOptions) -> Setting:
    """Base setting that the candidates vary.

    Raises InputError if the model does not generate token by token, or if a technique does not apply or sets a
    precision.
    """
    engine_name = engine.name if engine and engine.has_whole_passes else ""
    bare = Setting.of(
        model, device, attention=engine.attention if engine else None, engine=engine_name, library=options["library"],
        profiles=options["profiles"],
    )  # fmt: skip
    if not bare.model.generates or bare.model.is_encoder_decoder:
        raise InputError(
            f"{bare.model.name} does not generate token by token; plan needs a model that continues its prompts"
        )
    techniques = parse_techniques(options["techniques"])
    for technique in techniques:
        if technique.quant:
            raise InputError(
                f"{technique.name}: sets {technique.quant}, and plan tries precisions; give --quant {technique.quant}"
            )
    return replace(bare, techniques=techniques).agreed()


def _load(
    base: Setting,
    *,
    rate: float,
    prompt: int,
    gen: int,
    goals: Goals,
    batches: Sequence[int],
    max_devices: int,
    years: float | None,
    disaggregated: bool,
) -> Load:
    """The load of a base setting.

    Raises InputError for a number out of range.
    """
    if not 0 < rate < inf:
        raise InputError(f"rate must be a positive number of requests a second; got {rate:g}")
    steps = Steps(base)
    return Load(
        rate=rate, prompt=prompt, gen=gen, cached_tokens=float(steps.cached_tokens(prompt)),
        shared_prefix_tokens=float(steps.shared_prefix_tokens(prompt)),
        acceptance_probabilities=steps.acceptance_probabilities, width=steps.width,
        goals=goals, limits=_limits(batches), max_devices=_device_limit(max_devices), years=years,
        disaggregated=disaggregated,
    )  # fmt: skip


def _limits(batches: Sequence[int]) -> Grid:
    """Batch limits, from 1 on.

    Raises InputError if none is above 1.
    """
    limits = np.array(
        sorted({1, *(whole_number("batches", batch) for batch in arguments.as_numbers(batches))}), dtype=np.float64
    )
    if limits[-1] < 2:
        raise InputError("batches must have a number above 1, for sequences that decode together; got none")
    return limits


def _device_limit(devices: int) -> int:
    """`devices` as an int.

    Raises InputError unless it is from 1 to the maximum.
    """
    count = whole_number("max_devices", devices)
    if count > _MAX_DEVICES:
        raise InputError(f"max_devices must be at most {_MAX_DEVICES}; got {count}")
    return count


def _check_disaggregated(disaggregated: bool, gen: int, disaggregated_options: Mapping[str, object]) -> None:
    """Raises InputError for arguments that would change nothing, or if no decode step follows the prefill."""
    if disaggregated and gen == 1:
        raise InputError("gen must be at least 2 with disaggregated: prefill workers generate the first token; got 1")
    for name, value in disaggregated_options.items():
        if not disaggregated and value is not None:
            raise InputError(f"{name} must be left out without disaggregated, with which separate workers prefill")


def _devices(
    hardware: Sequence[str | Hardware] | None,
    prefill_hardware: Sequence[str | Hardware] | None,
    changes: Sequence[str],
) -> tuple[list[Hardware], list[Hardware], tuple[str, ...]]:
    """Devices that decode, each once: those named, or all for sale; devices that prefill for them; and names of devices
    that are not for sale.
    """
    arguments.check_lists(hardware_set=changes)
    named = tuple(hardware_names()) if hardware is None else _nonempty("hardware", hardware)
    named_prefill = () if prefill_hardware is None else _nonempty("prefill_hardware", prefill_hardware)
    device_changes = changes_by_device((*named, *named_prefill), changes)
    loaded_devices = [
        loaded(one, changed) for one, changed in zip((*named, *named_prefill), device_changes, strict=True)
    ]
    devices, prefill_devices = (
        {one.name: one for one in group} for group in (loaded_devices[: len(named)], loaded_devices[len(named) :])
    )
    unavailable = unsold(devices.values()) if hardware is None else ()
    return (
        [device for name, device in devices.items() if name not in unavailable],
        list(prefill_devices.values()),
        unavailable,
    )


def _check_combinations(search: Search) -> None:
    """Raises InputError if there are too many combinations to search."""
    if search.combinations > _MAX_COMBINATIONS:
        raise InputError(
            f"max_devices must make at most {_MAX_COMBINATIONS:,} combinations of devices, layouts, precisions, "
            f"replicas and batches; {search.load.max_devices} makes {search.combinations:,}: lower it, or name a few "
            "devices"
        )


def _searched(
    full_search: Search, years: float | None, progress: Callable[[int, int], object], *, by_price: bool
) -> tuple[Search, list[Candidate]]:
    """The search and its candidates; if `by_price`, of devices with a price, or of all if none of them is enough."""
    search = replace(full_search, devices=_priced_devices(full_search.devices, years)) if by_price else full_search
    candidates = list(search.candidates(progress))
    if len(search.devices) == len(full_search.devices) or any(not one.factor for one in candidates):
        return search, candidates
    return full_search, list(full_search.candidates(progress))


def _priced_devices(devices: Sequence[Hardware], years: float | None) -> Sequence[Hardware]:
    """The devices with a price, and those that do not ship; all where none has a price."""
    files, shipped = hardware_files(), data_dir("hardware")
    priced = [one for one in devices if Criterion.COST.known(one, years) or files[one.name].parent != shipped]
    return priced if any(Criterion.COST.known(one, years) for one in priced) else devices


def _nonempty(name: str, values: Any) -> tuple[Any, ...]:
    """`values` as a tuple.

    Raises InputError if it is empty.
    """
    entries = arguments.as_values(name, values)
    if not entries:
        raise InputError(f"{name}: nothing to plan with")
    return entries


def default_layouts(graph: Graph) -> tuple[str, ...]:
    """Default layouts; for models with experts also the degrees of expert parallelism that divide their number."""
    linears = (op for block in graph.blocks for op in block.operators if isinstance(op, ExpertsLinear))
    experts = {op.weight.shape[0] for op in linears}
    degrees = [n for n in EXPERT_DEVICES if experts and not any(count % n for count in experts)]
    return *LAYOUTS, *(f"{name}={n} ep={n}" for name in ("tp", "dp") for n in degrees)


def _considered_layouts(base: Setting, named_layouts: Sequence[str] | None, max_devices: int) -> list[Layout]:
    """Layouts with enough devices, each once: those named, or the default ones to which the techniques apply.

    Raises InputError if there are none.
    """
    layouts = list(
        dict.fromkeys(map(parse_layout, default_layouts(base.graph) if named_layouts is None else named_layouts))
    )
    if named_layouts is None:
        layouts = [one for one in layouts if _is_valid(replace(base, layout=one))]
    else:
        for one in layouts:
            replace(base, layout=one).agreed()
    fewest_devices = min(one.devices for one in layouts)
    if fewest_devices > max_devices:
        raise InputError(f"max_devices must be at least {fewest_devices}, which the layouts need; got {max_devices}")
    return [one for one in layouts if one.devices <= max_devices]


def _is_valid(setting: Setting) -> bool:
    """Whether the techniques of a setting apply in its layout."""
    try:
        setting.agreed()
    except InputError:
        return False
    return True


def _settings(base: Setting, quants: Sequence[str], layouts: Sequence[Layout]) -> dict[tuple[str, Layout], Setting]:
    """The base setting in every precision and layout."""
    return {
        (quant, layout): replace(base if quant == PUBLISHED else base.having(quant=quant), layout=layout)
        for quant in dict.fromkeys(quants)
        for layout in layouts
    }


def _check_divides(candidates: Sequence[Candidate], layouts: Sequence[Layout]) -> None:
    """Raises InputError if a layout does not divide the model in any precision."""
    for layout in layouts:
        with_links = [one for one in candidates if one.layout == layout and one.factor != "link"]
        if with_links and all(one.factor == "layout" for one in with_links):
            raise InputError(with_links[0].reason.removeprefix("layout: "))


def _lowest_at_bound(
    candidates: Sequence[Candidate], order: Callable[[Candidate], tuple[Any, ...]], *, disaggregated: bool
) -> Candidate | None:
    """The cheapest candidate at the bound, with or without separate prefill workers."""
    at_bound = (
        one.at_bound or one
        for one in candidates
        if bool(one.prefill_workers) is disaggregated and (one.at_bound or not one.factor)
    )
    return min(at_bound, key=order, default=None)


def _ranking_key(by: Criterion, candidate: Candidate) -> tuple[float, int, tuple[float, ...], float]:
    """Sort key: price, devices, published precision and most bits, TPOT."""
    return unknown_last(candidate.price(by)), candidate.devices, negative_bits(candidate.quant), candidate.tpot_s


@cache
def negative_bits(quant: str) -> tuple[float, ...]:
    """Negative bits of weights, activations and cache, as a sort key: fewer bits may lower quality."""
    scheme = parse_quantization(quant).scheme
    return tuple(-(fmt.bits if fmt else inf) for fmt in (scheme.weight, scheme.activation, scheme.kv_cache))
