"""Serving: throughput against the speed of a request, simulated point by point while the page stays usable.

The browser asks for one point after another and collects them, so a long curve is no long request, any worker can
answer, and *Stop* ends it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from dash import Dash, Input, Output, dcc, html
from dash import State as Held
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from llmviewer.errors import InputError
from llmviewer.reports.serving_front import ClosedLoop, front, front_lines

from ..page_state import shown_state
from ..results import DeviceResult
from ..state import FILE_PREFIX, State
from ..views import serving
from ._components import Tab, figure_panel, panel, register_clientside, table, with_code

_PROGRESS_LABEL: Final[Any] = {"aria-label": "Simulated points"}
_PLANNED_FIELDS: Final = (  # that `llmviewer plan` has as options
    "quant", "library", "engine", "memory_fraction", "max_num_seqs", "max_num_batched_tokens", "max_model_len",
)  # fmt: skip
_SEPARATOR: Final = "#"  # between the place of a loop and the link of its state


def show(results: tuple[DeviceResult, ...], state: State) -> Component:
    """Places for the curves, their progress, and how they are made."""
    first = results[0].analysis
    if not first.model.generates or state.gen < 2:
        return panel(html.P("Serving needs a model that generates, and at least 2 generated tokens."),
                     className="serving")  # fmt: skip
    jobs = {"link": serving.loops_link(state), "total": len(serving.loop_settings(state))}
    return html.Div([
        dcc.Store(id="serving-jobs", data=json.dumps(jobs)), dcc.Store(id="serving-ask"), dcc.Store(id="serving-got"),
        dcc.Store(id="serving-points"),
        html.Div([
            html.Progress(id="serving-bar", value="0", max="1", **_PROGRESS_LABEL),
            html.Span(id="serving-progress", className="soft", role="status"),
            html.Button("Stop", id="serving-stop", type="button", className="quiet"),
        ], className="pins"),
        html.Div(id="serving-result"),
        panel(html.P(with_code(_about(state)), className="soft")),
    ], className="serving")  # fmt: skip


def _about(state: State) -> str:
    """The loops in words."""
    degrees = serving.degrees(state)
    layouts = f", in tensor parallelism of {_listed(degrees)}" if len(degrees) > 1 else ""
    return (
        f"Closed loops of {_listed(serving.CONCURRENCIES)} clients with {state.prompt} input and {state.gen} output "
        f"tokens per request, simulated as by `llmviewer simulate`{layouts}. Batches form from the "
        "requests in flight; the control Batch is not used. Costs: cloud prices. Energy: TDP."
    )


def _listed(numbers: Sequence[int]) -> str:
    *firsts, last = map(str, numbers)
    return f"{', '.join(firsts)} and {last}"


def _result(loops: Sequence[ClosedLoop], reasons: Sequence[str], state: State) -> list[Component]:
    """Figure, Pareto front and what to start for the best loop within the targets."""
    wanted_targets = serving.targets(state)
    best = front(loops, wanted_targets)
    lines = front_lines(loops, wanted_targets)
    settings = serving.loop_settings(state)
    rows = [
        (
            dcc.Link(line[0], href=replace(serving.loop_state(state, settings[one.place]), tab="overview").link or "?"),
            *line[1:],
        )
        for one, line in zip(best, lines[1:], strict=True)
    ]
    parts: list[Component] = [panel(figure_panel("serving-front", serving.front_figure(loops, state)))] if loops else []
    parts.append(panel(
        html.H3("Pareto front within the targets"),
        table([lines[0], *rows]) if rows
        else html.P("No simulated point is within the targets: raise them, or add devices.", className="alarm"),
        *([html.P(["Plan servers for the request rate of the last one: ",
                  html.Code(_command(best[-1], state))], className="soft")]
          if best else []),
    ))  # fmt: skip
    if reasons:
        parts.append(panel(html.Details([
            html.Summary(f"{len(reasons)} not possible"), html.Ul([html.Li(one) for one in reasons], className="said"),
        ])))  # fmt: skip
    return parts


def _command(one: ClosedLoop, state: State) -> str:
    """The command that plans servers for the request rate of a loop, with its inputs, within the same targets."""
    setting = serving.loop_settings(state)[one.place]
    rate = one.numbers["tokens_per_s"] / state.gen
    words = [
        "llmviewer", "plan", state.model.removeprefix(FILE_PREFIX),
        "--hardware", setting.device.removeprefix(FILE_PREFIX), "--rate", f"{float(f'{rate:.3g}'):g}",
        "--prompt", str(state.prompt), "--gen", str(state.gen),
        "--ttft", f"{state.within}={state.ttft / 1e3:g}", "--tpot", f"{state.within}={state.tpot / 1e3:g}",
    ]  # fmt: skip
    for name in _PLANNED_FIELDS:
        words += [f"--{name.replace('_', '-')}", str(value)] if (value := getattr(state, name)) else []
    words += [word for one in state.techniques for word in ("--with", one)]
    words += [word for one in state.what_ifs(setting.device) for word in ("--hardware-set", one)]
    return shlex.join(words)


def register(app: Dash) -> None:
    """Simulates a loop when the browser asks for it, and draws those that it has collected."""
    register_clientside(
        app, "startServing", Output("serving-ask", "data"), Input("serving-jobs", "data"), at_start=True
    )  # fmt: skip
    register_clientside(
        app, "collectServing", Output("serving-progress", "children"), Input("serving-got", "data"),
        Held("serving-jobs", "data"),
    )  # fmt: skip
    register_clientside(app, "stopServing", Output("serving-stop", "disabled"), Input("serving-stop", "n_clicks"))

    @app.callback(
        Output("serving-got", "data"), Input("serving-ask", "data"), Held("files", "data"), prevent_initial_call=True
    )  # fmt: skip
    def simulate(ask: str | None, files: Any) -> str:
        place, separator, link = (ask or "").partition(_SEPARATOR)
        if not separator:
            raise PreventUpdate
        state = shown_state(link, files)
        if not place.isdecimal() or int(place) >= len(serving.loop_settings(state)):
            raise InputError("serving: no such point; reload the page")
        return json.dumps({"link": link, **serving.simulated(state, int(place))})

    @app.callback(
        Output("serving-result", "children"), Input("serving-points", "data"), Held("asked", "data"),
        Held("files", "data"), prevent_initial_call=True,
    )  # fmt: skip
    def draw(points: str | None, link: str, files: Any) -> list[Component]:
        state = shown_state(link, files)
        return _result(*serving.loops_of(points, state), state)


TAB: Final = Tab(show=show, register=register)
