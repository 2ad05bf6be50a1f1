"""The named figures of the command line, and how they become files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llmviewer import export
from llmviewer.analysis import analyze
from llmviewer.errors import InputError
from llmviewer.setting import Setting

from . import figures

if TYPE_CHECKING:
    import plotly.graph_objects as go

_IMAGES: Final = (".png", ".svg", ".pdf")
_SIZE: Final = {"width": 1000, "height": 640, "scale": 2}


def draw(
    figure: str,
    *,
    model: str,
    hardware: str,
    quant: str | None,
    attention: str | None,
    accounting: str,
    hardware_set: Sequence[str],
    batch: int,
    prompt: int,
    phase: str,
) -> go.Figure:
    """One of the figures of "LLM Inference Unveiled" (arXiv:2402.16363), for any model and device.

    Figures that compare precisions take those of the paper, or what `quant` lists, separated by semicolons.
    """
    if figure == "roofline":
        found = analyze(
            model, hardware, batch=batch, prompt=prompt, quant=quant, attention=attention, accounting=accounting,
            hardware_set=hardware_set,
        )  # fmt: skip
        return figures.roofline(found, phase)
    setting = Setting.of(model, hardware, attention=attention, accounting=accounting, hardware_set=hardware_set)
    if figure == "dtypes":
        return figures.roofline_dtypes(setting.hardware)
    quants = {"quants": tuple(part.strip() for part in quant.split(";"))} if quant else {}
    if figure == "memory":
        return figures.memory_bars(setting.model, setting.hardware, accounting=accounting, **quants)
    if figure == "decode-time":
        return figures.decode_time(setting.model, setting.hardware, kv_len=prompt, accounting=accounting, **quants)
    return figures.prefill_time(setting.model, setting.hardware, batch=batch, accounting=accounting, **quants)


def write(figure: go.Figure, path: Path) -> None:
    """As one self-contained HTML file, or as an image where kaleido and a browser are at hand.

    Raises InputError for other endings, and where an image cannot be made, saying what is missing.
    """
    if path.suffix == ".html":
        export.write_text(path, figure.to_html(include_plotlyjs=True, full_html=True))
        return
    if path.suffix not in _IMAGES:
        raise InputError(f"{path}: must end in .html, {', '.join(_IMAGES)}")
    try:
        image = figure.to_image(format=path.suffix[1:], **_SIZE)
    except (ValueError, ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path}: images need the extra `images` (pip install 'llmviewer[images]') and a Chrome or Chromium, whose "
            f"path BROWSER_PATH may give; write an .html file instead: {reason}"
        ) from None
    export.write(path, lambda temporary: temporary.write_bytes(image))
