"""What there is to choose from: models, devices, techniques and the numbers of devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dash import html
from dash.development.base_component import Component

from llmviewer.devices.hardware import Hardware
from llmviewer.reports.techniques import describe
from llmviewer.techniques import techniques
from llmviewer.units import si

from .answers import hardware_catalogue, model_catalogue
from .fields import named
from .state import MINE, File

_FILES: Final = ("lengths",)  # techniques that read a file, which a page cannot


def operator_options(titles: Mapping[str, str], chosen: str) -> list[dict[str, str]]:
    """Operators by what they are called; of those called alike the one that is chosen, else the first."""
    named = {titles[chosen]: chosen} if chosen else {}
    for name, title in titles.items():
        named.setdefault(title, name)
    return [{"label": title, "value": named[title]} for title in dict.fromkeys(titles.values())]


def technique_options() -> list[dict[str, Any]]:
    """Techniques to choose from, found by their names and by what they do."""
    return [
        {
            "label": html.Span([name, html.Span(f" {about}", className="soft")], title=about),
            "value": name,
            "search": f"{name} {about}",
        }
        for name, kind in techniques().items()
        if name not in _FILES
        for about in [_unmarked(describe(kind)["summary"])]
    ]


def known_of(texts: Iterable[str]) -> list[Component]:
    """What there is to know of techniques: what they do, and their parameters."""
    known = techniques()
    return [
        html.Details([
            html.Summary(html.Code(name)), html.P(_unmarked(about["summary"])),
            html.Ul([
                html.Li([html.Code(one["name"]), f" {_unmarked(one['about'])}", *_limits(one)])
                for one in about["parameters"]
            ]),
        ])
        for name in named(texts) if name in known
        for about in [describe(known[name])]
    ]  # fmt: skip


def _unmarked(text: str) -> str:
    """Without the marks of code."""
    return text.replace("`", "")


def _limits(parameter: dict[str, Any]) -> list[str]:
    given = "must be given" if parameter["required"] else f"{parameter['default']} if not given"
    told = [given] if parameter["required"] or parameter["default"] not in (None, "") else []
    return [f" ({'; '.join(filter(None, (parameter['limits'], *told)))})"] if told or parameter["limits"] else []


def model_options(files: Iterable[File]) -> list[dict[str, str]]:
    """Models to choose from, the user's own first; found by their titles and by their names."""
    own = [{"label": f"{file.name} (yours)", "value": f"{MINE}{file.name}"} for file in files if file.is_model]
    return own + [
        {
            "label": f"{title} \N{MIDDLE DOT} {_billions(parameters)}",
            "value": name,
            "search": f"{name} {title}",
        }
        for name, (title, parameters) in model_catalogue().items()
    ]


def device_options(files: Iterable[File]) -> list[dict[str, str]]:
    own = [{"label": f"{file.name} (yours)", "value": f"{MINE}{file.name}"} for file in files if not file.is_model]
    return own + [
        {
            "label": f"{device.title} \N{MIDDLE DOT} {si(device.bandwidth())}B/s",
            "value": name,
            "search": f"{name} {device.title} {' '.join(device.aliases)}",
        }
        for name, device in hardware_catalogue().items()
    ]


def _billions(parameters: int) -> str:
    """As the field has it: 70.6B, 124M."""
    return si(parameters).replace(" ", "").replace("G", "B")


def number_rows(devices: Iterable[tuple[str, Hardware]]) -> list[dict[str, str]]:
    """Every number of some devices, as their files have it, with its source; first those that most depends on."""
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
