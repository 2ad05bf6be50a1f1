"""`llmviewer kernel`: one kernel by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from ..errors import InputError
from ..options import KernelOptions
from . import inputs
from . import options as shared

_FORMATS: Final = {".txt": "text", ".json": "json", ".csv": "csv"}
_QUANT: Final = "Formats of weights, activations and cache: W4A16g128, fp8, KV8. 16 bits if not given."


@click.command()
@click.argument("name", metavar="[KERNEL]", required=False)
@click.argument("hardware", metavar="[HARDWARE,...]", required=False)
@click.argument("sizes", metavar="[SIZE=VALUES]...", nargs=-1)
@click.option(
    "--measured",
    metavar="TIME",
    help="Measured time of your kernel, such as '31.5 us': rates it against bound and expected time.",
)
@inputs.declared_options(KernelOptions, quant={"callback": shared.nonempty, "help": _QUANT})
@shared.report_format(tuple(_FORMATS.values()))
@shared.output(subject="the estimates")
def kernel(
    name: str | None,
    hardware: str | None,
    sizes: tuple[str, ...],
    *,
    options: KernelOptions,
    measured: str | None,
    form: str | None,
    output: Path | None,
) -> None:
    """Give the bound and the expected time of one kernel.

    For example: `kernel gemm h100-sxm M=1,4096 N=4096 K=14336`. Without arguments it lists kernels and their sizes.
    VALUES are numbers or ranges: 1,16,64 or 1..4096*2.
    """
    from ..reports import one_kernel as report

    form = shared.form_of(form, output, _FORMATS)
    if name is None:
        if output:
            raise InputError(f"kernel needs KERNEL, whose estimates go to {output}; `llmviewer kernel` lists all")
        click.echo(report.render_kinds(shared.width()), nl=False)
        return
    if hardware is None or "=" in hardware:
        raise InputError(f"kernel {name}: needs HARDWARE, and then sizes; `llmviewer kernel` lists them")
    from ..analyzing.one_kernel import kernel as run
    from ..devices.files import changes_by_device

    time_s = _time(measured) if measured is not None else None
    listed: dict[str, Any] = _sizes(name, sizes)
    devices = [device.strip() for device in hardware.split(",")]
    if not all(devices) or len(set(devices)) < len(devices):
        raise InputError(f"HARDWARE must be names with commas between, each once; got {hardware!r}")
    changed = zip(devices, changes_by_device(devices, options["hardware_set"]), strict=True)
    estimates = [
        each for one, changes in changed for each in run(name, one, listed, **options | {"hardware_set": changes})
    ]
    if time_s is not None and len(estimates) > 1:
        raise InputError(f"--measured: needs one device and one combination of sizes; these are {len(estimates)}")
    if time_s is not None and form != "text":
        raise InputError(f"--measured: is rated in text output only; leave {form} out")
    if form == "text":
        shared.emit(report.render_text(estimates, time_s, shared.width(output)), output)
    else:
        shared.emit(report.render_json(estimates) if form == "json" else report.render_csv(estimates), output)


def _sizes(kernel: str, texts: tuple[str, ...]) -> dict[str, list[int]]:
    from ..analyzing.one_kernel import check_sizes
    from ..sweeping.axes import parse_numbers

    values_by_size: dict[str, list[int]] = {}
    for text in texts:
        size, equals, values = text.partition("=")
        if not equals or not size:
            raise InputError(f"{text}: must be SIZE=VALUES, such as M=1,16,64 or M=1..4096*2")
        check_sizes(kernel, [size])
        if size in values_by_size:
            raise InputError(f"{text}: {size} is given twice; give all its values at once")
        values_by_size[size] = parse_numbers(values, where=text)
    return values_by_size


def _time(text: str) -> float:
    from ..units import parse

    try:
        return parse(text, "s")
    except ValueError:
        raise InputError(f"--measured: must be a positive time, such as '31.5 us'; got {text!r}") from None
