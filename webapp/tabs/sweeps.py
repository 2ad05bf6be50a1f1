"""Sweeps: curves along batch and length, the paper's figures for the present model, and maps of what bounds it."""

from __future__ import annotations

from typing import Final

from dash import Dash, dcc, html
from dash.development.base_component import Component

from llmviewer.errors import InputError

from ..answers import Answer
from ..state import State
from ..views import lines, sweeps
from ._parts import Tab, panel, picture, saves, table

_PAPER: Final = {  # settings of "LLM Inference Unveiled" (arXiv:2402.16363), whose figures these are
    "figure-4": "?model=llama-2-7b&on=rtx-a6000&phase=prefill&prompt=2048&accounting=survey",
    "figure-5": "?model=llama-2-7b&on=rtx-a6000&accounting=survey",
    "figure-6": "?model=llama-2-13b&on=rtx-a6000&accounting=survey",
    "figure-7": "?model=llama-2-13b&on=rtx-a6000&accounting=survey",
    "figure-8": "?model=llama-2-13b&on=rtx-a6000&accounting=survey",
}
_LEFT_OUT: Final = "Parallelism, offloading and techniques are not in it: it compares precisions on one device."


def show(found: tuple[Answer, ...], state: State) -> Component:
    if state.sweep in _PAPER:
        return html.Div([_preset(found, state)], className="sweeps")
    own, problems = lines.lines(found, state)
    pictures = sweeps.pictures(own, state)
    changes = sweeps.crossing_table(own, state)
    told = f"precisions on {found[0].name}; " if state.curves == "precisions" else ""
    devices = found[:1] if state.curves == "precisions" else found
    mapped = sweeps.maps(devices, state)
    unmapped = len(devices) - len(mapped)
    return html.Div([
        *(html.P(problem, className="error", role="alert") for problem in problems),
        *([panel(html.Div([picture(name, one) for name, one in pictures.items()], className="several"))] * bool(own)),
        panel(
            html.Div([
                html.H3("Where bounds change and curves cross"),
                html.Span(f"{told}lower bounds, to the sequence or token", className="soft"),
                html.Button("CSV of all points", id="sweeps-csv", type="button", className="quiet"),
            ], className="figcaption"),
            table(changes, "words") if len(changes) > 1 else html.P("No curve changes its bound or crosses another."),
        ),
        panel(
            html.Div([
                html.H3(f"What bounds {found[0].phase_name(state.phase)}, by batch and length"),
                html.Span("the share of its time that waits for memory; crosses: does not fit", className="soft"),
            ], className="figcaption"),
            html.Div([picture(f"sweep-map-{i}", one) for i, one in enumerate(mapped)], className="several"),
            *([html.P(f"Of the first {len(mapped)} devices; {unmapped} more are chosen.", className="soft")]
              if unmapped else []),
        ),
        dcc.Download(id="sweeps-download"),
    ], className="sweeps")  # fmt: skip


def _preset(found: tuple[Answer, ...], state: State) -> Component:
    try:
        shown = sweeps.preset(found, state)
    except InputError as error:
        return panel(html.P(str(error), className="error", role="alert"))
    paper, number = State.of_link(_PAPER[state.sweep])[0], state.sweep.removeprefix("figure-")
    own = state.question == paper.question and not state.quants and (number != "4" or state.phase == paper.phase)
    link = dcc.Link("the paper's own setting", href=f"{_PAPER[state.sweep]}&tab=sweeps&sweep={state.sweep}")
    here = f", for {found[0].setting.model.name} on {found[0].name}; open "
    one = state.layout.devices == 1 and not state.techniques and not state.offload
    left_out = [html.P(_LEFT_OUT, className="soft")] * (number in "678" and not one)
    said = [", in the paper's own setting."] if own else [here, link, "."]
    source = f'Figure {number} of "LLM Inference Unveiled" (arXiv:2402.16363)'
    return panel(html.P([source, *said]), *left_out, picture("sweep-preset", shown))


def register(app: Dash) -> None:
    saves(app, "sweeps", "sweep.csv", lambda found, state: sweeps.points(lines.lines(found, state)[0]))


TAB: Final = Tab(show=show, register=register)
