"""Scores by hand, what `validate` and `calibrate` print and write, and errors of one line."""

import json

import numpy as np
import pandas as pd
import pytest

import llmviewer
from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.expectation.device import find_device
from llmviewer.expectation.families import FAMILIES, Implementation
from llmviewer.expectation.profile import Error, KernelFit, Profile, shipped, to_yaml
from llmviewer.expectation.profile import read as read_profile
from llmviewer.expectation.rows import read
from llmviewer.expectation.validate import predict, score, validate
from llmviewer.reports.validation import render_text

GEMM = FAMILIES["gemm"]
STACK = Implementation(library="mine", dtype="bf16")
ERROR = Error(mape=0.1, median=0.08, mape_short=0.1, mape_long=0.1, covered=0.8, short=(0.9, 1.1), long=(0.9, 1.1))
USUAL = {
    parameter.name: GEMM.default_parameters(STACK, find_device("h100-sxm"))[parameter.name]
    for parameter in GEMM.parameters_of("persistent")
}
ENTRY = KernelFit(
    device="h100-sxm", family="gemm", implementation=STACK, variant="persistent", parameters=USUAL, rows=100,
    version="1", fit_mape=0.05, held_out=ERROR,
)  # fmt: skip


def table(count=120, noise=0.0):
    """Rows of a made-up library whose kernels are what the usual parameters say, give or take `noise`."""
    random = np.random.default_rng(3)
    frame = pd.DataFrame({
        "gpu": "H100-SXM-80GB",
        "framework": "mine",
        "dtype": "bf16",
        "M": (2 ** random.uniform(0, 12, count)).round(),
        "N": random.choice([1024, 2048, 4096, 6144, 14336], count),
        "K": random.choice([1024, 4096, 8192], count),
    })  # fmt: skip
    shapes = {c: frame[c].to_numpy(float) for c in ("M", "N", "K")}
    shapes |= {c: np.full(count, v) for c, v in GEMM.optional.items()}
    features = GEMM.features(shapes, find_device("h100"), STACK, "persistent")
    exact = GEMM.seconds(USUAL, features) * 1e6
    return frame.assign(time_us=exact * np.exp(random.normal(0, noise, count)))


@pytest.fixture
def measured(tmp_path):
    path = tmp_path / "rows.csv"
    table(noise=0.05).to_csv(path, index=False)
    return path


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(to_yaml([Profile(device="h100-sxm", library="mine", sources=("made up",), fits=(ENTRY,))]))
    return path


def test_scores_by_hand():
    found = score(np.array([11.0, 9.0, 30.0, 44.0]), np.array([10.0, 10.0, 25.0, 40.0]), np.array([1, 1, 0, 1]))
    assert found.rows == 4
    assert found.mape == pytest.approx((0.1 + 0.1 + 0.2 + 0.1) / 4)
    assert found.median == pytest.approx(0.1)
    assert found.mape_short == pytest.approx(0.1)
    assert found.mape_long == pytest.approx(0.15)
    assert found.bias == pytest.approx(0.1)
    assert found.within_20 == pytest.approx(1)
    assert found.covered == pytest.approx(0.75)
    ranks = np.array([[2, 1, 3, 4], [1.5, 1.5, 3, 4]])
    assert found.rank == pytest.approx(np.corrcoef(ranks)[0, 1])


def test_bound_only_predictions_have_no_interval_coverage(tmp_path):
    path = tmp_path / "rows.csv"
    table().assign(gpu="epyc-9654").to_csv(path, index=False)
    (group,) = validate([predict(read(path), [])]).groups
    assert group.source == "bound"
    assert np.isnan(group.expected.covered)


def test_table_generated_from_a_profile_is_predicted_exactly(tmp_path):
    path = tmp_path / "rows.csv"
    table().to_csv(path, index=False)
    scores = validate([predict(read(path), [ENTRY])])
    (group,) = scores.groups
    assert (group.family, group.device, group.dtype, group.source) == ("gemm", "h100-sxm", "bf16", "calibrated")
    assert group.expected.mape < 1e-6
    assert group.violations == 0
    assert group.expected.covered == 1
    assert scores.skipped == {}


