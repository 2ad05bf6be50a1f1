"""The part of a fit's residuals that is smooth over shapes."""

from dataclasses import replace

import numpy as np
import pytest

from llmviewer.errors import InputError
from llmviewer.expectation.calibrate import fit_kernel
from llmviewer.expectation.device import find_device
from llmviewer.expectation.families import FAMILIES, Implementation
from llmviewer.expectation.profile import Profile, read, shipped, to_yaml, transfer_errors
from llmviewer.expectation.rows import MeasuredRows
from llmviewer.expectation.transfer import expect, is_sibling, select_fits
from llmviewer.expectation.trend import Trend, trend_of

H100, GEMM = find_device("h100-sxm"), FAMILIES["gemm"]
STACK = Implementation(library="mine", dtype="bf16")


def products(count=1500, seed=4, *, most=14):
    """Shapes at random."""
    random = np.random.default_rng(seed)
    exponents = random.uniform((0, 8, 8), (most, 15, 14), (count, 3))
    columns = dict(zip(("M", "N", "K"), np.round(2.0**exponents.T), strict=True))
    return {**columns, "batch": np.ones(count), "loop": random.integers(0, 3, count) * 1.0, "private": np.zeros(count)}


def wave(columns):
    """A factor that is smooth over shapes."""
    return np.exp(0.2 * np.sin(np.log2(columns["M"]) / 2) - 0.1 * np.cos(np.log2(columns["N"] * columns["K"]) / 3))


def rows(columns, measured):
    return MeasuredRows(
        family=GEMM,
        device=H100,
        implementation=STACK,
        version="1",
        places=np.arange(len(measured)),
        shapes=columns,
        measured=measured,
    )


def exact(columns):
    features = GEMM.features(columns, H100, STACK, GEMM.variants[0])
    return GEMM.seconds(GEMM.default_parameters(STACK, H100), features)


def off(trend, columns):
    return np.mean(np.abs(np.exp(trend.change(GEMM, columns)) / wave(columns) - 1))


def test_trend_interpolates_smooth_errors_between_shapes():
    columns, others = products(), products(seed=5)
    trend = trend_of(GEMM, columns, wave(columns))
    assert trend.columns == ("M", "N", "K")  # not how it was measured
    assert len(trend.rows) == 256
    assert np.mean(np.abs(wave(others) - 1)) > 0.1
    assert off(trend, others) < 0.02


def test_outlier_rows_do_not_change_the_trend():
    columns, others = products(), products(seed=5)
    spoilt = np.where(np.arange(len(columns["M"])) % 20 == 0, 5.0, 1.0)
    assert off(trend_of(GEMM, columns, wave(columns) * spoilt), others) < 0.03


def test_trend_vanishes_far_from_measured_shapes():
    columns = products()
    trend = trend_of(GEMM, columns, 1.3 * wave(columns))
    changes = [np.abs(trend.change(GEMM, {**columns, "M": columns["M"] * 2.0**n})).max() for n in (0, 20, 30)]
    assert changes[0] > 0.3
    assert changes[1] < 0.05
    assert changes[2] < 1e-6


def test_trend_of_a_shape_does_not_depend_on_the_other_shapes_of_the_call():
    columns = products(300)
    trend = trend_of(GEMM, columns, wave(columns))
    whole = trend.change(GEMM, columns)
    for start, end in ((0, 1), (7, 9), (100, 300)):
        alone = trend.change(GEMM, {name: column[start:end] for name, column in columns.items()})
        assert np.array_equal(alone, whole[start:end])


def test_shapes_are_those_of_one_device():
    moe = FAMILIES["moe"]
    whole = {"tokens": 64, "hidden": 4096, "inter": 1536, "topk": 8, "experts": 128, "gated": 1, "skew": 0}
    columns = {name: np.full(2, float(size)) for name, size in whole.items()}
    columns["inter"] = np.array([1536.0, 768.0])
    trend = trend_of(moe, columns, np.array([1.0, 1.2]))
    assert trend.columns == ("inter",)
    cut = {**columns, "inter": columns["inter"] * 4, "tp": np.full(2, 4.0)}
    assert trend.change(moe, cut).tolist() == trend.change(moe, columns).tolist()


def test_rows_of_one_shape_have_no_trend():
    assert (
        trend_of(GEMM, {**{n: np.full(3, 64.0) for n in ("M", "N", "K")}, "loop": np.arange(3.0)}, np.ones(3)) is None
    )


