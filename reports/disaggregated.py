"""Prefills on one kind of device, decode steps on another: both under one headline, in every format."""

from __future__ import annotations

from llmviewer.analyzing.disaggregation import Disaggregated
from llmviewer.parameters import KvTransfer
from llmviewer.units import seconds, si

from . import data, html, markdown, text
from .operator_table import shows_calls
from .page import Card
from .tables import json_of
from .text import Lines


def render_text(found: Disaggregated, *, width: int = 0, per_call: bool | None = None, brief: bool = False) -> str:
    """The report on a terminal; `width` and `brief` as of an analysis."""
    calls = shows_calls(found.joint, per_call)
    alarms = {_memory_of(name) for name, side in found.sides if not side.memory.fits}
    said = headline(found), summary(found)
    return text.report(*said, found.joint, width=width, calls=calls, brief=brief, alarms=alarms)


def render_markdown(found: Disaggregated, *, per_call: bool | None = None) -> str:
    return markdown.report(headline(found), summary(found), found.joint, per_call=per_call)


def render_json(found: Disaggregated) -> str:
    return json_of(found.to_dict())


def render_csv(found: Disaggregated) -> str:
    return data.render_csv(found.joint)


def render_html(found: Disaggregated) -> str:
    title, setting = headline(found).split(": ", 2)[0], headline(found).split(": ", 1)[1]
    transfer = Card(label="KV transfer", value=seconds(found.kv_transfer_s), about=_transfer(found))
    cards = [*html.time_cards(found.joint), transfer]
    for _, side in found.sides:
        first, *_ = html.memory_cards(side)
        cards.append(
            Card(label=f"memory of {text.devices(side)}", value=first.value, about=first.about, alarm=first.alarm)
        )
    inputs = {name: html.inputs(side) for name, side in found.sides}
    return html.page(found.joint, dict(found.sides), title=title, setting=setting, cards=cards, inputs=inputs)


def headline(found: Disaggregated) -> str:
    """What was asked, in one line."""
    asked = found.decode.inputs
    prefill, decode = (text.devices(side) for _, side in found.sides)
    return (
        f"{found.decode.model.title}: prefill on {prefill}, decode on {decode}: batch {asked.batch}, "
        f"prompt {asked.prompt}, {asked.gen} generated, {text.precision(found.decode)}, {asked.attention} attention"
    )


def summary(found: Disaggregated) -> Lines:
    """The headline numbers."""
    whole, read = found.generation, seconds(found.prefill.generation.ttft_s)
    when = "while it runs" if found.kv_transfer is KvTransfer.OVERLAPPED else "after it"
    first = f"{seconds(whole.ttft_s)}: prefill {read}, KV transfer {seconds(found.kv_transfer_s)} {when}"
    return (
        ("time to first token", first + text.also_expected(whole, "ttft")),
        ("time per output token", seconds(whole.tpot_s) + text.also_expected(whole, "tpot")),
        ("generation", text.pace(whole)),
        ("KV transfer", _transfer(found)),
        ("balance", _balance(found)),
        *((_memory_of(name), text.memory_line(side)) for name, side in found.sides),
        text.summary(found.joint)[-1],
    )


def _memory_of(side: str) -> str:
    return f"memory, {side}"


def _transfer(found: Disaggregated) -> str:
    return f"{si(found.kv_transfer_bytes)}B at {si(found.kv_transfer_bytes_per_s)}B/s"


def _balance(found: Disaggregated) -> str:
    """How many devices of a side keep up with one of the other."""
    ratio = found.decode_per_prefill
    if not ratio:
        return "no decode step is taken"
    many, of_one = ("decode", "prefill") if ratio >= 1 else ("prefill", "decode")
    return f"{max(ratio, 1 / ratio):.3g} {many} devices for each {of_one} device keep both busy at the bound"