def test_predictions_are_the_rows_with_four_times(measured, profile, tmp_path):
    out = tmp_path / "predictions.parquet"
    assert main(["validate", str(measured), "--profile", str(profile), "--predictions-out", str(out)]) == 0
    before, after = pd.read_csv(measured), pd.read_parquet(out)
    pd.testing.assert_frame_equal(after[before.columns], before)
    bound, expected, low, high = (after[f"{c}_us"] for c in ("bound", "expected", "expected_low", "expected_high"))
    assert ((bound <= low) & (low <= expected) & (expected <= high)).all()
    assert after["expected_source"].eq("calibrated on h100-sxm mine 1").all()


def test_unpredictable_rows_stay_empty_and_are_counted(tmp_path, profile, capsys):
    frame = table(4)
    frame.loc[0, "gpu"], frame.loc[1, "M"], frame.loc[2, "dtype"] = "abacus", 0, "fp7"
    path, out = tmp_path / "rows.csv", tmp_path / "out.csv"
    frame.to_csv(path, index=False)
    command = ["validate", str(path), "--profile", str(profile), "--predictions-out", str(out), "--format", "json"]
    assert main(command) == 0
    assert pd.read_csv(out)["expected_us"].notna().tolist() == [False, False, False, True]
    found = json.loads(capsys.readouterr().out)
    assert found["schema_version"] == 1
    assert found["inputs"] == {"files": [str(path)], "profiles": [str(profile)]}
    skipped = found["skipped"]
    assert sorted(skipped.values()) == [1, 1, 1]
    assert skipped["a shape is missing or not positive"] == 1
    assert any(reason.startswith("no hardware 'abacus'") for reason in skipped)
    assert any(reason.startswith("dtype must be one of fp32, bf16") for reason in skipped)


def test_pytorch_elementwise_kernels_are_host_launched_by_default(tmp_path):
    path = tmp_path / "rows.csv"
    row = {"gpu": "t4", "dtype": "fp32", "op": "add", "rows": 64, "bytes": 1e6, "time_us": 9}
    said = [("pytorch", ""), ("torch", 1), ("pytorch", 0), ("triton", ""), ("triton", 1)]
    pd.DataFrame([{**row, "framework": name, "eager": eager} for name, eager in said]).to_csv(path, index=False)
    kernels = {int(place): rows.implementation.kernel for rows in read(path).rows for place in rows.places}
    assert [kernels[i] for i in range(5)] == ["eager add", "eager add", "add", "add", "eager add"]
    expected = predict(read(path), shipped()).columns["expected_us"]
    assert expected[0] == expected[1] > 20
    assert expected[2] < 10
    pd.DataFrame([{**row, "framework": "pytorch", "eager": "yes"}]).to_csv(path, index=False)
    with pytest.raises(InputError, match="row 1: eager: must be a number; got 'yes'"):
        read(path)
    pd.DataFrame([{**ATTENTION, "eager": "yes"}]).to_csv(path, index=False)  # of attention it says nothing
    assert read(path).rows


ATTENTION = {
    "gpu": "H100-SXM-80GB", "framework": "vllm", "dtype": "bf16", "batch": 1, "q_len": 512, "kv_len": 512,
    "q_heads": 32, "kv_heads": 8, "head_dim": 128, "v_head_dim": 128,
}  # fmt: skip
REPLAYED = {**ATTENTION, "stat": "mean_cudagraph"}
EXPERTS = {
    "gpu": "H100-SXM-80GB", "framework": "vllm", "dtype": "bf16", "tokens": 64, "hidden": 4096, "inter": 1408,
    "topk": 6, "experts": 64,
}  # fmt: skip
MESSAGE = {
    "gpu": "H100-SXM-80GB", "framework": "nccl", "dtype": "fp16", "op": "all_reduce", "num_gpus": 8, "bytes": 1e6,
}  # fmt: skip
SWITCHES = "causal, gated, private, prequantized, eager must be 0 or 1"
FROM_NONE = "window, reached, loop, splits must be 0 or more"


