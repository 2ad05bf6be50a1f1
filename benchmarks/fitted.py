"""Results of fits that are not computed again while the rows and the code that they follow from stay the same.

benchmarks/fitted.json has the digest of each computation with its result; that of a profile's fit is the digest of its
entry, so that an entry which was changed since is fitted again. Code is compared without comments, docstrings, imports
and flags.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any

import numpy as np

from llmviewer.expectation import calibrate, profile
from llmviewer.expectation.device import Device
from llmviewer.expectation.profile import KernelFit, plain_entry
from llmviewer.expectation.rows import MeasuredRows

REFIT_OPTION = "--refit"  # option: nothing of earlier runs is used
PATH = Path(__file__).with_name("fitted.json")
_EXPECTATION = Path(calibrate.__file__).parent
_SHARED = ("base", "_cuts", "_routing")  # modules that several families share
_FITTING = ("calibrate.py", "fitting.py", "trend.py", "residual.py", "formats.py")  # what every fit follows from
_ERRORS = ("error_of", "coverage_quantile", "_distance", "_widened", "_log_half_widths", "_percentiles")


class Results:
    """The results of one kind of computation by digest: those of earlier runs, and of this one as they come.

    kind      section of the file
    is_refit  whether nothing of earlier runs is used
    """

    def __init__(self, kind: str, *, is_refit: bool) -> None:
        self._kind = kind
        self.known: dict[str, Any] = {} if is_refit else _file().get(kind, {})

    def replace(self, results: Mapping[str, Any]) -> None:
        """Keeps these results only."""
        self.known = dict(results)
        text = json.dumps(_file() | {self._kind: self.known}, indent=0, sort_keys=True)
        PATH.write_text(text + "\n", encoding="utf-8")

    def starmap(
        self, pool: Pool, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], digests: Sequence[str]
    ) -> list[Any]:
        """Results of a function, which must be plain values, for each tuple of arguments."""
        missing = [place for place, digest in enumerate(digests) if digest not in self.known]
        calls = ((function, arguments[place]) for place in missing)
        for place, result in zip(missing, pool.imap(_called, calls), strict=True):
            self.replace({**self.known, digests[place]: result})
            print(f"{self._kind}: {place + 1} of {len(digests)}", file=sys.stderr, flush=True)
        self.replace({digest: self.known[digest] for digest in digests})
        return [self.known[digest] for digest in digests]


def _file() -> dict[str, Any]:
    """Results by kind and digest, as they were last written."""
    found: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    return found


def digest_of(rows: MeasuredRows, *others: object) -> str:
    """Digest of what a fit to rows follows from: values, device, code of fits and of the family, and `others`."""
    named = (rows.family.name, repr(rows.implementation), rows.version, *_device(rows.device), *map(repr, others))
    result = hashlib.sha256("\n".join((*named, _code(sys.modules[type(rows.family).__module__].__file__))).encode())
    for values in (rows.measured, *(rows.shapes[name] for name in sorted(rows.shapes))):
        result.update(np.ascontiguousarray(values, dtype=float).tobytes())
    return result.hexdigest()[:16]


def digest_of_entry(fit: KernelFit) -> str:
    """Digest of a fit as its profile has it, without the error that it may borrow from others."""
    entry = {key: value for key, value in plain_entry(fit).items() if key != "held_out" or not fit.shape_families}
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:16]


def _called(call: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    function, arguments = call
    return function(*arguments)


@cache
def _device(device: Device) -> tuple[str, ...]:
    """The numbers of a device that times depend on."""
    numbers = {field.name: getattr(device, field.name) for field in fields(device) if field.name != "hardware"}
    rates = {str(resource): rate for resource, rate in device.hardware.rates.items()}
    return repr(sorted(numbers.items())), repr(sorted(rates.items()))


@cache
def _code(family: str) -> str:
    """Digest of the code of fits and of a family, whose file this is."""
    paths = [_EXPECTATION / name for name in _FITTING]
    paths += [Path(family), *(path for path in sorted(Path(family).parent.glob("*.py")) if path.stem in _SHARED)]
    texts = [path.read_text(encoding="utf-8") for path in paths]
    texts += [inspect.getsource(getattr(profile, name)) for name in _ERRORS]
    return hashlib.sha256("\n".join(map(_statements, texts)).encode()).hexdigest()


def _statements(text: str) -> str:
    """Code without comments, docstrings and imports, and without flags of families, which only transfers read."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.Module | ast.ClassDef):
            node.body = [one for one in node.body if not (_is_flag(one) or _is_import(one))] or [ast.Pass()]
    return ast.unparse(tree)


def _is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _is_flag(statement: ast.stmt) -> bool:
    """Whether a statement only gives a name True or False."""
    is_assignment = isinstance(statement, ast.Assign | ast.AnnAssign)
    return is_assignment and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, bool)
