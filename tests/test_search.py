"""search(): shapes of a model under latency targets; candidates computed as arrays equal those lowered one by one."""

import json
import shlex
from itertools import pairwise

import numpy as np
import pytest

import llmviewer
from llmviewer import Evaluation, InputError, Request, Setting
from llmviewer.cli import main
from llmviewer.reports.architecture_search import REPORT
from llmviewer.sweeping.shapes import ShapeSpace, parse_shape_axis
from llmviewer.sweeping.stacking import numbers_of
from llmviewer.units import seconds

from .cases import first_fast

SPACES = {
    "llama-3-8b": {"depth": range(8, 41, 8), "width": range(1024, 4097, 1024), "heads": [16, 32], "ffn": [4096, 9999]},
    "mixtral-8x7b": {"depth": [4, 8, 12], "width": [1024, 2048, 4096], "experts": [4, 8], "top_k": [1, 2]},
    "bert-base-uncased": {"depth": [2, 6, 12], "width": [128, 256, 512, 768], "ffn": [512, 1024, 2048]},
    "gemma-3-12b": {"depth": [5, 6, 7, 12, 18], "width": [960, 1920, 3840]},  # every sixth layer is global
    "deepseek-v2-lite": {"depth": [3, 9, 27], "width": [1024, 2048], "experts": [16, 64], "expert_ffn": [704, 1408]},
    "gpt2": {"depth": [4, 8, 12], "width": [256, 512, 768]},
    "mamba-2.8b": {"depth": [8, 16, 32], "width": [512, 1024, 2560]},
    "t5-base": {"width": [256, 512, 768], "ffn": [1024, 2048, 3072]},
}


@pytest.mark.parametrize("name", first_fast(SPACES, "each family", 3))
def test_candidates_as_arrays_are_those_that_are_lowered(name):
    found = llmviewer.search(name, "h100-sxm", SPACES[name], batch=3, prompt=300, gen=9, bound=True)
    assert found.candidates == np.prod([len(values) for values in SPACES[name].values()])
    for place in np.linspace(0, found.indices.size - 1, 7).astype(int):
        setting = Setting.of(found.space.candidate(int(found.indices[place])), "h100-sxm", bound=True)
        one = Evaluation.of(setting, Request(batch=3, prompt=300, gen=9))
        numbers = {name: value[place] for name, value in vars(found.numbers).items()}
        assert numbers["ttft_s"] == pytest.approx(one.bounds.ttft_s, rel=1e-9)
        assert numbers["latency_s"] == pytest.approx(one.bounds.latency_s, rel=1e-9)
        assert numbers["total_bytes"] == pytest.approx(one.memory_bytes, rel=1e-9)
        assert numbers["parameters"] == pytest.approx(setting.model.parameters, rel=1e-9)


def test_the_front_is_that_of_all_pairs_and_monotone():
    """The Pareto front of a search under a latency target (arXiv:2404.14294, section 5.2.3) is monotone."""
    found = llmviewer.search(
        "llama-3.2-1b", "t4", {"depth": [4, 8, 16], "width": [1024, 2048], "ffn": [2048, 8192]}, tpot=0.004, gen=16
    )
    assert found.by == "tpot"
    times, sizes = found.numbers.tpot_s, found.numbers.layer_parameters
    within = [i for i in range(times.size) if times[i] <= 0.004 and found.numbers.total_bytes[i] <= 16 * 2**30]
    front = {
        (times[i], sizes[i])
        for i in within
        if not any(
            (times[j] <= times[i] and sizes[j] > sizes[i]) or (times[j] < times[i] and sizes[j] >= sizes[i])
            for j in within
        )
    }
    assert 2 < found.front_size == len(front) < len(within) == found.within < found.candidates
    shown = [(float(one.evaluation.bounds.tpot_s), one.proxy) for one in found.front]
    assert np.array(shown) == pytest.approx(np.array(sorted(front)), rel=1e-9)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(shown))
    assert found.largest is found.front[-1]
    expected = found.largest_expected
    assert expected.evaluation.expected.tpot_s <= 0.004 < found.largest.evaluation.expected.tpot_s
    assert expected.proxy < found.largest.proxy


