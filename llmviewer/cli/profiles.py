"""`llmviewer profiles`: measured kernel libraries, and the errors of their fits on held-out shapes."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from ..errors import InputError, suggest
from . import options as shared

if TYPE_CHECKING:
    from ..expectation.profile import KernelFit, Profile

_HEAD: Final = ("device", "library", "family", "dtype", "rows", "error", "<20us")
_LEGEND: Final = (
    "rows: measurements of the fit. error: mean error of expected times on held-out shapes; <20us: that of kernels "
    "under 20 us. bf16/fp8: data types of queries and KV cache."
)
_LEFT_ALIGNED: Final = (0, 1, 2, 3)


@click.command()
@click.argument("name", required=False)
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", show_default=True)
def profiles(name: str | None, form: str) -> None:
    """List measured kernel libraries and their errors.

    Lists all fits, or those of NAME, a device or a library, by family and data type.
    """
    from ..devices.files import hardware_names, load_hardware
    from ..expectation.profile import profiles as every
    from ..reports.tables import filled

    matches = list(every())
    if name:
        known_names = {p.device for p in matches} | {p.library for p in matches}
        is_device = name not in known_names and _is_device(name)
        query = load_hardware(name).name if is_device else name
        if is_device and query not in known_names:
            raise InputError(
                f"no kernels were measured on {query}: expected times there are transferred from other devices"
            )
        if query not in known_names:
            names = [n for n in hardware_names() if n in known_names] + sorted(known_names - set(hardware_names()))
            raise InputError(f"no profile of a device or a library {name!r}; {suggest(name, names)}")
        matches = [p for p in matches if query in (p.device, p.library)]
    fits = [(profile, fit) for profile in matches for fit in profile.fits]
    if form == "json":
        click.echo(json.dumps([_document(*each) for each in fits], indent=2))
        return
    click.echo(_table(fits), nl=False)
    click.echo(filled(_LEGEND, shared.width()))
    sources = dict.fromkeys(source for profile in matches for source in profile.sources)
    lines = (filled(source, shared.width(), first="  ", others="    ") for source in sources)
    click.echo("\n".join(("", "Measured by:", *lines)))


def _is_device(name: str) -> bool:
    from ..devices.files import load_hardware

    try:
        load_hardware(name)
    except InputError:
        return False
    return True


def _document(profile: Profile, fit: KernelFit) -> dict[str, Any]:
    from ..analyzing.facts import finite
    from ..expectation.trend import plain

    return {
        "device": fit.device,
        "library": fit.implementation.library,
        "family": fit.family,
        "dtype": fit.implementation.dtype,
        "kv_dtype": fit.implementation.kv_dtype,
        "kernel": fit.implementation.kernel,
        "version": fit.version,
        "rows": fit.rows,
        "held_out": finite(asdict(fit.held_out)),
        "parameters": dict(fit.parameters),
        "trend": plain(fit.trend) if fit.trend else None,
        "source": list(profile.sources),
    }


def _table(fits: list[tuple[Profile, KernelFit]]) -> str:
    """Lines by family and data type, of the kernel with most rows; the data type of a KV cache comes second."""
    from ..reports.columns import columns

    best: dict[tuple[str, ...], KernelFit] = {}
    for _, e in fits:
        dtype = "/".join(filter(None, (e.implementation.dtype, e.implementation.kv_dtype)))
        key = (e.device, e.implementation.library, e.family.removeprefix("attention_"), dtype)
        if key not in best or e.rows > best[key].rows:
            best[key] = e
    lines = [(*key, str(e.rows), *map(_percent, (e.held_out.mape, e.held_out.mape_short))) for key, e in best.items()]
    return columns([_HEAD, *lines], left=_LEFT_ALIGNED, gap=" ")


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{share:.1%}"
