"""Sweeps: curves over batch size and prompt length, figures of the paper for this model, and maps of the bound."""

from __future__ import annotations

from typing import Final

from dash import Dash, dcc, html
from dash.development.base_component import Component

from llmviewer.errors import InputError

from ..errors import error_line
from ..results import DeviceResult
from ..state import State
from ..views import sweep_curves, sweeps
from .components import Tab, figure_panel, panel, register_csv, table

_PAPER: Final = {  # settings of "LLM Inference Unveiled" (arXiv:2402.16363), whose figures these are
    "figure-4": "?model=llama-2-7b&on=rtx-a6000&phase=prefill&prompt=2048&accounting=survey",
    "figure-5": "?model=llama-2-7b&on=rtx-a6000&accounting=survey",
    "figure-6": "?model=llama-2-13b&on=rtx-a6000&accounting=survey",
    "figure-7": "?model=llama-2-13b&on=rtx-a6000&accounting=survey",
    "figure-8": "?model=llama-2-13b&on=rtx-a6000&accounting=survey",
}
_IGNORED_SETTINGS: Final = "Precisions on one device, without parallelism, offloading and techniques."


def show(results: tuple[DeviceResult, ...], state: State) -> Component:
    """Curves over the selected axis with their changes of bound, or a figure of the paper."""
    if state.sweep in _PAPER:
        return html.Div([_preset(results, state)], className="sweeps")
    curves, problems = sweep_curves.sweep_curves(results, state)
    figures = sweeps.curve_figures(curves, state)
    changes = sweeps.crossing_table(curves, state)
    curves_note = f"precisions on {results[0].name}; " if state.curves == "precisions" else ""
    devices = results[:1] if state.curves == "precisions" else results
    bound_maps = sweeps.bound_maps(devices, state)
    return html.Div([
        *(html.P(problem, className="error", role="alert") for problem in problems),
        *([panel(html.Div([figure_panel(*item) for item in figures.items()], className="several"))] * bool(curves)),
        panel(
            html.Div([
                html.H3("Where bounds change and curves cross"),
                html.Span(f"{curves_note}of the roofline bounds, exact to one sequence or token", className="soft"),
                html.Button("CSV of all points", id="sweeps-csv", type="button", className="quiet"),
            ], className="figcaption"),
            table(changes, "words") if len(changes) > 1
            else html.P("No curve changes its bound or crosses another one."),
        ),
        panel(
            html.Div([
                html.H3(f"Bound of {results[0].phase_name(state.phase)} by batch and length"),
                html.Span("memory-bound share of the time; crosses: does not fit", className="soft"),
            ], className="figcaption"),
            html.Div([figure_panel(f"sweep-map-{i}", one) for i, one in enumerate(bound_maps)], className="several"),
            *([html.P(f"The first {len(bound_maps)} of {len(devices)} devices.", className="soft")]
              if len(bound_maps) < len(devices) else []),
        ),
        dcc.Download(id="sweeps-download"),
    ], className="sweeps")  # fmt: skip


def _preset(results: tuple[DeviceResult, ...], state: State) -> Component:
    """A figure of the paper for the current model on the first device."""
    try:
        figure = sweeps.paper_figure(results, state)
    except InputError as error:
        return panel(html.P(error_line(error), className="error", role="alert"))
    paper, number = State.of_link(_PAPER[state.sweep])[0], state.sweep.removeprefix("figure-")
    is_paper_setting = (
        state.analysis_inputs == paper.analysis_inputs
        and not state.quants
        and (number != "4" or state.phase == paper.phase)
    )
    link = dcc.Link("the setting of the paper", href=f"{_PAPER[state.sweep]}&tab=sweeps&sweep={state.sweep}")
    setting_text = f", for {results[0].setting.model.name} on {results[0].name}; open "
    is_plain = state.layout.devices == 1 and not state.techniques and not state.offload
    ignored_note = [html.P(_IGNORED_SETTINGS, className="soft")] * (number in "678" and not is_plain)
    sentence_end = [", in the setting of the paper."] if is_paper_setting else [setting_text, link, "."]
    source = f'Figure {number} of "LLM Inference Unveiled" (arXiv:2402.16363)'
    return panel(html.P([source, *sentence_end]), *ignored_note, figure_panel("sweep-preset", figure))


def register(app: Dash) -> None:
    """Connects the download of the curves as CSV."""
    register_csv(
        app,
        "sweeps",
        "sweep.csv",
        lambda results, state: sweeps.sweep_rows(sweep_curves.sweep_curves(results, state)[0]),
    )


TAB: Final = Tab(show=show, register=register)