def test_the_largest_as_expected_is_that_of_all_candidates():
    """Deep, thin shapes are further from their bounds, so it need not be on the front of bounds."""
    axes = {"depth": [4, 8, 16, 32], "width": [512, 1024, 2048], "experts": [4, 8]}
    found = llmviewer.search("mixtral-8x7b", "h100-sxm", axes, tpot=0.002, gen=16, proxy="active")
    each = [
        Evaluation.of(Setting.of(found.space.candidate(int(index)), "h100-sxm"), Request(gen=16))
        for index in found.indices
    ]
    sizes = found.numbers.active_parameters
    within = [size for one, size in zip(each, sizes, strict=True) if one.fits and one.expected.tpot_s <= 0.002]
    assert 0 < len(within) < found.within
    assert found.largest_expected.proxy == pytest.approx(max(within), rel=1e-9)
    assert found.largest_expected.proxy < found.largest.proxy


def test_what_is_not_varied_follows_the_width():
    space = ShapeSpace.of("llama-3-8b", {"width": [2048, 3072]})
    assert space.changes(0) == {
        "hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 7168, "num_key_value_heads": 4,
    }  # fmt: skip
    assert ShapeSpace.of("falcon-7b", {"width": [2272]}).columns.get("kv_heads", [1])[0] == 1
    assert ShapeSpace.of("llama-3-8b", {"width": [2100]}).refused.tolist() == [True]
    assert ShapeSpace.of("gpt2", {"n_layer": [3]}).candidate(0).graph.layers == 3


def test_parameters_of_layers_rank_as_the_paper_counts_them():
    """Decoder parameters, without embeddings, are the proxy of arXiv:2203.02094; of GPT-2's 124 M, 85 M."""
    found = numbers_of(Setting.of("gpt2", "t4"), Request().of_model(llmviewer.load_model("gpt2")))
    assert found.layer_parameters[0] == 12 * (12 * 768**2 + 13 * 768)
    assert found.active_parameters[0] == found.layer_parameters[0]


def test_thousands_of_candidates_are_lowered_as_a_few():
    """The number of graphs, which takes the time, stays that of a polynomial's coefficients."""
    lowered = 0
    candidate = ShapeSpace.candidate

    def counted(space, index):
        nonlocal lowered
        lowered += 1
        return candidate(space, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShapeSpace, "candidate", counted)
        axes = {"depth": range(2, 49, 2), "width": range(1024, 8193, 256), "ffn": range(1024, 20481, 1024)}
        found = llmviewer.search("qwen3-8b", "h100-sxm", axes, bound=True, tpot=0.01)
    assert found.candidates == 24 * 29 * 20
    assert lowered < 60


