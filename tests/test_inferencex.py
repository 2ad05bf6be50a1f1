"""A public benchmark of servers: none is above the bound, and the page states the errors of expected times."""

from importlib import util
from pathlib import Path
from statistics import median

import pytest

from llmviewer.expectation.engines import find_engine

from .documented import names, rows
from .inferencex import DRAFTED, ROWS, drafts, found

TOGETHER = [row for row in ROWS if not row["decoding"]]
APART = [row for row in ROWS if row["decoding"]]


@pytest.fixture(scope="module")
def page():
    """benchmarks/inferencex.py, which writes it."""
    spec = util.spec_from_file_location(
        "inferencex_page", Path(__file__).parent.parent / "benchmarks" / "inferencex.py"
    )
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow("serves published loads")
def test_sampled_results_match_expected_throughput_and_stay_below_the_bound():
    """All of them take minutes: benchmarks/inferencex.py."""
    for part, most in ((TOGETHER[::37], 0.25), (APART[::17], 0.25)):
        ratios = [found(row) for row in part if int(row["concurrency"]) <= 256]
        assert len(ratios) > 12
        assert max(one.served[0] for one in ratios) < 1
        assert median(abs(one.served[1] - 1) for one in ratios) < most


@pytest.mark.slow("serves published loads")
@pytest.mark.parametrize("of", [("DeepSeek-R1", "h200-sxm", "sglang", "8 bits")])
def test_page_states_the_error_of_each_server_group(page, of):
    title, device, engine, form = of
    (line,) = (
        line for line in rows("inferencex.md", "| model | device | engine | format | results")
        if (line[0], *names(line[1]), *names(line[2]), line[3]) == of
    )  # fmt: skip
    key = next(name for name, known in page._TITLES.items() if known == title), device, engine, form
    own = [found(row) for row in TOGETHER if page.key_of(row, ("model", "device", "engine", "format")) == key]
    assert line[4:] == page.cells(own, steps=True)


@pytest.mark.slow("serves published loads")
@pytest.mark.parametrize("key", [("gb300", "tensorrt-llm", "4 bits", "dp"), ("h200-sxm", "sglang", "8 bits", "tp")])
def test_page_states_the_error_of_each_step_group(page, key):
    (line,) = (
        line for line in rows("inferencex.md", "| device | engine | format | layout | results")
        if (*names(line[0]), *names(line[1]), line[2], *names(line[3])) == key
    )  # fmt: skip
    own = [found(row) for row in APART if page.key_of(row, ("device", "engine", "format", "kind")) == key]
    assert line[4:] == page.cells(own)


@pytest.mark.slow("serves published loads")
def test_tokens_per_pass_never_exceed_drafted_tokens_plus_one():
    """DeepSeek's paper accepts 85 of 100 drafted tokens. No pass yields more than the drafted ones and one,
    within the error of its expected time.
    """
    tokens = {}
    for row in DRAFTED:
        if int(row["concurrency"]) <= 16:
            tokens.setdefault(int(row["drafted"]), []).append(drafts(row).tokens)
    assert set(tokens) == {1, 2, 3}
    assert median(tokens[1]) == pytest.approx(1.85, abs=0.1)
    for drafted, each in tokens.items():
        assert min(each) > 1
        assert max(each) < 1.05 * (drafted + 1)


def test_page_counts_every_result():
    every = rows("inferencex.md", "| model | device | engine | format | results")
    apart = rows("inferencex.md", "| device | engine | format | layout | results")
    assert sum(int(line[4]) for line in every) == len(TOGETHER)
    assert sum(int(line[4]) for line in apart) == len(APART)


def test_page_and_engines_have_the_same_intervals_of_servers():
    lines = rows("inferencex.md", "| engine | device | measured / expected TPOT")
    of_engines = [line for line in lines if line[1] == "all" and line[0] != "all"]
    assert {names(line[0])[0] for line in of_engines} == {row["engine"] for row in TOGETHER}
    for line in of_engines:
        servers = find_engine(*names(line[0])).servers
        assert [line[2], line[3]] == [f"{low:.2f} to {high:.2f}" for low, high in (servers.tpot, servers.ttft)]
    *_, everything = lines
    assert all(75 <= float(share.rstrip("%")) <= 85 for share in everything[5:])
