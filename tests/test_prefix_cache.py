"""Blocks of prompts that stay in memory as far as there is room: hits follow from it."""

import json
from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmviewer.cli import main
from llmviewer.serving.cache_bound import Acquired, Evicted, Released, most_hit_tokens
from llmviewer.serving.policy import parse_policy
from llmviewer.serving.prefix_cache import PrefixBlock, PrefixCache
from llmviewer.serving.server import serve
from llmviewer.serving.simulation import simulate
from llmviewer.serving.steps import Steps
from llmviewer.serving.trace_files import read_traffic
from llmviewer.serving.traffic import TRACE_BLOCK_TOKENS
from llmviewer.setting import Setting

MODEL, DEVICE = "llama-3.2-1b", "h100-sxm"
BLOCK = 16


@st.composite
def prompts(draw):
    """Requests of conversations that branch: each goes on from a beginning of one before, a name for each block."""
    found, names = [], iter(range(1000))
    for _ in range(draw(st.integers(1, 25))):
        before = draw(st.sampled_from(found)) if found else ()
        begin = before[: draw(st.integers(0, len(before)))]
        found.append((*begin, *(next(names) for _ in range(draw(st.integers(1, 4))))))
        if draw(st.booleans()):
            found.append(draw(st.sampled_from(found)))
    return found


def hits(requests, room):
    """Hit blocks of requests that run one after the other, with memory for `room` blocks."""
    cache, found = PrefixCache(), []
    for request, names in enumerate(requests):
        prompt = [PrefixBlock(name, 1, 1.0) for name in names]
        found.append(cache.hit_tokens(prompt))
        cache.acquire(request, prompt)
        cache.evict(room - len(prompt))
        cache.release(request)
        assert cache.idle_bytes == len(cache.idle) <= max(room, len(prompt))
        assert not cache.references
        assert cache.shared_bytes == 0
    return found


def least_recently_used(requests, room):
    """The same, written down as a list from the block used last to the one used longest ago."""
    recent, found = [], []
    for names in requests:
        count = next((at for at, name in enumerate(names) if name not in recent), len(names))
        found.append(count)
        recent = [*names, *(name for name in recent if name not in names)][: max(room, len(names))]
    return found


@given(prompts(), st.integers(1, 60))
@settings(deadline=None)
def test_sequential_requests_hit_as_in_an_lru_list(requests, room):
    assert hits(requests, room) == least_recently_used(requests, room)


@given(prompts(), st.integers(1, 60), st.integers(0, 30))
@settings(deadline=None)
def test_larger_cache_never_has_fewer_hits(requests, room, more):
    """LRU is a stack algorithm: a larger cache includes a smaller one's contents (doi:10.1147/sj.92.0078)."""
    assert all(one <= other for one, other in zip(hits(requests, room), hits(requests, room + more), strict=True))


def test_running_requests_share_blocks_and_pin_them():
    cache = PrefixCache()
    one, other = ([PrefixBlock(name, 512, 2.0) for name in names] for names in ((1, 2, 3), (1, 2, 4)))
    cache.acquire(0, one)
    assert (cache.hit_tokens(other), cache.held_bytes(other)) == (1024, 4.0)
    cache.acquire(1, other)
    assert cache.shared_bytes == 4.0
    cache.release(0)
    assert (cache.shared_bytes, cache.idle_bytes) == (0, 2.0)
    assert cache.evict(0) == 512
    assert cache.hit_tokens(one) == 1024
    cache.release(1, computed=700)  # preempted during its prefill
    assert (cache.hit_tokens(one), cache.idle_bytes) == (512, 2.0)


# --- the bound of any eviction policy ---


@st.composite
def histories(draw):
    """Events of a cache with blocks of one token, and the prompts: requests run one after the other or together."""
    requests = draw(prompts())[:6]
    events, running = [], []
    for request in range(len(requests)):
        events += [Acquired(request, draw(st.integers(1, len(requests[request])))), Evicted(draw(st.integers(0, 3)))]
        running.append(request)
        while running and draw(st.booleans()):
            done = running.pop(draw(st.integers(0, len(running) - 1)))
            events += [Released(done), Evicted(draw(st.integers(0, 3)))]
    return events, [tuple(PrefixBlock(name, 1, 1.0) for name in names) for names in requests]


def lru_hits(events, prompts):
    cache, found = PrefixCache(), 0
    for event in events:
        if isinstance(event, Acquired):
            found += min(cache.hit_tokens(prompts[event.request]), event.reusable)
            cache.acquire(event.request, prompts[event.request])
        elif isinstance(event, Released):
            cache.release(event.request)
        else:
            cache.evict(event.spare_bytes)
    return found


