"""Sweeps: curves along batch and length, the paper's figures for the present model, and maps of what bounds it."""

from __future__ import annotations

from typing import Any, Final

from dash import Dash, Input, Output, dcc, html
from dash import State as Held
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from llmviewer.errors import InputError

from ..answers import Answer, answers
from ..asked import asked
from ..state import State
from ..views import sweeps
from ._parts import Tab, panel, picture, saved, table

_PAPER: Final = {  # settings of "LLM Inference Unveiled" (arXiv:2402.16363), whose figures these are
    "figure-4": "?model=llama-2-7b&on=rtx-a6000&phase=prefill&prompt=2048&accounting=survey",
    "figure-5": "?model=llama-2-7b&on=rtx-a6000&accounting=survey",
    "figure-6": "?model=llama-2-13b&on=rtx-a6000&accounting=survey",
    "figure-7": "?model=llama-2-13b&on=rtx-a6000&accounting=survey",
    "figure-8": "?model=llama-2-13b&on=rtx-a6000&accounting=survey",
}


def show(found: tuple[Answer, ...], state: State) -> Component:
    if state.sweep in _PAPER:
        return html.Div([_preset(found, state)], className="sweeps")
    own, problems = sweeps.lines(found, state)
    pictures = sweeps.pictures(own, state)
    changes = sweeps.crossing_table(own, state)
    told = f"precisions on {found[0].name}" if state.curves == "precisions" else "devices"
    return html.Div([
        *(html.P(problem, className="error", role="alert") for problem in problems),
        *([panel(html.Div([picture(name, one) for name, one in pictures.items()], className="several"))] * bool(own)),
        panel(
            html.Div([
                html.H3("Where they cross"),
                html.Span(f"lower bounds of {told}; to the sequence or token", className="soft"),
                html.Button("CSV of all points", id="sweeps-csv", type="button", className="quiet"),
            ], className="figcaption"),
            table(changes, "words") if len(changes) > 1 else html.P("No curve changes its bound or crosses another."),
        ),
        panel(html.Div(
            [picture(f"sweep-map-{i}", one) for i, one in enumerate(sweeps.maps(found, state))], className="several"
        )),
        dcc.Download(id="sweeps-download"),
    ], className="sweeps")  # fmt: skip


def _preset(found: tuple[Answer, ...], state: State) -> Component:
    try:
        shown = sweeps.preset(found, state)
    except InputError as error:
        return panel(html.P(str(error), className="error", role="alert"))
    paper = html.A("Open the paper's own setting", href=f"{_PAPER[state.sweep]}&tab=sweeps&sweep={state.sweep}")
    return panel(picture("sweep-preset", shown), html.P(paper, className="soft"))


def register(app: Dash) -> None:
    @app.callback(
        Output("sweeps-download", "data"),
        Input("sweeps-csv", "n_clicks"),
        Held("asked", "data"),
        Held("files", "data"),
        prevent_initial_call=True,
    )
    def save(clicks: int | None, link: str, files: Any) -> dict[str, Any]:
        if not clicks:
            raise PreventUpdate
        state = asked(link, files)
        own, _ = sweeps.lines(answers(state), state)
        return saved("sweep.csv", sweeps.points(own))


TAB: Final = Tab(name="sweeps", label="Sweeps", show=show, register=register)
