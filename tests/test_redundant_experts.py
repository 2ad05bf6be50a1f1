"""Copies of popular experts: which rank has which, what its experts do, and what that saves."""

from collections import Counter
from dataclasses import replace
from itertools import chain, combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmviewer
from llmviewer.cli import main
from llmviewer.errors import InputError
from llmviewer.operators.linear import ExpertsLinear
from llmviewer.operators.replicas import rebalanced
from llmviewer.operators.routing import ExpertChoice, Groups
from llmviewer.parallel.layout import Layout, parse_layout
from llmviewer.parameters import Algorithm
from llmviewer.setting import Setting
from llmviewer.workload import Workload

V3 = {"experts": 256, "top_k": 8, "groups": Groups(8, 4)}


@pytest.mark.parametrize(
    ("loads", "held"),
    [
        ([90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1]),
        ([20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27], [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1]),
    ],
)
def test_experts_lie_as_in_the_example_of_eplb(loads, held):
    """The example of the README of deepseek-ai/EPLB: 16 replicas, 4 groups, 2 nodes, 8 GPUs."""
    assert list(chain(*rebalanced(loads, redundant=4, ranks=8, groups=4, domains=2))) == held


@given(st.lists(st.integers(1, 99), min_size=2, max_size=6), st.integers(0, 4))
def test_no_other_copies_leave_a_smaller_share(loads, redundant):
    experts, ranks = len(loads), len(loads) + redundant  # one on each rank, which leaves nothing to pack
    copies = Counter(chain(*rebalanced(loads, redundant=redundant, ranks=ranks)))
    others = (Counter([*range(experts), *more]) for more in combinations_with_replacement(range(experts), redundant))
    least = min(max(load / one[expert] for expert, load in enumerate(loads)) for one in others)
    assert max(load / copies[expert] for expert, load in enumerate(loads)) == least