def test_the_command_writes_every_format(tmp_path, capsys):
    words = ["search", "gpt2", "t4", "--over", "depth=4..12+4", "--over", "width=256..768+256", "--ttft", "9ms"]
    assert main([*words, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["candidates"] == 9
    assert document["inputs"]["over"] == {"depth": [4, 8, 12], "width": [256, 512, 768]}
    assert document["inputs"]["by"] == "ttft"
    assert [one["depth"] for one in document["shapes"] if one["on_front"]][-1] == document["largest"]["depth"]
    for ending in ("html", "md", "csv"):
        assert main([*words, "-o", str(tmp_path / f"found.{ending}")]) == 0
    assert "plotly" in (tmp_path / "found.html").read_text(encoding="utf-8")
    assert (
        (tmp_path / "found.csv")
        .read_text(encoding="utf-8")
        .startswith("depth,width,on_front,parameters,proxy_parameters")
    )


def test_the_finer_search_keeps_the_options(capsys):
    words = ["search", "gpt2", "t4", "--over", "depth=4..16+4", "--tpot", "9ms", "--quant", "int8", "--proxy", "all"]
    words += ["--batch", "4", "--by", "latency", "--hardware-set", "memory.bandwidth=2x", "--bound"]
    assert main(words) == 0
    command = capsys.readouterr().out.partition("  llmviewer ")[2].replace("\\\n", " ")
    assert main([*shlex.split(command), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    inputs = document["inputs"]
    assert inputs["over"] == {"depth": [12, 13, 14, 15, 16]}
    assert (inputs["batch"], inputs["quant"], inputs["by"], inputs["proxy"]) == (4, "int8", "latency", "all")
    assert (inputs["hardware_set"], inputs["tpot_s"]) == (["memory.bandwidth=2x"], 0.009)
    assert main(["search", "gpt2", "t4", "--over", "depth=4", "--bound"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "1 combination of depth 4" in text
    assert "finer search" not in text


def test_a_report_says_when_nothing_fits_or_is_fast_enough():
    slow = llmviewer.search("gpt2", "t4", {"depth": [12, 24]}, tpot=1e-6, bound=True)
    assert slow.largest is slow.largest_expected is None
    assert "None is within the targets: of the shapes that fit, the lowest TPOT is >= " in REPORT.headline(slow)
    assert f">= {seconds(float(np.min(slow.numbers.tpot_s)))}." in REPORT.headline(slow)
    large = llmviewer.search("llama-3.1-405b", "t4", {"depth": [126, 200]}, bound=True)
    assert "Does not fit: the smallest needs" in REPORT.headline(large)
    assert REPORT.tables(large) == []


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"over": {}}, "nothing to search over"),
        ({"over": {"experts": [4]}}, "experts: the config of gpt2 has no field of it .*; its axes are depth"),
        ({"model": "sd1.5", "over": {"depth": [4]}}, r"n_layers\); give a whole number of the config by its name"),
        ({"over": {"depht": [4]}}, "did you mean depth"),
        ({"over": {"depth": [0]}}, "depth must be a whole number of at least 1"),
        ({"over": {"depth": []}}, "must be a list of whole numbers"),
        ({"over": {"depth": [4, 4]}}, "4"),
        ({"over": {"width": [769]}}, "heads must divide the width"),
        ({"over": {"depth": range(1, 1002), "width": range(1, 1002)}}, "at most 1,000,000 combinations"),
        ({"proxy": "size"}, "proxy must be one of layers, active, all"),
        ({"by": "cost"}, "by must be one of tpot, ttft, latency"),
        ({"tpot": -1}, "tpot"),
        ({"tpot": 1, "gen": 1}, "gen must be at least 2 for a time per output token"),
        ({"by": "tpot", "gen": 1}, "gen must be at least 2 for a time per output token"),
    ],
)
def test_invalid_arguments_are_errors(asked, error):
    with pytest.raises(InputError, match=error):
        llmviewer.search(**{"model": "gpt2", "hardware": "t4", "over": {"depth": [4]}, **asked})


def test_a_single_token_is_ranked_by_its_time():
    assert llmviewer.search("gpt2", "t4", {"depth": [4, 8]}, gen=1, bound=True).by == "ttft"


def test_encoders_have_one_pass():
    with pytest.raises(InputError, match="no time per output token; give ttft"):
        llmviewer.search("bert-base-uncased", "t4", {"depth": [4]}, tpot=1)
    assert llmviewer.search("bert-base-uncased", "t4", {"depth": [4, 8]}).by == "ttft"


def test_axes_are_written_as_those_of_sweeps():
    assert parse_shape_axis("depth=8..24+8") == ("depth", [8, 16, 24])
    for text in ("depth", "depth=a", "depth=8..25+8"):
        with pytest.raises(InputError):
            parse_shape_axis(text)
