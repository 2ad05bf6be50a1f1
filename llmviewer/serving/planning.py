"""plan(): the devices, their number, layout, precision and batch that serve a load at the lowest cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import inf, isnan
from typing import Any, Final, Unpack

import numpy as np

from .. import arguments
from ..analyzing.costs import By
from ..comparing.choice import unsold
from ..devices.files import changes_by_device, hardware_names, loaded
from ..devices.hardware import Hardware
from ..errors import InputError
from ..expectation.engines import Engine, find_engine
from ..expectation.kernels import Kernels
from ..expectation.whole_passes import typical
from ..graph import Graph
from ..model import Model
from ..operators.linear import ExpertsLinear
from ..options import FleetOptions, document_options
from ..parallel.layout import Layout, parse_layout
from ..parameters import KvLink, KvTransfer
from ..setting import Setting, whole_number
from ..techniques import parse_techniques
from ..transforms.quantize import PUBLISHED, parse_quantization
from .candidates import PRICES, Candidate
from .load import Grid, Load
from .outcome import Goals
from .pairing import Pairing
from .search import Search
from .service_plan import ServicePlan, first_of_each, unknown_last
from .steps import Steps

QUANTS: Final = (PUBLISHED, "fp8", "fp8KV8", "W8A8", "W8A8KV8", "W4A16g128", "W4A8g128", "KV8")
LAYOUTS: Final = ("", "tp=2", "tp=4", "tp=8", "tp=16", "pp=2", "tp=2 pp=2", "tp=4 pp=2")
EXPERTS_ON: Final = (2, 4, 8, 16)  # devices that experts are shared out among, where they are as many on each
BATCHES: Final = tuple(sorted({*range(1, 33), *(round(32 * 2 ** (i / 6)) for i in range(1, 33))}))  # 64, to 1290
_MOST_DEVICES: Final = 100_000
_MOST_TRIED: Final = 300_000_000  # settings: half a minute


@document_options(FleetOptions)
def plan(
    model: str | Model,
    *,
    rate: float,
    ttft: float = inf,
    tpot: float = inf,
    prompt: int = 1024,
    gen: int = 256,
    hardware: Sequence[str | Hardware] | None = None,
    max_devices: int = 16,
    layouts: Sequence[str] | None = None,
    quants: Sequence[str] = QUANTS,
    batches: Sequence[int] = BATCHES,
    by: str | None = None,
    years: float | None = None,
    disaggregated: bool = False,
    prefill_hardware: Sequence[str | Hardware] | None = None,
    kv_transfer: str | None = None,
    kv_link: str | None = None,
    progress: Callable[[int, int], object] = lambda done, settings: None,
    **options: Unpack[FleetOptions],
) -> ServicePlan:
    """The cheapest way to serve `rate` requests per second within mean times `ttft` and `tpot` [s].

    prompt, gen       tokens of each request; requests arrive at random (Poisson)
    hardware          devices to choose from; None: shipped devices that are for sale, and those of the user's folder
    max_devices       most devices of all copies together
    layouts           layouts of one copy of the model, as in "tp=4 pp=2"; "": one device; None: usual_layouts()
    quants            precisions to choose from
    batches           limits of concurrent sequences to choose from, besides 1
    by                "cost", "energy" (watts at TDP) or "devices"; None: the first of these that is known
    years             time of use over which a purchase price is spread, for devices without a cloud price
    disaggregated     whether to also try separate copies for prefill and for decode
    prefill_hardware  devices that may run prefills for any of `hardware`; None: the same device on both sides
    kv_transfer, kv_link  as in simulate()
    progress          called with the number of finished combinations of layout and precision, and of all

    The options are of all settings, as in simulate(). `hardware_set` changes every device, or one, as in
    "l40s:price.cloud=1 USD/h"; with `bound`, lower bounds have to meet the goals.

    Prefills take precedence over decode steps (prefill-first), or run on separate copies; docs/serving.md has the
    closed forms.

    Raises InputError where something given cannot be used.
    """
    arguments.check_numbers(rate=rate, ttft=ttft, tpot=tpot)
    arguments.check_positive(years=years)
    given = arguments.with_defaults(options, FleetOptions)
    library, engine, bound = given["library"], given["engine"], given["bound"]
    arguments.check_bound_only(bound, library, engine, given["profiles"])
    wanted = None if by is None else arguments.enum_member("by", by, PRICES)
    apart = {"prefill_hardware": prefill_hardware, "kv_transfer": kv_transfer, "kv_link": kv_link}
    _check_disaggregated(disaggregated, gen, apart)
    when = arguments.enum_member("kv_transfer", kv_transfer or KvTransfer.AFTER, KvTransfer)
    link = arguments.enum_member("kv_link", kv_link or KvLink.SCALE_OUT, KvLink)
    devices, readers, left = _devices(hardware, prefill_hardware, given["hardware_set"])
    allowed = _some("quants", quants)
    made = find_engine(engine, library) if engine else None
    first = typical(made.name, devices) if made and made.whole else devices[0]
    base = _base(model, first, made, given)
    load = _load(
        base, rate=rate, prompt=prompt, gen=gen, goals=Goals(ttft_s=ttft, tpot_s=tpot), batches=batches,
        max_devices=max_devices, years=years, disaggregated=disaggregated,
    )  # fmt: skip
    named = None if layouts is None else _some("layouts", layouts)
    laid = _laid(base, named, load.max_devices)
    by_name = {device.name: device for device in (*devices, *readers)}
    pairing = Pairing(
        readers=frozenset(one.name for one in readers), writers=frozenset(one.name for one in devices),
        overlapped=when is KvTransfer.OVERLAPPED, link=link,
    )  # fmt: skip

    @cache
    def kernels(device: str) -> Kernels:
        return Kernels(by_name[device], made.library if made else library, base.profiles, engine=made)

    search = Search(
        load=load, devices=list(by_name.values()), settings=_settings(base, allowed, laid),
        kernels=None if bound else kernels, pairing=pairing if disaggregated else None,
    )  # fmt: skip
    if search.tried > _MOST_TRIED:
        raise InputError(
            f"max_devices must make at most {_MOST_TRIED:,} combinations of devices, layouts, precisions, copies and "
            f"batches; {load.max_devices} makes {search.tried:,}: lower it, or name a few devices to choose from"
        )
    found = list(search.candidates(progress))
    if named is not None:
        _check_divides(found, laid)
    keeping = [one for one in found if not one.factor]
    chosen = wanted or next((b for b in PRICES if any(not isnan(one.price(b)) for one in keeping)), By.COST)
    order = partial(_order, chosen)
    keeping.sort(key=order)
    common = {
        "model": model, "library": library, "engine": engine, "profiles": tuple(given["profiles"]),
        "bound": bound or None, "hardware_set": tuple(given["hardware_set"]),
        "techniques": tuple(map(str, base.techniques)),
    }  # fmt: skip
    return ServicePlan(
        common=common, model=base.model, rate=rate, prompt=load.prompt, gen=load.gen, goals=load.goals, by=chosen,
        asked_by=wanted, years=years, considered=len(by_name),
        priced=sum(By.COST.known(device, years) for device in by_name.values()), left_out=left,
        max_devices=load.max_devices, kv_transfer=when if disaggregated else None, kv_link=link,
        quants=allowed, kernels=None if bound else made.title if made else library,
        able=tuple(one for one in keeping if one.least or bound),
        unmeasured=first_of_each([one for one in keeping if not (one.least or bound)]),
        lowest=tuple(filter(None, (_lowest(found, order, apart=apart) for apart in (False, True)))),
        rejected=tuple(search.closest(found)), tried=search.tried,
    )  # fmt: skip


def _base(model: str | Model, device: Hardware, made: Engine | None, options: FleetOptions) -> Setting:
    """Base setting that the candidates vary.

    Raises InputError where it cannot be served token by token, or where a technique makes no sense or says a precision.
    """
    own = made.name if made and made.whole else ""
    bare = Setting.of(
        model, device, attention=made.attention if made else None, engine=own, library=options["library"],
        profiles=options["profiles"],
    )  # fmt: skip
    if not bare.model.generates or bare.model.is_encoder_decoder:
        raise InputError(
            f"{bare.model.name} is not served token by token; plan is of models that continue their prompts"
        )
    techniques = parse_techniques(options["techniques"])
    for one in techniques:
        if one.quant:
            raise InputError(f"{one.name}: is {one.quant}, and plan tries precisions; give --quant {one.quant}")
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
    """Raises InputError for a number out of range."""
    if not 0 < rate < inf:
        raise InputError(f"rate must be a positive number of requests a second; got {rate:g}")
    tokens, steps = whole_number("prompt", prompt), Steps(base)
    return Load(
        rate=rate, prompt=tokens, gen=whole_number("gen", gen), known=float(steps.cached_tokens(tokens)),
        common=float(steps.shared_prefix_tokens(tokens)), leaves=steps.acceptance_probabilities, width=steps.width,
        goals=goals, limits=_limits(batches), max_devices=_most(max_devices), years=years, disaggregated=disaggregated,
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


def _most(devices: int) -> int:
    """Raises InputError unless the number of devices is from 1 to the maximum."""
    count = whole_number("max_devices", devices)
    if count > _MOST_DEVICES:
        raise InputError(f"max_devices must be at most {_MOST_DEVICES}; got {count}")
    return count


def _check_disaggregated(disaggregated: bool, gen: int, apart: Mapping[str, object]) -> None:
    """Raises InputError for arguments that would change nothing, or if no decode step follows the prefill."""
    if disaggregated and gen == 1:
        raise InputError("gen must be at least 2 with disaggregated: the first token is of those that read; got 1")
    for name, value in apart.items():
        if not disaggregated and value is not None:
            raise InputError(f"{name} must be left out without disaggregated, where prompts are read elsewhere")


def _devices(
    hardware: Sequence[str | Hardware] | None,
    prefill_hardware: Sequence[str | Hardware] | None,
    changes: Sequence[str],
) -> tuple[list[Hardware], list[Hardware], tuple[str, ...]]:
    """Devices that decode: those named, each once, or all for sale; devices that prefill for them; and names of those
    left out.
    """
    arguments.check_lists(hardware_set=changes)
    named = tuple(hardware_names()) if hardware is None else _some("hardware", hardware)
    others = () if prefill_hardware is None else _some("prefill_hardware", prefill_hardware)
    own = changes_by_device((*named, *others), changes)
    found = [loaded(one, changed) for one, changed in zip((*named, *others), own, strict=True)]
    devices, readers = ({one.name: one for one in some} for some in (found[: len(named)], found[len(named) :]))
    left = unsold(devices.values()) if hardware is None else ()
    return [device for name, device in devices.items() if name not in left], list(readers.values()), left


def _some(name: str, values: Any) -> tuple[Any, ...]:
    """Raises InputError where there are none."""
    found = arguments.as_values(name, values)
    if not found:
        raise InputError(f"{name}: nothing to plan with")
    return found


def usual_layouts(graph: Graph) -> tuple[str, ...]:
    """Default layouts; models with experts are also divided over numbers of devices that divide these."""
    linears = (op for block in graph.blocks for op in block.operators if isinstance(op, ExpertsLinear))
    experts = {op.weight.shape[0] for op in linears}
    parts = [n for n in EXPERTS_ON if experts and not any(count % n for count in experts)]
    return *LAYOUTS, *(f"{name}={n} ep={n}" for name in ("tp", "dp") for n in parts)


def _laid(base: Setting, named: Sequence[str] | None, max_devices: int) -> list[Layout]:
    """Layouts with enough devices, each once: those named, or the default ones to which the techniques apply.

    Raises InputError if there are none.
    """
    every = list(dict.fromkeys(map(parse_layout, usual_layouts(base.graph) if named is None else named)))
    if named is None:
        every = [one for one in every if _agrees(replace(base, layout=one))]
    else:
        for one in every:
            replace(base, layout=one).agreed()
    fewest = min(one.devices for one in every)
    if fewest > max_devices:
        raise InputError(f"max_devices must be at least {fewest}, as many as the layouts given take; got {max_devices}")
    return [one for one in every if one.devices <= max_devices]


def _agrees(one: Setting) -> bool:
    """Whether its techniques apply in its layout."""
    try:
        one.agreed()
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


def _check_divides(found: Sequence[Candidate], layouts: Sequence[Layout]) -> None:
    """Raises InputError if a layout does not divide the model in any precision."""
    for layout in layouts:
        able = [one for one in found if one.layout == layout and one.factor != "link"]
        if able and all(one.factor == "layout" for one in able):
            raise InputError(able[0].reason.removeprefix("layout: "))


def _lowest(
    found: Sequence[Candidate], order: Callable[[Candidate], tuple[Any, ...]], *, apart: bool
) -> Candidate | None:
    """The cheapest candidate at the bound, with or without separate prefill copies."""
    least = (one.least or one for one in found if bool(one.readers) is apart and (one.least or not one.factor))
    return min(least, key=order, default=None)


def _order(by: By, one: Candidate) -> tuple[float, int, tuple[float, ...], float]:
    return unknown_last(one.price(by)), one.devices, _bits_less(one.quant), one.tpot_s


@cache
def _bits_less(quant: str) -> tuple[float, ...]:
    """Negative bits of weights, activations and cache, as a sort key: fewer bits may lower quality."""
    scheme = parse_quantization(quant).scheme
    return tuple(-(fmt.bits if fmt else inf) for fmt in (scheme.weight, scheme.activation, scheme.kv_cache))
