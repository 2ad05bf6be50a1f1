"""Routers that choose a token's experts from some groups of them: how many ranks and nodes it goes to."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from llmviewer.forms import evaluate
from llmviewer.model_files import load_model
from llmviewer.operators.collectives import AllToAll
from llmviewer.operators.elementwise import Route
from llmviewer.operators.routing import UNGROUPED, ExpertChoice, Groups
from llmviewer.resource import link
from llmviewer.setting import Setting
from llmviewer.workload import Workload

V2 = {"experts": 160, "chosen": 6, "groups": 8, "reached": 3}  # groups by their best expert
V3 = {"experts": 256, "chosen": 8, "groups": 8, "reached": 4}  # by their two best


def routed(router, best, tokens=40_000):
    """The experts that tokens of random scores choose, as the models' own routers do, and how often each is chosen."""
    experts, groups = router["experts"], router["groups"]
    scores = np.random.default_rng(0).random((tokens, groups, experts // groups))
    worth = np.sort(scores, axis=2)[:, :, -best:].sum(axis=2)
    left_out = np.argsort(worth, axis=1)[:, : groups - router["reached"]]
    np.put_along_axis(scores, left_out[:, :, None], -1, axis=1)
    return np.argpartition(scores.reshape(tokens, experts), -router["chosen"], axis=1)[:, -router["chosen"] :]


@pytest.mark.parametrize(("router", "best"), [(V2, 1), (V3, 2)])
def test_a_token_goes_to_as_many_places_as_with_the_routers_of_deepseek(router, best):
    chosen = routed(router, best)
    for places in (2, 4, 8, 16, 32):
        run = router["experts"] // places
        choice = ExpertChoice(experts=router["experts"], top_k=router["chosen"], groups=Groups(8, router["reached"]))
        visited = np.mean([len(set(row)) for row in (chosen // run).tolist()])
        assert sum(choice.needed(1, ranks=places)) == pytest.approx(visited, rel=0.02)


def test_all_experts_are_as_often_chosen_and_reached_as_without_groups():
    """Each is, by symmetry, in the part k / E of the tokens, which choose apart from each other."""
    chosen = routed(V3, 2)
    assert np.bincount(chosen.ravel()) / len(chosen) == pytest.approx(np.full(256, 8 / 256), rel=0.2)
    reached = np.mean([len(set(rows.ravel().tolist())) for rows in chosen.reshape(-1, 20, 8)])
    assert Workload.decode(batch=20, kv_len=1).distinct_experts(256, 8) == pytest.approx(reached, rel=0.01)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 6), st.data())
def test_the_chance_is_that_of_all_choices_counted_one_by_one(groups, size, reached, chosen, data):
    assume(reached <= groups and reached <= chosen <= reached * size)
    experts = groups * size
    run = data.draw(st.sampled_from([n for n in range(1, experts + 1) if experts % n == 0]))
    missed = []
    for taken in combinations(range(groups), reached):
        heads = np.array(np.meshgrid(*([range(g * size, (g + 1) * size) for g in taken]))).reshape(reached, -1).T
        for best in heads.tolist():  # the best of each group; the others of a token are any of the rest
            left = [e for g in taken for e in range(g * size, (g + 1) * size) if e not in best]
            picks = [{*best, *others} for others in combinations(left, chosen - reached)]
            missed += [sum(not {e // run for e in pick} & {place} for place in range(experts // run)) for pick in picks]
    counted = np.mean(missed) / (experts // run)
    choice = ExpertChoice(experts=experts, top_k=chosen, groups=Groups(groups, reached))
    assert choice.needed(1, ranks=experts // run)[0] == pytest.approx(1 - counted)


@given(st.integers(1, 12), st.integers(1, 40), st.integers(1, 12))
def test_one_group_is_a_choice_without_replacement(run, runs, chosen):
    experts = run * runs
    chosen = min(chosen, experts)
    needed = ExpertChoice(experts=experts, top_k=chosen).needed(1, ranks=runs)
    assert needed == pytest.approx([1 - comb(experts - run, chosen) / comb(experts, chosen)] * runs)


@given(st.sampled_from([V2, V3]), st.sampled_from([1, 2, 4, 8, 16]), st.floats(0, 1))
def test_groups_lower_what_is_sent_and_a_skew_does_so_little_by_little(router, members, skew):
    def needed(skew, groups):
        choice = ExpertChoice(experts=router["experts"], top_k=router["chosen"], groups=groups, skew=skew)
        return choice.needed(members, ranks=32)[0]

    own = Groups(router["groups"], router["reached"])
    assert needed(skew, own) <= needed(skew, UNGROUPED) <= 1
    assert needed(1e-9, own) == pytest.approx(needed(0, own))


def test_inter_node_dispatch_bytes_of_deepseek_v3_by_hand():
    """Four nodes have two of the groups each, of which a token reaches four: it misses a node where it takes none of
    its two. A row of fp8 with its scales goes there once, of which three quarters are other nodes'.
    """
    setting = Setting.of("deepseek-v3", "h100-sxm", layout="dp=32 ep=32")
    dispatch = next(op for _, op in setting.graph if isinstance(op, AllToAll) and op.name == "dispatch")
    nodes = 4 * (1 - comb(6, 4) / comb(8, 4))
    assert nodes == pytest.approx(22 / 7)
    sent = evaluate(dispatch.link_traffic()[link("scale_out")], Workload.prefill(batch=1, prompt=1000))
    assert sent == pytest.approx(1000 * 7168 * (1 + 4 / 128) * nodes * 3 / 4)


def test_group_limited_routing_follows_the_config():
    def limited(name):
        (found,) = {op.groups for _, op in load_model(name).graph if isinstance(op, Route)}
        return found

    assert limited("deepseek-v3") == limited("deepseek-r1") == limited("ling-1t") == (8, 4)
    assert limited("deepseek-v2") == (8, 3)
    assert limited("deepseek-v2-lite") == limited("kimi-k2") == limited("qwen3-30b-a3b") == (1, 1)