def best_hits(events, prompts):
    """Every choice of idle blocks to keep, at every eviction."""
    references, best = Counter(), {frozenset(): 0}
    for event in events:
        states = {}

        def reach(state, hits, states=states):
            states[state] = max(states.get(state, -1), hits)

        for state, hits in best.items():
            if isinstance(event, Evicted):
                for count in range(min(len(state), event.spare_bytes) + 1):
                    for chosen in combinations(sorted(state), count):
                        reach(frozenset(chosen), hits)
                continue
            ids = [block.id for block in prompts[event.request]]
            if isinstance(event, Acquired):
                missing = [at for at, id_ in enumerate(ids) if not references[id_] and id_ not in state]
                reach(state - set(ids), hits + min([*missing, event.reusable]))
            else:
                reach(state | {id_ for id_ in ids if references[id_] == 1}, hits)
        if not isinstance(event, Evicted):
            (references.update if isinstance(event, Acquired) else references.subtract)(ids)
        best = states
    return max(best.values())


@given(histories())
@settings(deadline=None)
def test_no_choice_of_evicted_blocks_hits_more_than_the_bound(history):
    events, found = history
    assert lru_hits(events, found) <= best_hits(events, found) == most_hit_tokens(events, found.__getitem__)


@given(prompts(), st.integers(1, 40), st.data())
@settings(deadline=None)
def test_lru_hits_no_more_than_the_bound_with_blocks_of_any_size(requests, room, data):
    """Requests one after the other; the bound grows with memory, and without a limit it is all that repeats."""
    names = sorted({name for request in requests for name in request})
    sizes = dict(
        zip(names, data.draw(st.lists(st.integers(1, 9), min_size=len(names), max_size=len(names))), strict=True)
    )
    per_token = data.draw(st.sampled_from([1.0, 2.5]))
    found = [tuple(PrefixBlock(name, sizes[name], sizes[name] * per_token) for name in one) for one in requests]

    def events_with(room):
        each = ((Acquired(i, sum(block.tokens for block in found[i]) - 1), Evicted(room), Released(i),
                 Evicted(room)) for i in range(len(found)))  # fmt: skip
        return [event for group in each for event in group]

    bounds = [most_hit_tokens(events_with(size), found.__getitem__) for size in (room, 2 * room, np.inf)]
    assert bounds == sorted(bounds)
    assert lru_hits(events_with(room), found) <= bounds[0] + 1e-9
    assert lru_hits(events_with(np.inf), found) == bounds[2]