@pytest.mark.parametrize(
    ("row", "change", "why"),
    [
        (ATTENTION, {"causal": 2}, SWITCHES), (EXPERTS, {"gated": -1}, SWITCHES),
        (EXPERTS, {"reached": -1}, FROM_NONE), (ATTENTION, {"window": np.inf}, FROM_NONE),
        (ATTENTION, {"loop": -1}, FROM_NONE), (ATTENTION, {"window": 0.5}, "a size is not a whole number"),
        (EXPERTS, {"topk": 65}, "topk must be no more than the experts"),
        (MESSAGE, {"num_gpus": 1}, "num_gpus must be 2 or more"),
        (ATTENTION, {"kv_heads": 3}, "q_heads must be a multiple of kv_heads"),
        (EXPERTS, {"family": "gemm"}, "gemm needs the columns 'M', 'N', 'K'"),
        (ATTENTION, {"batch": 1e300}, "sizes are too large to be expected"),
    ],
)  # fmt: skip
def test_rows_without_a_kernel_query_are_counted_and_left_empty(tmp_path, recwarn, row, change, why):
    path = tmp_path / "rows.csv"
    family = {"family": "moe"} if "family" in change else {}
    pd.DataFrame([row | family, row | change]).to_csv(path, index=False)
    found = predict(read(path), shipped())
    assert found.skipped == {why: 1}
    assert np.isfinite(found.columns["expected_us"]).tolist() == [True, False]
    assert np.isfinite(found.columns["bound_us"]).tolist() == [True, False]
    assert found.columns["expected_source"][1] == ""
    assert not recwarn


def test_a_table_may_have_rows_of_several_families(tmp_path):
    named = [("moe", EXPERTS), ("attention_prefill", ATTENTION), ("collectives", MESSAGE)]
    rows = [{**row, "family": family, "time_us": 100.0 * (i + 1)} for i, (family, row) in enumerate(named)]
    alone = []
    for row in rows:
        path = tmp_path / f"{row['family']}.csv"
        pd.DataFrame([row]).to_csv(path, index=False)
        alone.append(predict(read(path), shipped()).columns["expected_us"][0])
    path = tmp_path / "all.csv"
    pd.DataFrame([rows[1], rows[0], {**rows[0], "family": "prayer"}, rows[2], rows[1]]).to_csv(path, index=False)
    found = predict(read(path), shipped())
    expected = found.columns["expected_us"]
    assert expected[[0, 1, 3, 4]].tolist() == pytest.approx([alone[1], alone[0], alone[2], alone[1]])
    known = (
        "gemm, attention_prefill, attention_decode, moe, elementwise, collectives, scan, all_to_all, attention_layer"
    )
    assert found.skipped == {f"family: must be one of {known}; got 'prayer'": 1}
    assert {row["row"] for row in validate([found]).worst} == {1, 2, 4, 5}


@pytest.mark.parametrize(("row", "empty"), [(REPLAYED, "loop"), (ATTENTION, "window"), (EXPERTS, "family")])
def test_an_empty_cell_is_as_a_column_that_is_absent(tmp_path, row, empty):
    alone, among = tmp_path / "alone.csv", tmp_path / "among.csv"
    pd.DataFrame([row]).to_csv(alone, index=False)
    said = {"family": "moe"}.get(empty, 1)
    pd.DataFrame([row, {**row, empty: said}]).to_csv(among, index=False)
    first, second = (predict(read(path), shipped()).columns["expected_us"][0] for path in (alone, among))
    assert first == pytest.approx(second, rel=1e-5)


def test_a_window_below_0_is_none(tmp_path):
    path = tmp_path / "rows.csv"
    pd.DataFrame([ATTENTION, {**ATTENTION, "window": -1}]).to_csv(path, index=False)
    first, second = predict(read(path), shipped()).columns["expected_us"]
    assert first == pytest.approx(second, rel=1e-5)


