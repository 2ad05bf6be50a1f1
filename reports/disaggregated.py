"""The report on prefill and decode on separate kinds of device."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from llmviewer.analyzing.disaggregation import Disaggregated
from llmviewer.parameters import KvTransfer
from llmviewer.units import seconds, si

from . import analysis
from .parts import Card, Line
from .phrases import bound_and_expected, devices, expectation, lower_bound, precision, throughput
from .report import Report


def report(*, per_call: bool | None = None, brief: bool = False, sources: bool = False) -> Report[Disaggregated]:
    """The report on both; arguments as in analysis.report()."""
    tables = partial(analysis.tables, per_call=per_call, brief=brief)
    remarks = partial(analysis.remarks, brief=brief, sources=sources)
    return Report[Disaggregated](
        name="disaggregated",
        title=title,
        headline=headline,
        summary=summary,
        tables=lambda result: tables(result.joint),
        remarks=lambda result: remarks(result.joint),
        basis=lambda result: analysis.basis(result.joint),
        cards=cards,
        pictures=lambda result: analysis.pictures(result.joint, [side for _, side in result.sides]),
        details=lambda result: [
            analysis.method_details(result.joint),
            *analysis.device_details([side.hardware for _, side in result.sides]),
        ],
        inputs=inputs,
    )


def title(result: Disaggregated) -> str:
    """Model and the devices of prefill and decode."""
    prefill, decode = (devices(side) for _, side in result.sides)
    return f"{result.decode.model.title}: prefill on {prefill}, decode on {decode}"


def headline(result: Disaggregated) -> str:
    """The request in one line."""
    request = result.decode.request
    return (
        f"{title(result)}: batch {request.batch}, prompt {request.prompt}, {request.gen} generated, "
        f"{precision(result.decode)}, {result.decode.setting.attention} attention"
    )


def summary(result: Disaggregated) -> list[Line]:
    """Latencies, the transfer of the KV cache, and the memory of both sides, which comes first if one does not fit."""
    generation, prefill = result.generation, seconds(result.prefill.generation.ttft_s)
    when = "during it" if result.kv_transfer is KvTransfer.OVERLAPPED else "after it"
    parts = f"prefill {prefill}, KV transfer {seconds(result.kv_transfer_s)} {when}"
    expected = expectation(generation, "ttft")
    times = [
        Line("TTFT", f"{lower_bound(generation.ttft_s)}: {parts}" + f"; expected {expected}" * bool(expected)),
        Line("TPOT", bound_and_expected(generation, "tpot")),
        Line("E2E latency", bound_and_expected(generation, "latency")),
        Line("throughput", throughput(generation)),
        Line("KV transfer", _transfer(result)),
        Line("balance", _balance(result)),
    ]
    memory = [analysis.memory_line(side)._replace(label=f"memory, {name}") for name, side in result.sides]
    return [*memory, *times] if any(line.alarm for line in memory) else [*times, *memory]


def cards(result: Disaggregated) -> list[Card]:
    """Times of a request, the KV transfer, and the memory of each side."""
    transfer = Card(label="KV transfer", value=seconds(result.kv_transfer_s), about=_transfer(result))
    memory = (analysis.memory_card(side, f"memory of {devices(side)}") for _, side in result.sides)
    return [*analysis.time_cards(result.joint), transfer, *memory]


def inputs(result: Disaggregated) -> Mapping[str, Any]:
    """The arguments of each side."""
    return {name: analysis.inputs(side) for name, side in result.sides}


def _transfer(result: Disaggregated) -> str:
    return f"{si(result.kv_transfer_bytes)}B at {si(result.kv_transfer_bytes_per_s)}B/s"


def _balance(result: Disaggregated) -> str:
    """The ratio of devices at which both kinds are equally busy."""
    ratio = result.decode_per_prefill
    if not ratio:
        return "no decode steps"
    larger, smaller = ("decode", "prefill") if ratio >= 1 else ("prefill", "decode")
    return f"{max(ratio, 1 / ratio):.3g} {larger} devices per {smaller} device keep both busy at the bound"


REPORT: Final = report()