# --- what a server makes of a trace ---


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Conversations with one beginning in common, whose turns are some seconds apart."""
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    generator = np.random.default_rng(7)
    names, talks, lines, moment = iter(range(10, 10**6)), [], [], 0.0
    for _ in range(250):
        moment += generator.exponential(60)
        if not talks or generator.random() < 0.3:
            talks.append([1, 2])
        talk = talks[generator.integers(max(len(talks) - 12, 0), len(talks))]
        length = TRACE_BLOCK_TOKENS * len(talk) + int(generator.integers(1, 3000))
        blocks = [*talk, *(next(names) for _ in range(-(-length // TRACE_BLOCK_TOKENS) - len(talk)))]
        talk[:] = blocks[: length // TRACE_BLOCK_TOKENS]
        lines.append({"timestamp": moment, "input_length": length, "output_length": int(generator.integers(1, 200)),
                      "hash_ids": blocks})  # fmt: skip
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def steps_with(tokens):
    """Steps on a device with KV-cache capacity for `tokens` tokens in addition to a step of 8192."""
    steps = Steps(Setting.of(MODEL, DEVICE))
    less = steps.kv_budget_bytes(8192) - tokens * float(steps.cache_bytes(1.0))
    capacity = steps.setting.hardware.capacity - less
    return Steps(Setting.of(MODEL, DEVICE, hardware_set=[f"memory.capacity={capacity:.0f} B"]))


def served(traffic, tokens, policy="chunked:8192", max_batch=64):
    return serve(steps_with(tokens), traffic, policy=parse_policy(policy), max_batch=max_batch, block=BLOCK)


@pytest.mark.parametrize("policy", ["static", "prefill-first:8192", "chunked:8192"])
def test_unlimited_memory_hits_every_repeated_block(trace, policy):
    traffic = read_traffic(trace)
    found = served(traffic, 4_000_000, policy)
    assert np.array_equal(found.known, traffic.cached)
    assert (found.usage.known, found.usage.evicted) == (traffic.cached.sum(), 0)
    assert 0.4 < traffic.repeated == found.usage.there


@pytest.mark.slow("simulates thousands of requests")
def test_more_memory_finds_more(trace):
    """Cached tokens of each request where they run one at a time; in total where many do."""
    traffic = read_traffic(trace)
    longest = int(np.max(traffic.prompt + traffic.gen))
    rooms = (longest + BLOCK, 2 * longest, 8 * longest, 4_000_000)
    alone = [served(traffic, room, max_batch=1) for room in rooms]
    assert all(np.all(one.known <= other.known) for one, other in pairwise(alone))
    assert alone[0].usage.known < 0.7 * alone[-1].usage.known
    busy = [served(traffic, room) for room in rooms]
    known = [each.usage.known for each in busy]
    assert known == sorted(known)
    assert busy[0].usage.known < busy[0].usage.known_at_most < traffic.cached.sum()
    for each in (*alone, *busy):
        assert each.usage.known <= each.usage.known_at_most + 1e-6
        assert each.usage.known_at_most <= traffic.cached.sum() or each.usage.reread
        assert each.usage.peak_bytes <= each.usage.room_bytes
        assert each.usage.read + each.usage.known + each.usage.reread >= traffic.prompt.sum()
        assert each.usage.evicted <= each.usage.read + each.usage.reread
        assert np.all(each.known <= traffic.cached)


def lines(path, *rows):
    """A trace of (milliseconds, tokens, blocks), each with an answer of 8 tokens."""
    named = ({"timestamp": t, "input_length": n, "output_length": 8, "hash_ids": ids} for t, n, ids in rows)
    path.write_text("\n".join(map(json.dumps, named)))
    return read_traffic(path)


def test_without_free_memory_only_running_requests_share_blocks(tmp_path):
    """Prompts of four blocks that take turns in memory for one; two at once share what is alike."""
    turns = [(10_000 * at, 2048, [at % 2 * 10 + block for block in range(4)]) for at in range(6)]
    traffic = lines(tmp_path / "turns.jsonl", *turns)
    assert traffic.cached.tolist() == [0, 0, *([2047] * 4)]
    assert served(traffic, 2048 + BLOCK).known.tolist() == [0] * 6
    assert served(traffic, 2 * 2048 + BLOCK).known.tolist() == traffic.cached.tolist()
    pair = lines(tmp_path / "pair.jsonl", (0, 2048, [0, 1, 2, 3]), (0, 2048, [0, 1, 2, 9]))
    found = served(pair, 2048 + 512 + 4 * BLOCK)
    assert found.known.tolist() == [0, 1536]
    token = float(Steps(Setting.of(MODEL, DEVICE)).cache_bytes(1.0))
    assert found.usage.peak_bytes == pytest.approx((2048 + 512 + 2 * BLOCK) * token)


def test_preempted_request_hits_its_remaining_blocks(tmp_path):
    """Answers grow until one of two has to go, and then the last block of its prompt; when it grows in turn, the last
    of the other's.
    """
    rows = [(0, 1024, [0, 1]), (0, 1024, [2, 3])]
    named = ({"timestamp": t, "input_length": n, "output_length": 600, "hash_ids": ids} for t, n, ids in rows)
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, named)))
    found = served(read_traffic(tmp_path / "t.jsonl"), 2 * 1024 + 300)
    assert found.preempted.tolist() == [0, 1]
    assert (found.usage.known, found.usage.evicted) == (512, 1024)


def test_report_shows_possible_hits_actual_hits_and_evictions(trace, capsys):
    small = ["--hardware-set", "memory.capacity=3.2 GB"]
    asked = ["simulate", MODEL, DEVICE, "--arrivals", str(trace), "--bound", *small]
    assert main(asked) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert main([*asked, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    usage = document["usage"]
    there = usage["known"] / (usage["known"] + usage["read"] + usage["reread"])
    assert 0 < there < document["repeated"] - 0.1
    came = f"{document['repeated']:.1%} of the prompt tokens repeat a prefix of an earlier prompt"
    gone = f"{usage['evicted']:,.0f} tokens were evicted for lack of memory."
    most = f"{document['hit_rate_at_most']:.1%} at most with any eviction (Belady)"
    assert f"{came}; hit rate {there:.1%}, {most}; {gone}" in words
    assert document["hit_rate"] == there < document["hit_rate_at_most"] <= document["repeated"]
    pair = simulate(MODEL, DEVICE, arrivals=trace, replicas=2, bound=True)
    assert pair.usage.evicted == 0
    assert pair.usage.there < pair.traffic.repeated
    apart = simulate(MODEL, DEVICE, arrivals=trace, prefill_replicas=1, bound=True)
    assert apart.usage.evicted == 0
