"""Every kernel: it computes what its reference does in Triton's interpreter, and counts what was counted by hand.

test_kernels_aot.py compiles the first full-size case of each for Hopper; other files test what is particular to some.
"""

from importlib import import_module
from pkgutil import iter_modules

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from llmviewer import kernels
from llmviewer.errors import InputError
from llmviewer.kernels import kernel_names, load_kernel

from .kernel_checks import NEW, cases, check, counted, equals_reference, first_is_fast, named, run_of
from .kernel_counts import COUNTS

# Kernels whose alternatives no other file tests.
TILED = (
    "norm_quantize",
    "rms_norm",
    "permute",
    "combine",
    "sparse_indexer",
    "mamba2_scan",
    "gated_delta_scan",
    "gemm_nvfp4",
)


@pytest.mark.parametrize(("name", "one"), first_is_fast(cases()), ids=named)
def test_kernel_output_equals_its_reference(name, one, monkeypatch):
    check(name, one, monkeypatch)


@pytest.mark.parametrize("name", TILED, ids=named)
@pytest.mark.slow("several tilings in Triton's interpreter")
def test_alternative_tilings_give_what_the_reference_does(name, monkeypatch):
    kernel = load_kernel(name)
    one = max(kernel.cases, key=lambda case: len(kernel.tilings(NEW, case)))
    tilings = kernel.tilings(NEW, one)
    assert len(set(tilings)) == len(tilings) > 0
    inputs = kernel.make(one, "cpu", 0)
    plans = [kernel.plan(NEW, **inputs, tile=tiling) for tiling in tilings]
    for plan in {
        repr(run_of(plan)): plan for plan in plans
    }.values():  # warps and stages are nothing to the interpreter
        equals_reference(kernel, one, plan, kernel.reference(**inputs), monkeypatch)


@pytest.mark.parametrize(("name", "one", "wanted"), COUNTS, ids=named)
def test_kernel_operator_counts_equal_hand_counts(name, one, wanted):
    assert counted(load_kernel(name), one) == [pytest.approx(each) for each in wanted]


def test_every_kernel_has_a_name_and_all_its_cases():
    modules = (import_module(f"{kernels.__name__}.{one.name}") for one in iter_modules(kernels.__path__))
    found = [one for module in modules for one in getattr(module, "KERNELS", ())]
    assert sorted(one.name for one in found) == sorted(kernel_names()), "kernels/__init__.py lists each kernel"
    assert all(load_kernel(name).name == name for name in kernel_names())
    assert not [one.name for one in found if not one.cases], "cases: sizes for the interpreter"
    assert not [one.name for one in found if not one.full_size], "full_size: sizes to compile and to time"
    assert {name for name, *_ in COUNTS} == set(kernel_names()), "tests/kernel_counts.py has a count of each kernel"


def test_an_unknown_kernel_is_refused():
    with pytest.raises(InputError, match=r"^kernel must be one of copy, triad, .*; got 'nothing'$"):
        load_kernel("nothing")
