"""The servers with the lowest price for a rate of requests, searched for a device and a precision at a time."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import isnan, nan
from typing import Any, Final

from llmviewer.analyzing.costs import Criterion
from llmviewer.errors import InputError
from llmviewer.parallel.layout import parse_layout
from llmviewer.records import frozen
from llmviewer.reports.parts import option_words
from llmviewer.reports.plans import REPORT, devices
from llmviewer.reports.tables import number_item
from llmviewer.serving.planning import QUANTS, negative_bits, plan
from llmviewer.serving.service_plan import ServicePlan, unknown_last
from llmviewer.transforms.quantize import PUBLISHED
from llmviewer.units import seconds
from llmviewer.variants.changes import narrower

from .. import traffic
from ..cpu_limit import check_limit
from ..errors import error_line
from ..results import device, hardware_catalogue, model_of, setting_on
from ..state import FILE_PREFIX, State
from .serving import SERVER_FIELDS

HEAD: Final = ("devices", "precision", "USD/h", "bound", "TTFT", "TPOT", "req/s")  # as reports.plans has it
_UNUSED_FIELDS: Final = ("accounting", "mtp", "offload", "attention", "mla", "skew", "images")
_NUMBERS: Final = ("usd_per_h", "bound_usd_per_h", "devices", "batch", "ttft_s", "tpot_s", "rate_within")
_MAX_TEXT_CHARACTERS, _MAX_COMMANDS = 2000, 4


@frozen(kw_only=True)
class PlanSearch:
    """A search of `llmviewer plan` among replicas, layouts and batches of a device and a precision."""

    device: str
    quant: str


@frozen(kw_only=True)
class PlanResult:
    """The lowest price that a search found. Numbers have the units of `llmviewer plan`; nan where unknown.

    name      devices in words
    link      to the setting of a replica
    commands  purpose and text of commands that simulate and start a replica
    """

    device: str
    quant: str
    name: str
    link: str
    numbers: Mapping[str, float]
    commands: tuple[tuple[str, str], ...]

    @property
    def order(self) -> tuple[Any, ...]:
        """Sort key of `llmviewer plan`: price, devices, most bits, TPOT."""
        price = unknown_last(self.numbers["usd_per_h"])
        return price, self.numbers["devices"], negative_bits(self.quant), self.numbers["tpot_s"]

    @property
    def cells(self) -> tuple[str, ...]:
        """Texts of the columns of HEAD."""
        number = self.numbers
        return (
            self.name, self.quant, *(number_item(number[name]).text for name in ("usd_per_h", "bound_usd_per_h")),
            seconds(number["ttft_s"]), seconds(number["tpot_s"]), number_item(number["rate_within"]).text,
        )  # fmt: skip


@frozen(kw_only=True)
class Plans:
    """The results of the searches of a state so far.

    lowest   the lowest price of each device, lowest first
    reasons  why the other devices are impossible
    """

    lowest: tuple[PlanResult, ...]
    reasons: tuple[str, ...]
    is_complete: bool


def searches(state: State) -> tuple[PlanSearch, ...]:
    """The searches of a state, by device."""
    names = (
        (*state.on, *(name for name in _priced() if name not in state.on)) if state.plan_on == "priced" else state.on
    )
    quants = (state.quant,) if state.quant else narrower(model_of(state), QUANTS)
    return tuple(PlanSearch(device=name, quant=quant) for name in names for quant in quants)


@lru_cache(maxsize=1)
def _priced() -> tuple[str, ...]:
    """Devices that ship with a cloud price."""
    return tuple(name for name, one in hardware_catalogue().items() if Criterion.COST.known(one, None))


def plan_link(state: State) -> str:
    """Link to the inputs of the searches: states with equal ones have equal plans."""
    names = ("ttft", "tpot", "within", "plan_rate", "plan_most", "plan_on", "prefill_replicas", "load")
    inputs = replace(state.analysis_inputs, batch=1, context=0, step="", measured="", tp=1, pp=1, ep=1, dp=1, cp=1)
    return replace(inputs, **{name: getattr(state, name) for name in names}).link


def unused(state: State) -> list[str]:
    """Names of the fields of a state that are changed and that a plan does not have."""
    return [name for name in _UNUSED_FIELDS if getattr(state, name) != getattr(State(), name)]


def _targets(state: State) -> dict[str, str]:
    return {name: f"{state.within}={getattr(state, name) / 1e3:g}" for name in ("ttft", "tpot")}


def _load(state: State) -> dict[str, Any]:
    """The arguments of plan() on what is served."""
    is_disaggregated = "prefill_replicas" in traffic.arguments(state)
    return {
        "rate": state.plan_rate, "prompt": state.prompt, "gen": state.gen, **_targets(state),
        "max_devices": state.plan_most, "disaggregated": is_disaggregated,
    }  # fmt: skip


def planned(state: State, place: int) -> dict[str, Any]:
    """The result of the search at a place of searches() as JSON; the reason in place of it if nothing is possible."""
    row: dict[str, Any] = {"place": place, "reason": ""}
    try:
        return row | _written(_planned(state, searches(state)[place]))
    except Exception as error:  # noqa: BLE001 - the page stays
        return row | {"reason": error_line(error, state.link)}


def _planned(state: State, one: PlanSearch) -> ServicePlan:
    setting = setting_on(state, state.on[0])  # which checks the techniques
    shared = {name: value for name in SERVER_FIELDS if (value := getattr(state, name))}
    return plan(
        model_of(state) if state.model.startswith(FILE_PREFIX) else state.model, **_load(state),
        hardware=[device(state, one.device)], quants=[one.quant], techniques=tuple(map(str, setting.techniques)),
        progress=lambda _finished, _settings: check_limit(), **shared,
    )  # fmt: skip


def _written(result: ServicePlan) -> dict[str, Any]:
    """The lowest of a plan as JSON.

    Raises InputError with the reason if none meets the targets.
    """
    best = result.best or next(iter(result.within_targets), None)
    if best is None:
        misses = [one.reason for one in result.rejected if one.reason]
        raise InputError(misses[0] if misses else "no kernels were measured, so only bounds are known")
    numbers = {
        "usd_per_h": best.usd_per_h, "bound_usd_per_h": (best.at_bound or best).usd_per_h, "devices": best.devices,
        "batch": best.batch, "ttft_s": best.ttft_s, "tpot_s": best.tpot_s, "rate_within": best.rate_within,
    }  # fmt: skip
    return {
        "name": devices(best), "layout": str(best.layout) if best.layout.devices > 1 else "",
        "numbers": {name: None if isnan(value) else float(value) for name, value in numbers.items()},
        "commands": [[one.purpose.partition("; --emit")[0], " ".join(one.words)] for one in REPORT.more(result)],
    }  # fmt: skip


def plans_of(text: str | None, state: State) -> Plans:
    """Parses what a browser has collected.

    Raises InputError if the text is not what planned() wrote.
    """
    places = searches(state)
    try:
        rows = {int(row["place"]): row for row in json.loads(text or "[]")[: len(places)]}
        found = sorted((_found(row, places[place], state) for place, row in rows.items() if not row["reason"]),
                       key=lambda one: one.order)  # fmt: skip
        reasons = {places[place].device: str(row["reason"])[:300] for place, row in rows.items() if row["reason"]}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError):
        raise InputError("plan: the results are damaged; reload the page") from None
    lowest = {one.device: one for one in reversed(found)}
    by_price = sorted(lowest.values(), key=lambda one: one.order)
    impossible = tuple(f"{name}: {reason}" for name, reason in reasons.items() if name not in lowest)
    return Plans(lowest=tuple(by_price), reasons=impossible, is_complete=len(rows) == len(places))


def _found(row: Mapping[str, Any], one: PlanSearch, state: State) -> PlanResult:
    numbers = {name: nan if row["numbers"][name] is None else float(row["numbers"][name]) for name in _NUMBERS}
    layout = parse_layout(str(row["layout"]))
    batch = min(max(round(numbers["batch"]), 1), 1024)
    replica = replace(
        state, on=(one.device,), quant="" if one.quant == PUBLISHED else one.quant, batch=batch, tab="overview",
        tp=layout.tp, pp=layout.pp, ep=layout.ep, dp=layout.dp, cp=layout.cp,
    ).with_files(state.files)  # fmt: skip
    commands = [(str(purpose), str(words)) for purpose, words in row["commands"][:_MAX_COMMANDS]]
    return PlanResult(
        device=one.device, quant=one.quant, name=str(row["name"])[:_MAX_TEXT_CHARACTERS], link=replica.link or "?",
        numbers=numbers,
        commands=tuple((purpose[:_MAX_TEXT_CHARACTERS], words[:_MAX_TEXT_CHARACTERS]) for purpose, words in commands),
    )  # fmt: skip


def plan_command(state: State) -> str:
    """The command that makes the same plan; an uploaded model or device is a file that the user has."""
    defaults = State()
    hardware = [name.removeprefix(FILE_PREFIX) for name in dict.fromkeys(one.device for one in searches(state))]
    changed = {name: getattr(state, name) for name in ("quant", *SERVER_FIELDS)
               if getattr(state, name) != getattr(defaults, name)}  # fmt: skip
    changes = tuple(
        change if len(hardware) == 1 else f"{name}:{change}" for name in state.on for change in state.what_ifs(name)
    )
    options = {
        **_load(state), "hardware": ",".join(hardware), **changed, "techniques": state.techniques,
        "hardware_set": changes,
    }  # fmt: skip
    words = f"llmviewer plan {shlex.quote(state.model.removeprefix(FILE_PREFIX))}"
    return " ".join((words, *option_words({name: value for name, value in options.items() if value})))