@pytest.mark.parametrize(
    ("row", "column", "here", "elsewhere"),
    [
        (EXPERTS, "dtype", "bf16", ("bfloat16", "torch.bfloat16", "BF16")),
        (EXPERTS, "dtype", "fp8", ("float8_e4m3fn", "FP8", "fp8_e5m2")),
        (EXPERTS, "dtype", "int4_wo", ("int4", "W4A16")),
        (EXPERTS, "dtype", "w4a16_mxfp4", ("mxfp4",)),
        (ATTENTION, "kv_dtype", "fp8", ("fp8_e4m3", "torch.float8_e5m2")),
        (EXPERTS, "framework", "trtllm", ("TensorRT-LLM", "TRTLLM", "trt-llm")),
        (EXPERTS, "framework", "vllm", ("vLLM",)),
        ({**MESSAGE, "impl": "nccl"}, "framework", "nccl", ("torch.distributed",)),
        (MESSAGE, "dtype", "bf16", ("",)),
        (MESSAGE, "op", "all_reduce", ("allreduce", "AllReduce", "all-reduce")),
        (MESSAGE, "op", "alltoall", ("all_to_all",)),
        ({**MESSAGE, "rows": 8}, "op", "post_attention_layernorm", ("rms_norm", "RMSNorm", "norm")),
    ],
)
def test_synonyms_in_tables_are_equivalent(tmp_path, row, column, here, elsewhere):
    path, names = tmp_path / "rows.csv", (here, *elsewhere)
    row = {name: value for name, value in row.items() if name != "num_gpus" or "rows" not in row}
    pd.DataFrame([{**row, column: name} for name in names]).to_csv(path, index=False)
    found = predict(read(path), shipped())
    assert found.skipped == {}
    assert found.columns["expected_us"] == pytest.approx(found.columns["expected_us"][0], rel=1e-5)
    assert len(set(found.columns["expected_source"])) == 1


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_survive_a_round_trip(tmp_path, profile, suffix):
    """An index is columns, what it may be called included; a version is no number; files may differ in a column."""
    paths, out = (tmp_path / "first.parquet", tmp_path / "second.csv"), tmp_path / f"out{suffix}"
    rows = table(3)
    rows.assign(source="a lab", version="0.10", note=[1, 2, 3]).set_index(["M", "gpu"]).to_parquet(paths[0])
    rows.assign(version="1.10", note="words").to_csv(paths[1], index=False)
    assert main(["validate", *map(str, paths), "--profile", str(profile), "--predictions-out", str(out)]) == 0
    after = pd.read_csv(out, dtype=str) if suffix == ".csv" else pd.read_parquet(out)
    assert [*after.columns[: len(rows.columns) + 3]] == ["framework", "dtype", "N", "K", "time_us", "source", "version",
                                                         "note", "M", "gpu"]  # fmt: skip
    assert after["M"].astype(float).tolist() == [*rows["M"], *rows["M"]]
    assert after["note"].tolist() == ["1", "2", "3", *["words"] * 3]
    assert after["version"].tolist() == [*["0.10"] * 3, *["1.10"] * 3]
    assert after["source"].tolist()[:3] == ["a lab"] * 3
    assert after["expected_us"].notna().all()


def test_a_number_that_parquet_has_no_room_for_is_text_there(tmp_path, profile):
    path, out = tmp_path / "rows.csv", tmp_path / "out.parquet"
    table(2).assign(own=[2**70, 1]).to_csv(path, index=False)
    assert main(["validate", str(path), "--profile", str(profile), "--predictions-out", str(out)]) == 0
    assert pd.read_parquet(out)["own"].tolist() == [str(2**70), "1"]


def test_measured_times_under_the_bound_are_counted(tmp_path):
    frame = table(10)
    frame.loc[:2, "time_us"] = 1e-3
    path = tmp_path / "rows.csv"
    frame.to_csv(path, index=False)
    scores = validate([predict(read(path), [ENTRY])])
    assert scores.groups[0].violations == 3
    asked = {"files": ["rows.csv"], "profiles": []}
    assert "Measured faster than the bound: gemm h100-sxm bf16 3 rows." in render_text(scores, asked)
    assert {row["row"] for row in scores.worst[:3]} == {1, 2, 3}


