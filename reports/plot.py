"""The figures of `llmviewer plot`, and their files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

from llmviewer import writing
from llmviewer.analyzing.analysis import analyze
from llmviewer.arguments import check_unique, with_defaults
from llmviewer.errors import InputError
from llmviewer.options import CountedOptions, FigureArguments, FigureOptions, only
from llmviewer.setting import Setting, whole_number

from . import figures
from .page import figure_page

if TYPE_CHECKING:
    import plotly.graph_objects as go

_IMAGES: Final = (".png", ".svg", ".pdf")
_SIZE: Final = {"width": 1000, "height": 640, "scale": 2}


def draw(
    figure: str,
    *,
    model: str,
    hardware: str,
    phase: str,
    **options: Unpack[FigureArguments],
) -> go.Figure:
    """A figure of "LLM Inference Unveiled" (arXiv:2402.16363), for any model and device.

    quant  of figures that compare precisions: schemes separated by semicolons; those of the paper if not given
    """
    if figure == "roofline":
        return figures.roofline(analyze(model, hardware, **options), phase)
    one = Setting.of(model, hardware, **only(options, FigureOptions) | {"quant": None})
    if figure == "dtypes":
        return figures.roofline_dtypes(one.hardware)
    all_options = with_defaults(options, FigureArguments)
    quant = all_options["quant"]
    counted = only(options, CountedOptions)
    batch, prompt = (whole_number(name, all_options[name]) for name in ("batch", "prompt"))
    quants = _listed(quant) if quant else None
    if figure == "memory":
        return figures.memory_bars(one.model, one.hardware, quants=quants, **counted)
    if figure == "decode-time":
        return figures.decode_time(one.model, one.hardware, quants=quants, kv_len=prompt, **counted)
    return figures.prefill_time(one.model, one.hardware, quants=quants, batch=batch, **counted)


def _listed(quants: str) -> list[str]:
    """The precisions of a list.

    Raises InputError if one is empty or listed twice.
    """
    names = [part.strip() for part in quants.split(";")]
    if not all(names):
        raise InputError(f"--quant must be precisions with a semicolon between any two, W16A16;W4A16; got {quants!r}")
    check_unique("--quant", names)
    return names


def write(figure: go.Figure, path: Path) -> None:
    """Writes a self-contained HTML file, or an image if kaleido and a browser are installed.

    Raises InputError for other endings, and if an image cannot be made.
    """
    if path.suffix == ".html":
        writing.write_text(path, figure_page(figure))
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
    writing.write(path, lambda temporary: temporary.write_bytes(image))