@given(st.sampled_from([1, 2, 4, 8]), st.integers(0, 40), st.floats(0, 1.5), st.sampled_from([(1, 1), (8, 4)]))
def test_ranks_have_as_many_experts_and_all_tokens_between_them(nodes, more, skew, groups):
    ranks = 4 * nodes
    choice = ExpertChoice(experts=64, top_k=6, groups=Groups(*groups), skew=skew, redundant=more * ranks)
    shares = choice.shares(ranks, nodes)
    assert {len(rank) for rank in shares} == {64 // ranks + more}
    assert sum(map(sum, shares)) == pytest.approx(6)


@pytest.mark.parametrize(("skew", "tolerance"), [(0, 0.01), (0.6, 0.03)])
def test_ranks_per_token_equal_a_monte_carlo_count(skew, tolerance):
    """Tokens that choose 4 of 32 experts (systematic sampling), and any copy of each, which 8 ranks in two domains
    hold with 16 copies.
    """
    choice, random = ExpertChoice(experts=32, top_k=4, skew=skew, redundant=16), np.random.default_rng(0)
    tokens, shares = 100_000, np.array(choice.popularity())
    order = np.argsort(random.random((tokens, 32)), axis=1)
    passed = np.floor(np.cumsum(shares[order], axis=1) + random.random((tokens, 1)))
    taken = np.diff(passed, axis=1, prepend=0) > 0
    held = rebalanced(shares, redundant=16, ranks=8)
    places = {e: [rank for rank, own in enumerate(held) for one in own if one == e] for e in range(32)}
    goes = np.full((tokens, 32), -1)
    for expert, ranks in places.items():
        goes[:, expert] = np.array(ranks)[random.integers(len(ranks), size=tokens)]
    goes = np.where(taken, np.take_along_axis(goes, order, axis=1), -1)
    for members in (1, 4):
        counted = [np.mean((goes // members == run).any(axis=1)) for run in range(8 // members)]
        assert choice.needed(members, ranks=8) == pytest.approx(counted, rel=tolerance)


def test_copies_stay_in_the_domains_of_their_groups_where_these_divide_them():
    """So a token of DeepSeek-V3 goes to as many of four nodes as without copies, and to more of nine."""
    plain, copied = (ExpertChoice(**V3, redundant=redundant) for redundant in (0, 32))
    nodes = sum(plain.needed(8, ranks=32, domains=4))
    assert sum(copied.needed(8, ranks=32, domains=4)) == pytest.approx(nodes, rel=1e-9) == pytest.approx(22 / 7)
    assert sum(copied.needed(8, ranks=72, domains=9)) == pytest.approx(9 * (1 - (8 / 9) ** 8), rel=0.02)


# What a rank runs and holds.


def _setting(layout, **changes):
    return Setting.of("deepseek-v3", "h100-sxm", layout=layout, **changes)


@pytest.mark.parametrize(
    ("ep", "redundant", "each"), [(32, 0, 8), (32, 32, 9), (72, 32, 4), (144, 32, 2), (320, 64, 1)]
)
def test_experts_of_a_rank_of_deployments_of_deepseek_v3(ep, redundant, each):
    """arXiv:2412.19437, section 3.4 (32 and 320 GPUs); DeepSeek's inference system (144); SGLang's (72)."""
    graph = _setting(Layout(dp=ep, ep=ep, redundant_experts=redundant)).graph
    assert {op.weight.shape[0] for _, op in graph if isinstance(op, ExpertsLinear)} == {each}


def test_redundant_experts_take_memory_and_balance_expert_load():
    asked = {"batch": 256, "prompt": 1000, "gen": 2, "expert_skew": 0.6}
    plain, copied = (
        llmviewer.analyze("deepseek-v3", "h200-sxm", layout=f"dp=32 ep=32 {more}", **asked)
        for more in ("", "redundant-experts=32")
    )
    assert copied.generation.ttft_s < plain.generation.ttft_s
    assert copied.generation.expected_ttft_s < plain.generation.expected_ttft_s
    more = copied.memory.weight_bytes - plain.memory.weight_bytes
    assert more == pytest.approx(58 * 3 * 7168 * 2048 * (1 + 4 / 128**2), rel=1e-3)  # an expert of each layer, in fp8


@given(st.floats(0, 0.7), st.integers(1, 3))
def test_the_busiest_rank_of_many_is_hardly_busier_than_the_mean(skew, times):
    shares = ExpertChoice(**V3, skew=skew, redundant=32 * times).shares(32, 4)
    assert 1 <= max(map(sum, shares)) * 32 / 8 * (1 + 1e-9) <= 1.2


@pytest.mark.parametrize(("ranks", "tokens", "more"), [(32, 4096, 0.011), (32, 128, 0.063), (64, 32, 0.144)])
def test_chance_alone_makes_ranks_little_busier_than_the_mean(ranks, tokens, more):
    """Each token takes 8 of 256 experts, all equally likely."""
    random = np.random.default_rng(0)
    drawn = (
        random.multivariate_hypergeometric([256 // ranks] * ranks, 8, size=ranks * tokens, method="count").sum(axis=0)
        for _ in range(8)
    )
    assert np.mean([loads.max() / loads.mean() for loads in drawn]) - 1 == pytest.approx(more, rel=0.3)


def _speed(phase, layout, batch, length, skew):
    own = Setting.of("deepseek-v3", "h100-sxm", layout=layout, engine="sglang", expert_skew=skew)
    share = own.layout.micro_batch_size(batch * layout.dp)
    read = Workload.prefill(batch=share, prompt=length)
    workload = read if phase == "prefill" else Workload.decode(batch=share, kv_len=length)
    return batch / own.expected_time(phase, workload, batch * layout.dp).numbers()[0]


def test_redundant_expert_speedup_matches_sglang_at_one_skew():
    """lmsys.org/blog, 2025-05-05-large-scale-ep: 1.49 times as fast in prefills on 32 devices, 2.54 times in decode
    steps on 72, of which 256 experts without copies fill 64. The skew is chosen for the former.
    """
    prefill = [parse_layout(f"dp=32 ep=32 {more} two-batch-overlap") for more in ("", "redundant-experts=32")]
    without, copied = (_speed("prefill", layout, 4, 4096, 0.53) for layout in prefill)
    assert copied / without == pytest.approx(1.49, abs=0.03)
    ways = {"collective": Algorithm.RING, "two_batch_overlap": True}
    decode = [replace(Layout(dp=n, ep=n, redundant_experts=r), **ways) for n, r in ((64, 0), (72, 32))]
    without, copied = (_speed("decode", layout, 256, 2000, 0.53) for layout in decode)
    assert copied / without == pytest.approx(2.54, rel=0.04)


# What a user sees.


def test_layout_text_round_trips_redundant_experts():
    layout = parse_layout("dp=32, ep=32, redundant-experts=32, two-batch-overlap")
    assert layout == Layout(dp=32, ep=32, redundant_experts=32, two_batch_overlap=True)
    assert parse_layout(str(layout)) == layout


def test_report_states_expert_load_imbalance(capsys):
    asked = ["analyze", "deepseek-v3", "h200-sxm", "--dp", "32", "--ep", "32", "--batch", "64"]
    for more, told in (
        (["--expert-skew", "0.6"], "Expert load is uneven: the busiest of 32 ranks has 2.21 times the mean"),
        (["--expert-skew", "0.6", "--redundant-experts", "32"], "the busiest of 32 ranks has 1.06 times"),
        (["--redundant-experts", "32"], "(ep=32 dp=32 redundant-experts=32)"),
    ):
        assert main([*asked, *more]) == 0
        assert told in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        (
            "dp=32 ep=32 redundant-experts=10",
            "256 experts and 10 redundant ones cannot be divided evenly among 32 ranks; try redundant_experts=0 or 32",
        ),
        (
            "dp=2 ep=2 redundant-experts=258",
            "redundant_experts=258 exceeds one copy of each of the 256 experts per rank; try at most 256",
        ),
        ("tp=2 redundant-experts=2", "redundant experts need expert parallelism; give ep"),
    ],
)
def test_invalid_redundant_expert_layouts_are_refused(layout, told):
    with pytest.raises(InputError) as error:
        llmviewer.analyze("deepseek-v3", "h200-sxm", layout=layout)
    assert str(error.value) == told