def test_fitted_profile_predicts_its_own_rows(measured, tmp_path, capsys):
    pytest.importorskip("scipy")
    out = tmp_path / "fitted.yaml"
    assert main(["calibrate", str(measured), "-o", str(out), "--source", "made up"]) == 0
    (found,) = read_profile(out)
    assert (found.device, found.library, found.sources) == ("h100-sxm", "mine", ("made up",))
    (kernel_fit,) = found.fits
    assert kernel_fit.rows == 120
    assert kernel_fit.fit_mape < 0.06
    assert kernel_fit.fit_mape <= kernel_fit.held_out.mape < 0.09
    assert "h100-sxm mine gemm bf16" in capsys.readouterr().err
    assert main(["validate", str(measured), "--profile", str(out)]) == 0
    assert "h100-sxm bf16  calibrated  120 " in capsys.readouterr().out
    assert main(["compare", "gpt2", "h100-sxm", "--profile", str(out), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["inputs"]["profiles"] == [str(out)]
    assert llmviewer.analyze("gpt2", "h100-sxm", profiles=[out]).inputs["profiles"] == (str(out),)


def test_the_table_names_errors_and_the_worst_rows(measured, profile, capsys):
    assert main(["validate", str(measured), "--profile", str(profile)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("120 measured kernels on h100-sxm, of rows.csv, with profile mine.yaml.\n\ngemm\n")
    assert max(map(len, text.splitlines())) <= 80
    rows = text.partition("Largest errors (row 1 is the first after the header):\n")[2]
    assert "  row " in rows
    assert ": measured " in rows
    assert "nan" not in text
    assert "Not scored:" not in text
    assert str(measured) not in rows
    assert main(["validate", str(measured), str(measured), "--profile", str(profile)]) == 0
    rows = capsys.readouterr().out.partition("Largest errors (")[2]
    assert f"{measured}, row " in " ".join(rows.split())


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("rows.txt", "x", "must end in .csv or .parquet, the formats of measurements"),
        ("rows.csv", "a;b\n1;2\n",
         "no family has these columns: 'a;b'; `llmviewer docs measurements` lists their names"),
        ("rows.csv", "gpu,framework,M,N\nH100,x,1,2\n",
         "gemm needs the columns 'dtype', 'K'; it has 'gpu', 'framework', 'M', 'N'"),
        ("rows.csv", "Device,backend,dtype,m,n,k\nH100,x,bf16,1,2,3\n",
         ("gemm needs the columns 'gpu', 'framework', 'M', 'N', 'K'; it has 'Device', 'backend', 'dtype', 'm', 'n', "
         "'k'; rename 'Device' to 'gpu', 'backend' to 'framework', 'm' to 'M', 'n' to 'N', 'k' to 'K'")),
        ("rows.csv", "gpu,framework,dtype,M,N,K,Latency (ms)\nH100,x,bf16,1,2,3,4\n",
         ("times must be in a column 'time_us', in microseconds; rename 'Latency (ms)', and convert it if it has "
         "another unit")),
        ("rows.csv", "gpu,framework,M,N,K\nH100,x,1,2,3\n",
         "gemm needs the column 'dtype'; it has 'gpu', 'framework', 'M', 'N', 'K'"),
        ("rows.csv", "gpu,framework,M,N,K\n", "holds no rows"),
        ("rows.csv", "family,gpu\nconv,H100\n", ("family: must be one of gemm, attention_prefill, attention_decode, "
         "moe, elementwise, collectives, scan, all_to_all, attention_layer; got 'conv'")),
    ],
)  # fmt: skip
def test_invalid_tables_are_refused_in_one_line(tmp_path, name, content, problem):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError) as error:
        read(path)
    assert str(error.value) == f"{path}: {problem}"


@pytest.mark.parametrize("command", ["validate", "calibrate"])
@pytest.mark.parametrize(
    ("column", "value"),
    [("time_us", "fast"), ("time_us", "64.2 us"), ("time_us", "12,5"), ("M", "abc"), ("batch", "two"), ("loop", "yes")],
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_text_among_numbers_is_named_with_its_row(tmp_path, capsys, command, column, value, suffix):
    frame, path, out = table(30).assign(batch=1, loop=0), tmp_path / f"rows{suffix}", tmp_path / "out.yaml"
    frame[column] = [value if place == 2 else str(each) for place, each in enumerate(frame[column])]
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    assert main([command, str(path), *(["-o", str(out)] if command == "calibrate" else [])]) == 2
    said = capsys.readouterr()
    assert said.err == f"llmviewer: {path}: row 3: {column}: must be a number; got {value!r}\n"
    assert said.out == ""
    assert not out.exists()


def test_rows_that_are_not_fitted_are_counted_and_change_nothing(tmp_path, capsys):
    pytest.importorskip("scipy")
    wrong = {
        "no hardware 'abacus'": {"gpu": "abacus"},
        "dtype must be one of": {"dtype": "fp7"},
        "dtype is missing": {"dtype": None},
        "a shape is missing or not positive": {"M": -5},
        "a size is not a whole number": {"M": 1.5},
        "time_us is missing or not positive": {"time_us": -1},
        "time_us is less than a tenth of the bound": {"time_us": 0.01},
        "sizes outside those that are fitted": {"N": 16},
        "fewer than 20 rows of h100-sxm other gemm bf16": {"framework": "other"},
    }
    sound, frames = table(40, noise=0.05), []
    for change in wrong.values():
        row = sound.iloc[[7]].copy()
        for column, value in change.items():
            row[column] = value
        frames.append(row)
    fitted = []
    for name, frame in (("clean", sound), ("mixed", pd.concat([sound, *frames]))):
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
        command = ["calibrate", str(tmp_path / f"{name}.csv"), "-o", str(tmp_path / f"{name}.yaml"), "--source", "made"]
        assert main(command) == 0
        fitted.append(((tmp_path / f"{name}.yaml").read_text(), capsys.readouterr().err))
    (clean, said), (mixed, told) = fitted
    assert clean == mixed
    assert "skipped" not in said
    lines = [line for line in told.splitlines() if line.startswith("skipped ")]
    assert len(lines) == len(wrong)
    for why in wrong:
        assert sum(line.startswith(f"skipped 1 row: {why}") for line in lines) == 1, why


def test_calibrate_merges_files_and_device_aliases_of_one_implementation(tmp_path, capsys):
    pytest.importorskip("scipy")
    frame, parts, out = table(30, noise=0.05), ("first", "second"), tmp_path / "out.yaml"
    for place, name in enumerate(parts):
        part = frame.iloc[15 * place : 15 * (place + 1)].assign(version=f"1.{place}")
        part.assign(gpu=["H100", "h100-sxm", "H100-SXM-80GB"] * 5).to_csv(tmp_path / f"{name}.csv", index=False)
    assert main(["calibrate", *(str(tmp_path / f"{name}.csv") for name in parts), "-o", str(out)]) == 0
    (kernel_fit,) = read_profile(out)[0].fits
    assert (kernel_fit.rows, kernel_fit.version) == (30, "1.0, 1.1")
    assert "skipped" not in capsys.readouterr().err


def test_calibrate_states_why_no_rows_are_left_to_fit(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    table(30).assign(dtype=None).to_csv(path, index=False)
    assert main(["calibrate", str(path), "-o", str(tmp_path / "out.yaml")]) == 2
    why = "no kernel has the 20 rows with a time_us that a fit needs; 30 rows skipped: dtype is missing"
    assert capsys.readouterr().err == f"llmviewer: {path}: {why}\n"


def test_rows_of_which_none_can_be_scored_are_an_error(tmp_path, capsys):
    path = tmp_path / "none.csv"
    path.write_text("gpu,framework,kernel,dtype,M,N,K,time_us\nh100-sxm,vllm,gemm,bf16,16,4096,4096,nan\n")
    assert main(["validate", str(path)]) == 2
    error = capsys.readouterr()
    assert error.out == ""
    assert error.err.startswith(f"llmviewer: {path}: no row can be scored; 1 row: ")


def test_commands_fail_with_one_line(tmp_path, measured, capsys):
    missing = tmp_path / "none.csv"
    assert main(["validate", str(missing)]) == 2
    assert capsys.readouterr().err == f"llmviewer: {missing}: no such file\n"
    few, out = tmp_path / "few.csv", tmp_path / "out.yaml"
    table(5).to_csv(few, index=False)
    assert main(["calibrate", str(few), "-o", str(out)]) == 2
    text = "no kernel has the 20 rows with a time_us that a fit needs; the largest has 5"
    assert capsys.readouterr().err == f"llmviewer: {few}: {text}\n"
    assert not out.exists()
    for more, line in (
        (
            [str(out), "--library", "vllm", "--device", "h100"],
            f"{measured}: no rows of vllm on h100-sxm; available: mine on h100-sxm",
        ),
        ([str(out.with_suffix(".csv"))], f"{out.with_suffix('.csv')}: must end in .yaml, the format of a profile"),
    ):
        assert main(["calibrate", str(measured), "-o", *more]) == 2
        assert capsys.readouterr().err == f"llmviewer: {line}\n"
    for command in (["validate", str(measured)], ["calibrate", str(measured), "-o", str(out)]):
        assert main([*command, "--hardware-path", str(missing)]) == 2
        assert "--hardware-path): must be a folder of hardware YAML files" in capsys.readouterr().err
    assert not out.exists()
    for more, line in (
        ("--predictions-out x.txt", "x.txt: must end in .csv or .parquet, the formats of predictions"),
        ("-o x.md", "x.md: must end in one of .txt, .json, .html; or give --format"),
    ):
        assert main(["validate", str(measured), *more.split()]) == 2
        assert capsys.readouterr().err == f"llmviewer: {line}\n"


@pytest.mark.parametrize("command", [("validate", "--profile"), ("calibrate", "--from")])
@pytest.mark.parametrize(
    ("device", "line"), [("h100", "must be the name h100-sxm; got 'h100'"), ("abacus", "no hardware 'abacus': ")]
)
def test_a_profile_of_a_device_that_is_not_known_by_its_name_is_refused(
    measured, profile, tmp_path, capsys, command, device, line
):
    name, option = command
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(profile.read_text().replace("device: h100-sxm", f"device: {device}"))
    output = ["-o", str(tmp_path / "out.yaml")] if name == "calibrate" else []
    assert main([name, str(measured), option, str(wrong), *output]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"llmviewer: {wrong}: device: {line}")


@pytest.mark.slow("fits many rows")
def test_a_residual_makes_shapes_that_were_measured_exact(tmp_path, capsys):
    pytest.importorskip("scipy")
    rows, out, later = tmp_path / "rows.csv", tmp_path / "fitted.yaml", tmp_path / "later.csv"
    table(1100, noise=0.1).to_csv(rows, index=False)
    assert main(["calibrate", str(rows), "-o", str(out), "--residual"]) == 0
    ((kernel_fit,),) = (profile.fits for profile in read_profile(out))
    assert len(kernel_fit.residual.points) <= 1100
    assert 0.03 < kernel_fit.residual.mape < 0.2
    command = ["validate", str(rows), "--profile", str(out), "--predictions-out", str(later), "--format", "json"]
    assert main(command) == 0
    (group,) = json.loads(capsys.readouterr().out)["groups"]
    assert group["source"] == "measured"
    assert group["expected"]["mape"] < 0.06 < kernel_fit.fit_mape
    assert set(pd.read_csv(later)["expected_source"]) == {"measured shape on h100-sxm mine"}


def test_calibrate_takes_an_existing_prior_profile(measured, profile, tmp_path, capsys):
    pytest.importorskip("scipy")
    out = tmp_path / "fitted.yaml"
    assert main(["calibrate", str(measured), "-o", str(out), "--from", str(profile)]) == 0
    capsys.readouterr()
    missing, other = tmp_path / "none.yaml", tmp_path / "other.yaml"
    assert main(["calibrate", str(measured), "-o", str(other), "--from", str(missing)]) == 2
    assert capsys.readouterr().err == f"llmviewer: {missing}: no such file\n"
    assert not other.exists()


def test_report_has_all_scores_and_makes_no_requests(measured, profile, tmp_path, capsys):
    pytest.importorskip("plotly")
    out = tmp_path / "report.html"
    assert main(["validate", str(measured), "--profile", str(profile), "-o", str(out)]) == 0
    assert capsys.readouterr().err == f"{out}: written\n"
    text = out.read_text(encoding="utf-8")
    words = ("Expected against measured", "Bound against measured", "Error by family and device", "Largest errors",
             "Measured kernels on the roofline", "120 measured kernels on h100-sxm")  # fmt: skip
    assert all(word in text for word in words)
    assert "src=" not in text.split("</style>")[0]


def test_points_lie_under_the_roof(measured):
    scores = validate([predict(read(measured), [ENTRY])])
    assert len(scores.points) == 120
    for point in scores.points:
        assert 0 < point.attained <= min(1, point.balance) * 1.01
        assert point.bound_us == pytest.approx(point.measured_us * point.attained / min(1, point.balance))


def test_experts_are_scored_where_their_routing_can_be_read(tmp_path):
    """An exponent of 1 is the limit of those beside it; what says nothing, or cannot be, is not scored."""
    said = {
        "power_law_1": (1, True), "power_law_1.0001": (1, True), "balanced": (8, True), "": (1, True),
        "power_law_...": (1, False), "power_law_60": (1, False), "zipf": (1, False), "power_law_1.2": (16, False),
    }  # fmt: skip
    frame = pd.DataFrame({
        "gpu": "H100-SXM-80GB", "framework": "vllm", "dtype": "bf16", "tokens": 128, "hidden": 4096, "inter": 14336,
        "topk": 2, "experts": 8, "tp": 1, "ep": [ep for ep, _ in said.values()], "distribution": list(said),
        "time_us": 300.0,
    })  # fmt: skip
    path = tmp_path / "moe.csv"
    frame.to_csv(path, index=False)
    table = read(path)
    bounds = {
        int(place): bound
        for rows in table.rows
        for place, bound in zip(
            rows.places, rows.family.bound(rows.shapes, rows.device, rows.implementation), strict=True
        )
    }
    assert sorted(bounds) == [i for i, (_, scored) in enumerate(said.values()) if scored]
    assert sorted(filter(None, table.unread.values())) == [1, 3]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-2)
