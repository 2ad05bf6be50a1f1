"""Fits to one or two shape families: error on other shapes, profile entries and source labels."""

from dataclasses import replace

import numpy as np
import pytest

from llmviewer.expectation import calibrate
from llmviewer.expectation.calibrate import fit_kernel
from llmviewer.expectation.device import find_device
from llmviewer.expectation.families import FAMILIES, Implementation
from llmviewer.expectation.index import index
from llmviewer.expectation.profile import FEW_SHAPES, Profile, read, shipped, to_yaml
from llmviewer.expectation.rows import MeasuredRows
from llmviewer.expectation.transfer import few_shapes_error, select_fits

H100 = find_device("h100-sxm")
FAMILY = FAMILIES["moe"]
MINE = Implementation(library="mine", dtype="bf16", kernel="mine_moe")


def rows_of(inner):
    """Rows of experts with these widths, as slow as the family's defaults with noise of 2 %."""
    random = np.random.default_rng(0)
    tokens = np.tile(2.0 ** np.arange(12), len(inner) * 3)
    columns = {name: np.full(len(tokens), value) for name, value in FAMILY.optional.items()}
    columns |= {"tokens": tokens, "inter": np.repeat(np.asarray(inner, dtype=float), 36)}
    columns |= {
        name: np.full(len(tokens), size) for name, size in (("hidden", 4096.0), ("topk", 8.0), ("experts", 64.0))
    }
    features = FAMILY.features(columns, H100, MINE, "")
    times = FAMILY.seconds(FAMILY.default_parameters(MINE, H100), features)
    return MeasuredRows(
        family=FAMILY,
        device=H100,
        implementation=MINE,
        version="",
        places=np.arange(len(tokens)),
        shapes=columns,
        measured=times * np.exp(random.normal(0, 0.02, len(tokens))),
    )


@pytest.mark.parametrize(("inner", "few"), [((1024,), 1), ((1024, 2048), 2), ((1024, 2048, 4096), 0)])
def test_the_error_of_few_shapes_is_that_of_like_kernels(inner, few):
    pytest.importorskip("scipy")
    fit = fit_kernel(rows_of(inner))
    assert fit.shape_families == few
    borrowed = index().errors.get(("moe", "all", FEW_SHAPES.get(few, "")))
    assert (fit.held_out == borrowed) == bool(few)
    assert fit.held_out.mape < 0.05 or few  # these rows themselves would say 2 %


def test_two_families_are_left_out_in_turn():
    rows = rows_of((1024, 2048))
    _, fold = calibrate._shuffled(rows, 0)
    assert {(family, part) for family, part in zip(rows.shapes["inter"], fold, strict=True)} in (
        {(1024.0, 0), (2048.0, 1)},
        {(1024.0, 1), (2048.0, 0)},
    )


def test_few_shapes_error_defaults_to_the_held_out_error():
    own = shipped()[0].held_out
    assert few_shapes_error("no such family", 1, own) is own


def test_operators_measured_with_few_shapes_have_the_error_of_like_kernels():
    few = [fit for fit in index().fits if fit.family in ("scan", "attention_layer") and fit.shape_families]
    assert {fit.family for fit in few} == {"scan", "attention_layer"}
    for fit in few:
        assert fit.held_out == index().errors[fit.family, "all", FEW_SHAPES[fit.shape_families]]
    wide = index().errors["attention_layer", "all", "one shape family"].long
    assert wide[1] / wide[0] > 1.5  # rows held out at random within one family said 1.2 and less


def test_source_and_profile_state_the_number_of_shapes(tmp_path):
    many = next(fit for fit in shipped() if fit.family == "moe" and fit.device == "h100-sxm" and not fit.shape_families)
    few = replace(many, shape_families=1)
    labels = [select_fits("moe", H100, many.implementation, [fit]).source for fit in (many, few)]
    assert labels[1] == f"{labels[0]}; one shape family measured"
    path = tmp_path / "mine.yaml"
    path.write_text(to_yaml([Profile(device="h100-sxm", library="mine", sources=(), fits=(few,))]))
    assert read(path)[0].fits[0].shape_families == 1


def test_other_shapes_are_not_beyond_the_sizes_of_few():
    """Its interval is of other shapes; of more tokens it is not."""
    many = next(fit for fit in shipped() if fit.family == "moe" and not fit.shape_families and "tokens" in fit.sizes)
    columns = {name: np.full(1, value) for name, value in FAMILY.optional.items()}
    columns |= {name: np.full(1, many.sizes[name][1]) for name in ("tokens", "topk", "experts", "inter")}
    columns["hidden"] = np.full(1, 2 * many.sizes["hidden"][1])
    few = replace(many, shape_families=2)
    assert many.beyond(columns) >= 1 > few.beyond(columns)
    columns["tokens"] = 2 * columns["tokens"]
    assert few.beyond(columns) == 1


@pytest.mark.parametrize("name", ["moe", "attention_prefill", "attention_decode", "collectives"])
def test_fits_that_ship_with_few_shapes_have_wider_intervals_than_those_with_many(name):
    fits = [fit for fit in shipped() if fit.family == name]
    widths = {
        few: np.median([fit.held_out.long[1] / fit.held_out.long[0] for fit in fits if bool(fit.shape_families) == few])
        for few in (True, False)
        if any(bool(fit.shape_families) == few for fit in fits)
    }
    assert widths[True] > widths.get(False, 1.2)
