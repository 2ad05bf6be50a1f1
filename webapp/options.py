"""Options of the controls: models, devices, techniques, operators, and the numbers of devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dash import html
from dash.development.base_component import Component

from llmviewer.devices.checks import violations
from llmviewer.devices.hardware import Hardware
from llmviewer.reports.techniques import describe
from llmviewer.techniques import techniques
from llmviewer.units import si

from .fields import technique_names
from .results import hardware_catalogue, model_catalogue
from .state import EXAMPLE_TASK, FILE_PREFIX, File

_NEEDS_FILE: Final = ("lengths",)  # techniques that read a local file


def operator_options(titles: Mapping[str, str], chosen: str) -> list[dict[str, str]]:
    """Operators by title; of several with one title, the selected one or else the first."""
    options_by_title = {titles[chosen]: chosen} if chosen else {}
    for name, title in titles.items():
        options_by_title.setdefault(title, name)
    return [{"label": title, "value": options_by_title[title]} for title in dict.fromkeys(titles.values())]


def technique_options() -> list[dict[str, Any]]:
    """Techniques, searchable by name and description."""
    return [
        {
            "label": html.Span([name, html.Span(f" {about}", className="soft")], title=about),
            "value": name,
            "search": f"{name} {about}",
        }
        for name, kind in techniques().items()
        if name not in _NEEDS_FILE
        for about in [_unmarked(describe(kind)["summary"])]
    ]


def technique_details(texts: Iterable[str]) -> list[Component]:
    """Descriptions of techniques and their parameters."""
    kinds = techniques()
    return [
        html.Details([
            html.Summary(html.Code(name)), html.P(_unmarked(about["summary"])),
            html.Ul([
                html.Li([html.Code(one["name"]), f" {_unmarked(one['about'])}", *_limits(one)])
                for one in about["parameters"]
            ]),
        ])
        for name in technique_names(texts) if name in kinds
        for about in [describe(kinds[name])]
    ]  # fmt: skip


def _unmarked(text: str) -> str:
    """Text without Markdown code marks."""
    return text.replace("`", "")


def _limits(parameter: dict[str, Any]) -> list[str]:
    """Limits and default of a parameter, in brackets; empty if it has neither."""
    default_text = "required" if parameter["required"] else f"{parameter['default']} by default"
    notes = [default_text] if parameter["required"] or parameter["default"] not in (None, "") else []
    return [f" ({'; '.join(filter(None, (parameter['limits'], *notes)))})"] if notes or parameter["limits"] else []


def model_options(files: Iterable[File]) -> list[dict[str, str]]:
    """Models, uploaded ones first, searchable by title, name and aliases, which include repositories on the hub."""
    return _file_options(file for file in files if file.control == "model") + [
        {
            "label": f"{model.title} \N{MIDDLE DOT} {_billions(model.parameters)}",
            "value": name,
            "names": " ".join((name, *model.aliases)),
        }
        for name, model in model_catalogue().items()
    ]


def device_options(files: Iterable[File]) -> list[dict[str, str]]:
    """Devices, uploaded ones first, searchable by title, name and aliases."""
    return _file_options(file for file in files if file.control == "on") + [
        {
            "label": f"{device.title} \N{MIDDLE DOT} {si(device.bandwidth())}B/s",
            "value": name,
            "names": " ".join((name, *device.aliases)),
        }
        for name, device in hardware_catalogue().items()
    ]


def task_options(files: Iterable[File]) -> list[dict[str, str]]:
    """Tasks of agents, uploaded ones first."""
    example = {"label": f"{EXAMPLE_TASK} (example)", "value": EXAMPLE_TASK}
    return [*_file_options(file for file in files if file.control == "tasks"), example]


def _file_options(files: Iterable[File]) -> list[dict[str, str]]:
    return [{"label": f"{file.name} (uploaded)", "value": f"{FILE_PREFIX}{file.name}"} for file in files]


def _billions(parameters: int) -> str:
    """Number of parameters, such as 70.6B and 124M."""
    return si(parameters).replace(" ", "").replace("G", "B")


def implausible_numbers(devices: Iterable[tuple[str, Hardware]]) -> list[Component]:
    """Implausible numbers among those that the user changed, and of the user's own devices, a line each."""
    lines = [
        html.Li(f"{name}: {line}")
        for name, device in devices
        if device.changes or name.startswith(FILE_PREFIX)
        for line in violations(device)
        if not line.startswith("sources")
    ]
    return (
        [html.P("Implausible for a real device:", className="soft"), html.Ul(lines, className="said")] if lines else []
    )


def number_rows(devices: Iterable[tuple[str, Hardware]]) -> list[dict[str, str]]:
    """All numbers in the files of devices, with their sources; memory and compute rates first."""
    rows = [
        {
            "device": name,
            "key": fact.key,
            "value": fact.text,
            "source": fact.note if not fact.source else str(device.sources[fact.source]),
        }
        for name, device in devices
        for fact in device.facts
        if isinstance(fact.value, float)
    ]
    order = ("memory", "matrix", "vector", "scale_up", "scale_out", "host", "storage")
    rank = {section: place for place, section in enumerate(order)}
    return sorted(rows, key=lambda row: rank.get(row["key"].partition(".")[0], len(order)))