@pytest.mark.slow("fits many rows")
def test_trend_is_kept_when_it_predicts_held_out_rows():
    pytest.importorskip("scipy")
    columns = products(400)
    noise = np.exp(np.random.default_rng(6).normal(0, 0.03, 400))
    plain, bent = (fit_kernel(rows(columns, exact(columns) * noise * f)) for f in (1.0, wave(columns)))
    assert plain.trend is None
    assert isinstance(bent.trend, Trend)
    others = products(seed=5)
    times = exact(others) * wave(others)
    error, without = (
        np.mean(np.abs(expect("gemm", others, H100, STACK, [e]).expected / times - 1))
        for e in (bent, replace(bent, trend=None))
    )
    assert error < 0.04 < without
    assert bent.held_out.mape < 0.06
    assert bent.fit_mape < 0.05
    few = fit_kernel(rows({n: c[:39] for n, c in columns.items()}, (exact(columns) * wave(columns))[:39]))
    assert few.trend is None


def test_trend_survives_a_profile_round_trip(tmp_path):
    pytest.importorskip("scipy")
    columns = products(300)
    own = fit_kernel(rows(columns, exact(columns) * wave(columns)))
    path = tmp_path / "profile.yaml"
    path.write_text(to_yaml([Profile(device="h100-sxm", library="mine", sources=(), fits=(own,))]))
    ((again,),) = (profile.fits for profile in read(path))
    assert again.trend == own.trend
    text = path.read_text()
    for old, new, problem in (
        ("columns: [M, N, K]", "columns: [M, loop, K]", "columns: must be some of M, N, K, batch; got M, loop, K"),
        ("nodes: ", "nodes: 1 2 3; ", "nodes: must be M, N, K and a weight of each; got '1 2 3'"),
        ("nodes: ", "nodes: 1 2 -3 4; ", "nodes: must be M, N, K and a weight of each; got '1 2 -3 4'"),
        ("nodes: ", "nodes: 1 2 3 nan; ", "nodes: must be M, N, K and a weight of each; got '1 2 3 nan'"),
        ("nodes: ", "nodes: a 2 3 4; ", "nodes: must be M, N, K and a weight of each; got 'a 2 3 4'"),
        ("nodes: ", "node: ", "unknown"),
    ):
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(InputError, match=rf"{path}: entries\[0\]\.trend") as error:
            read(path)
        assert problem in str(error.value)


def test_trend_applies_to_sibling_devices_only():
    kernel_fit = replace(
        next(e for e in shipped() if e.family == "gemm" and e.trend and e.device == "h100-sxm"), implementation=STACK
    )
    columns = products()
    change = np.exp(kernel_fit.trend.change(GEMM, columns))
    for name, same in (("h200-sxm", True), ("b200", False)):
        bent, plain = (
            expect("gemm", columns, find_device(name), STACK, [e])
            for e in (kernel_fit, replace(kernel_fit, trend=None))
        )
        assert bent.source == "transferred from h100-sxm mine"
        free = (bent.expected > bent.bound) & (plain.expected > plain.bound)
        assert np.count_nonzero(free) > 1000
        assert bent.expected[free] == pytest.approx(plain.expected[free] * (change[free] if same else 1.0))


def test_siblings_run_the_same_kernels():
    products = {e.device: e for e in shipped() if e.family == "gemm"}
    hopper, blackwell = products["h100-sxm"], products["b200"]
    assert all(is_sibling(hopper, find_device(name)) for name in ("h200-sxm", "h20-sxm", "gh200"))
    assert all(
        is_sibling(blackwell, find_device(name)) for name in ("gb200", "b300")
    )  # compute capabilities 10.0 and 10.3
    assert not any(is_sibling(blackwell, find_device(name)) for name in ("rtx-5090", "h100-sxm", "mi300x"))
    sums = next(e for e in shipped() if e.family == "collectives" and e.device == "l40s")
    assert not is_sibling(sums, find_device("rtx-4090"))  # over another host


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.generation_dependent])
def test_siblings_are_surer_than_others(name):
    near, far = (transfer_errors()[name, "all", near] for near in ("siblings", "same maker"))
    assert far.mape > near.mape
    assert far.long[1] / far.long[0] > near.long[1] / near.long[0]


def test_intervals_are_of_devices_as_near():
    own = next(e for e in shipped() if e.family == "attention_decode" and e.device == "a100-sxm-80gb")
    found = {
        name: select_fits("attention_decode", find_device(name), own.implementation, [own]).error
        for name in ("l40s", "mi300x")
    }
    assert (
        found["l40s"]
        == transfer_errors()[
            "attention_decode", own.implementation.attention_kind or own.implementation.dtype, "same maker"
        ]
    )
    assert found["mi300x"] == transfer_errors()["attention_decode", "all", "others"]


@pytest.mark.parametrize("name", FAMILIES)
def test_cross_vendor_intervals_are_a_power_of_same_vendor_ones(name):
    within, across = (transfer_errors()[name, "all", near] for near in ("same maker", "others"))
    powers = np.log([*across.short, *across.long]) / np.log([*within.short, *within.long])
    assert powers == pytest.approx(powers[0], rel=5e-3)  # of four digits
    assert 1.5 < powers[0] < 5
