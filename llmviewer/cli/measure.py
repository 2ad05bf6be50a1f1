"""`llmviewer measure`: this machine's ceilings and kernels, as rows that calibrate and validate read."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ..errors import InputError
from ..units import counted
from . import options as shared
from .progress import Ticker

if TYPE_CHECKING:
    from ..measuring.session import Session

_BACKENDS: Final = ("auto", "triton", "torch", "cpu")
_DISTURBED: Final = 0.05
_IMPLEMENTATION_COLUMNS: Final = ("family", "framework", "dtype", "kv_dtype", "attn", "kernel", "op")
_WIDTH: Final = 79
_BAR: Final = 20


@click.command()
@click.option(
    "--backend", type=click.Choice(_BACKENDS), default="auto", show_default=True,
    help="Kernels to measure. triton: of this package and of torch; torch: of torch on a GPU; cpu: of "
    "torch on the CPU; auto: on the GPU if there is one.",
)  # fmt: skip
@click.option(
    "--model", "models", multiple=True, metavar="NAME",
    help="A model whose shapes are measured. May be repeated. If not given, a few of several kinds.",
)  # fmt: skip
@click.option("--minutes", type=shared.NUMBER, default=5, show_default=True, help="Stop after this many minutes.")
@click.option("--family", metavar="NAMES", help="Only these families: gemm, attention, moe, scan, elementwise.")
@click.option(
    "--dtype", metavar="NAMES", help="Only these data types, such as bf16,fp8,int4_wo (`llmviewer docs measurements`)."
)
@click.option(
    "--tune/--no-tune", default=True, show_default=True,
    help="Try a few tilings of each Triton kernel, for half of the time at most, and measure the fastest.",
)  # fmt: skip
@click.option(
    "--hardware",
    metavar="NAME|FILE",
    help="Name or file of the device, to override detection.",
)
@click.option("--format", "form", type=click.Choice(("parquet", "csv")), default="parquet", show_default=True)
@click.option(
    "-o", "--output", type=shared.PATH, metavar="DIR", default="measured", show_default=True,
    help="Folder of the results; existing measurements are not repeated.",
)  # fmt: skip
def measure(
    *,
    backend: str,
    models: tuple[str, ...],
    minutes: float,
    family: str | None,
    dtype: str | None,
    tune: bool,
    hardware: str | None,
    form: str,
    output: Path,
) -> None:
    """Measure this machine's bandwidths, matrix rates and kernels.

    Kernels are measured at the shapes of models, the most informative first (`llmviewer docs measuring`). Rows go to a
    folder, one table per family, for `llmviewer calibrate` and `llmviewer validate`. A run that was stopped or killed
    resumes in the same folder.
    """
    start = time.monotonic()
    from ..measuring.journal import Journal
    from ..measuring.machine import this_machine
    from ..measuring.session import DTYPES, MODELS, Session, backends, header, select_problems

    if not 0.05 <= minutes <= 1440:
        raise InputError(f"--minutes must be from 0.05 to 1440; got {minutes:g}")
    if output.exists() and not output.is_dir():
        raise InputError(f"-o {output}: must be a folder, for a table of each family and what was measured so far")
    families = _families(family)
    kind, libraries = backends(backend)
    dtypes = _dtypes(dtype)
    problems = select_problems(libraries, models or MODELS[kind], families, dtypes or DTYPES[kind], every=bool(dtypes))
    machine = this_machine(kind, hardware)
    journal = Journal(output, header(machine, libraries))
    before = len(journal.rows)
    session = Session(
        machine=machine, backends=libraries, journal=journal, seconds=minutes * 60, tune=tune, start=start
    )
    progress = _MeasureProgress(session)
    versions = ", ".join(f"{name} {version}" for name, version in header(machine, libraries)["versions"].items())
    click.echo(f"{machine.title}: {versions}", err=True)
    existing = f", which has {counted(before, 'row')}" if before else ""
    plan = (
        f"Up to {minutes:g} min: ceilings, then kernels at shapes of {', '.join(models or MODELS[kind])}. "
        f"Rows go to {output}{existing}. Ctrl-C stops; the same command resumes."
    )
    click.echo(click.wrap_text(plan, shared.width()), err=True)
    stopped = False
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time limit of the system's is an interrupt, too
        session.measure_ceilings(progress)
        if not session.broken:
            session.measure_kernels(problems, progress)
    except KeyboardInterrupt:
        stopped = True
    progress.end()
    _report(session, form, before)
    if session.hung:
        sys.stdout.flush()
        os._exit(1)  # any other end waits for the device
    if stopped:
        raise KeyboardInterrupt("the same command resumes")


def _report(session: Session, form: str, before: int) -> None:
    """Prints results, also to report.md, then problems of the run, and the commands to continue with."""
    from ..devices.files import load_hardware
    from ..measuring.session import header
    from ..measuring.summary import ceilings_text, goals, goals_text, kernels_text, report
    from ..writing import write_text

    journal, machine, folder = session.journal, session.machine, session.journal.folder
    parts = {}
    if journal.complete:
        session.judge()
        datasheet = {} if machine.document else load_hardware(machine.hardware).numbers
        parts["Ceilings"] = ceilings_text(journal.ceilings, datasheet, session.rates)
    if journal.rows:
        parts["Kernels"] = kernels_text(journal.rows)
    if any(row["framework"] == "triton" for row in journal.rows):
        parts["Targets of the kernels"] = goals_text(goals(journal.rows, journal.ceilings, machine.cache))
    for text in parts.values():
        click.echo(text)
    paths = journal.tables(f".{form}")  # a full disk takes no more than these
    versions = header(machine, session.backends)["versions"] | ({"driver": machine.driver} if machine.driver else {})
    if parts:
        last = max((row["date"][:10] for row in journal.rows), default="")
        write_text(folder / "report.md", report(f"{machine.title} {last}".rstrip(), versions, parts))
    new = f"{folder}: {counted(len(journal.rows), 'row')}, {len(journal.rows) - before} of them new"
    threads = versions.get("threads")
    for line in (*_troubles(session, threads), new, *_next(session, form, tables=bool(paths))):
        click.echo(line)


def _troubles(session: Session, threads: str | None) -> Iterator[str]:
    """Lines on skipped launches, with the reasons."""
    journal = session.journal
    disturbed = sum(row["disturbed"] for row in journal.rows) / max(len(journal.rows), 1)
    if disturbed > _DISTURBED:
        yield f"Other programs disturbed {disturbed:.0%} of the launches; these do not count."
    if session.put_off:
        fewer = ", or with one thread (OMP_NUM_THREADS=1)" if threads != "1" else ""
        yield (
            f"{counted(session.put_off, 'launch', 'launches')} postponed as other programs use the cores: measure\n"
            f"again when they are done{fewer}"
        )
    for reason, count in session.left_out.items():
        yield f"{counted(count, 'launch', 'launches')} skipped: {reason}"
    for reason, count in session.unfit.items():
        yield f"{counted(count, 'tiling')} skipped: {reason}"
    if session.broken:
        next_step = "goes on without it" if journal.complete else "measures the ceilings again"
        yield f"The device became unusable after {session.broken}:\nthe same command {next_step}"


def _next(session: Session, form: str, *, tables: bool) -> Iterator[str]:
    """Lines with missing rows and the commands that continue from `tables`, if there are any."""
    from ..expectation.calibrate import MIN_ROWS

    machine, folder = session.machine, session.journal.folder
    kinds = Counter(tuple(str(row.get(name)) for name in _IMPLEMENTATION_COLUMNS) for row in session.journal.rows)
    fullest = max(kinds.values(), default=0)
    if not tables:
        return
    files, profile = f"{folder}/*.{form}", f"{folder}/profile.yaml"
    commands = [f"calibrate {files} -o {profile}", f"validate {files} --profile {profile}"]
    commands += [f"analyze MODEL {machine.name} --profile {profile}"]
    if fullest < MIN_ROWS:
        yield (
            f"calibrate needs {MIN_ROWS} rows of one kernel and data type; the largest has {fullest}:\n"
            "the same command adds more"
        )
        commands = [f"validate {files}"]
    hardware_folder = folder / "hardware" if machine.document else machine.folder
    path = f"LLMVIEWER_HARDWARE_PATH={hardware_folder} " if hardware_folder else ""
    yield "\n".join(["Next:", *(f"  {path}llmviewer {command}" for command in commands)])


def _families(text: str | None) -> tuple[str, ...]:
    every = {
        "gemm": ("gemm",), "attention": ("attention_prefill", "attention_decode"), "moe": ("moe",),
        "scan": ("scan",), "elementwise": ("elementwise",), "attention_prefill": ("attention_prefill",),
        "attention_decode": ("attention_decode",),
    }  # fmt: skip
    names = _names(text) or tuple(every)
    for name in names:
        if name not in every:
            raise InputError(f"--family must be some of {', '.join(every)}; got {name!r}")
    return tuple(dict.fromkeys(one for name in names for one in every[name]))


def _dtypes(text: str | None) -> tuple[str, ...]:
    from ..expectation.formats import kernel_type

    for name in _names(text):
        try:
            kernel_type(name)
        except InputError as error:
            raise InputError(f"--{error}") from None
    return _names(text)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


class _MeasureProgress:
    """Says how far a run is."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ticker = Ticker()

    def __call__(self, step: str) -> None:
        if not self._ticker.due():
            return
        part = min(self._session.elapsed / self._session.seconds, 1)
        bar = f"[{'#' * round(_BAR * part):<{_BAR}}] " if self._ticker.live else ""
        self._ticker.print(f"{bar}{part:.0%}, {counted(len(self._session.journal.rows), 'row')}; {step}"[:_WIDTH])

    def end(self) -> None:
        if self._ticker.live:
            click.echo("\r\x1b[K", err=True, nl=False)
