"""Closed forms against counting: every query, every step, every tensor, every batch one by one."""

from __future__ import annotations

from collections import Counter
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer.analyzing.analysis import analyze
from llmviewer.devices.files import load_hardware
from llmviewer.devices.hardware import Hardware
from llmviewer.forms import Form, evaluate
from llmviewer.generation import decode_s, generation
from llmviewer.graph import Block, Graph
from llmviewer.memory import Footprint, _largest, activation_bytes, live_bytes, memory
from llmviewer.model_files import load_model
from llmviewer.operators.base import Role, Tensor
from llmviewer.operators.elementwise import Add
from llmviewer.precision import FP16, FP32
from llmviewer.roofline import plan
from llmviewer.sweeping.grid import sweep
from llmviewer.transforms.flash_attention import flash_attention
from llmviewer.transforms.quantize import parse_quantization, quantize
from llmviewer.workload import Sequences, Thinned, Workload

from .strategies import balanced_devices, graphs, sequences, workloads

windows = st.one_of(st.just(inf), st.integers(1, 130).map(float))


def _seen(s, window):
    """For each new token of one sequence, the positions of the keys that it attends to."""
    past, new = int(s.kv_len - s.q_len), int(s.q_len)
    return [[key for key in range(past + i + 1) if past + i - key < window] for i in range(new)]


@given(sequences(), windows)
def test_pairs_are_the_keys_that_each_query_sees(s, window):
    assert s.pairs(window) == sum(len(keys) for keys in _seen(s, window))


@given(sequences(), windows)
def test_kv_tokens_are_the_keys_that_any_query_sees(s, window):
    assert s.kv_tokens(window) == len({key for keys in _seen(s, window) for key in keys})


@given(sequences(), windows, st.integers(1, 70).map(float), st.integers(0, 130).map(float))
def test_kv_streams_are_the_keys_that_each_tile_of_queries_sees_unless_all_can_stay(s, window, tile, resident):
    seen = _seen(s, window)
    tiles = [seen[i : i + int(tile)] for i in range(0, int(s.q_len), int(tile))]
    tiled = sum(len({key for keys in rows for key in keys}) for rows in tiles)
    once = len({key for keys in seen for key in keys})
    assert s.kv_streams(tile, resident, window) == (once if once <= resident else tiled)


@pytest.mark.parametrize(("past", "new"), [(0, 4096), (5000, 1), (3000, 600)])
@pytest.mark.parametrize("window", [inf, 512.0])
def test_query_tiles_stream_participating_keys_only(past, new, window):
    random, share, tile = np.random.default_rng(0), 0.25, 16
    found = Thinned(batch=1, q_len=new, kv_len=past + new, share=share).kv_streams(tile, 0.0, window)
    drawn = []
    for _ in range(200 if new > 1 else 4000):
        places = np.flatnonzero(random.random(past + new) < share)
        rows = places[places >= past]
        tiles = [rows[i : i + tile] for i in range(0, len(rows), tile)]
        drawn.append(sum(np.count_nonzero((places > t[0] - window) & (places <= t[-1])) for t in tiles))
    assert found == pytest.approx(np.mean(drawn), rel=0.05)


@given(sequences(), st.integers(1, 130))
def test_chunked_keys_are_those_of_the_chunk_of_each_query(s, chunk):
    past, total = int(s.kv_len - s.q_len), int(s.kv_len)
    seen = [[key for key in range(p + 1) if key // chunk == p // chunk] for p in range(past, total)]
    assert s.chunked_pairs(chunk) == sum(map(len, seen))
    assert s.chunked_kv(chunk) == len({key for keys in seen for key in keys})


@given(st.integers(1, 90), st.integers(0, 100))
def test_near_pairs_are_the_tokens_within_reach_of_each(n, reach):
    s = Sequences(batch=1, q_len=n, kv_len=n)
    assert s.near_pairs(reach) == sum(abs(i - j) <= reach for i in range(n) for j in range(n))


@given(st.integers(1, 90), st.integers(0, 40), st.integers(1, 30), st.integers(1, 3))
def test_encoder_processes_the_source_once_and_the_decoder_its_own_tokens(source, wrote, patches, pictures):
    """A prefill and a step for each token after the first, against a loop over the tokens of both sides."""
    passes = [Workload.prefill(batch=2, prompt=source, images=pictures)]
    passes += [Workload.decode(batch=2, kv_len=source + i, prompt=source) for i in range(1, wrote + 1)]
    assert [w.source().tokens() for w in passes] == [2 * source] + [0] * wrote
    assert [w.source().one() for w in passes] == [1] + [0] * wrote
    assert [w.source().pairs(inf) for w in passes] == [source * (source + 1)] + [0] * wrote
    assert [w.target().tokens() for w in passes] == [2] * (wrote + 1)
    assert [w.target().kv_tokens(inf) for w in passes] == [2 * (i + 1) for i in range(wrote + 1)]
    assert [w.target().logits() for w in passes] == [2] * (wrote + 1)
    assert [w.cross_pairs() for w in passes] == [2 * source] * (wrote + 1)
    assert [w.source_kv() for w in passes] == [2 * source] * (wrote + 1)
    assert [w.images(patches).tokens() for w in passes] == [2 * pictures * patches] + [0] * wrote
    assert [w.images(patches).sequences() for w in passes] == [2 * pictures] + [0] * wrote
    assert [w.images(patches).one() for w in passes] == [1] + [0] * wrote


@given(workloads(), windows, st.integers(1, 70).map(float))
def test_pass_totals_equal_the_sum_over_sequences(w, window, tile):
    one_by_one = [s for s in w.groups for _ in range(int(s.batch))]
    assert w.sequences() == len(one_by_one)
    assert w.tokens() == sum(s.q_len for s in one_by_one)
    assert w.logits() == sum(s.logits for s in one_by_one)
    assert w.pairs(window) == sum(s.pairs(window) for s in one_by_one)
    assert w.kv_tokens(window) == sum(s.kv_tokens(window) for s in one_by_one)
    assert w.kv_streams(tile, 9.0, window) == sum(s.kv_streams(tile, 9.0, window) for s in one_by_one)
    assert w.cells(window) == sum(s.q_len * s.kv_tokens(window) for s in one_by_one)
    assert w.one() == 1


@given(workloads(), windows)
def test_a_mask_leaves_at_least_one_key_a_query_and_at_most_the_whole_matrix(w, window):
    assert w.tokens() <= w.pairs(window) <= w.cells(window)


def _steps(laid_out, batch, first, last):
    return sum(laid_out.time_s(Workload.decode(batch=batch, kv_len=n)) for n in range(first, last + 1))


@given(graphs(), balanced_devices(), st.integers(1, 300), st.integers(1, 90), st.integers(0, 90))
def test_the_time_of_decoding_is_the_sum_over_its_steps(graph, hardware, batch, first, more):
    laid_out = plan(graph.then(flash_attention(hardware.on_chip_bytes)), hardware)
    found = decode_s(laid_out, batch=batch, first=first, last=first + more)
    # 1e-12: each step is a point on a line that the closed form draws between its ends
    assert found == pytest.approx(_steps(laid_out, batch, first, first + more), rel=1e-12)


@pytest.mark.parametrize(
    ("model", "batch", "quant", "first", "last"),
    [
        ("llama-2-7b", 1, "W16A16", 1, 400),
        ("llama-3-8b", 256, "W8A8", 1, 400),  # compute-bound linears
        ("mistral-7b-v0.1", 64, "W4A16g128", 4000, 4200),  # the window of 4096 fills on the way
        ("llama-4-scout", 64, "W4A16", 8100, 8300),  # the chunk of 8192 ends on the way, and starts anew
        ("falcon-7b", 512, "KV8", 1, 500),  # multi-query attention turns from one bound to another
        ("qwen2.5-0.5b", 333, "W4KV4", 17, 400),
    ],
)
@pytest.mark.parametrize("device", ["h100-sxm", "t4", "i9-13900k"])
def test_the_time_of_decoding_shipped_models_is_the_sum_over_its_steps(model, batch, quant, first, last, device):
    hardware = load_hardware(device)
    graph = load_model(model).graph.then(quantize(parse_quantization(quant)), flash_attention(hardware.on_chip_bytes))
    laid_out = plan(graph, hardware)
    found = decode_s(laid_out, batch=batch, first=first, last=last)
    assert found == pytest.approx(_steps(laid_out, batch, first, last), rel=1e-12)


lengths_and_gens = st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=4)


@given(graphs(), balanced_devices(), st.integers(1, 30), lengths_and_gens)
def test_generations_side_by_side_equal_each_alone(graph, hardware, batch, lengths):
    laid_out = plan(graph.then(flash_attention(inf)), hardware)
    prompt, gen = (np.array(column) for column in zip(*lengths, strict=True))
    together = generation(laid_out, batch=batch, prompt=prompt, gen=gen)
    for index, (n, m) in enumerate(lengths):
        alone = _steps(laid_out, batch, n + 1, n + m - 1)
        assert together.ttft_s[index] == laid_out.time_s(Workload.prefill(batch=batch, prompt=n))
        assert together.latency_s[index] == pytest.approx(together.ttft_s[index] + alone, rel=1e-12)
        assert np.isnan(together.tpot_s[index]) == (m == 1)


@st.composite
def blocks(draw) -> Block:
    """Additions of earlier tensors, each with a result of its own width; the last is what the block leaves."""
    tensors = [Tensor(name="in", width=draw(st.integers(1, 9)), format=FP16)]
    operators = []
    for index in range(draw(st.integers(1, 7))):
        read = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3, unique=True))
        role = draw(st.sampled_from((Role.ACTIVATION, Role.ACTIVATION, Role.KV_CACHE)))
        made = (
            Tensor(name=f"t{index}", width=draw(st.integers(1, 9)), format=draw(st.sampled_from((FP16, FP32)))),
            Tensor(name=f"c{index}", width=draw(st.integers(1, 9)), format=FP16, role=role),
        )
        operators.append(Add(name=f"op{index}", inputs=tuple(read), outputs=made, ops_per_element=1))
        tensors.extend(made)
    kept = tuple(t.name for t in draw(st.lists(st.sampled_from(tensors), max_size=2, unique=True)))
    return Block(name="b", operators=tuple(operators), input="in", output=made[0].name, live_tensors=kept)


@given(blocks(), st.integers(1, 5))
def test_live_bytes_are_those_of_an_allocator_that_frees_at_the_last_use(block, tokens):
    w = Workload.chunk(batch=1, chunk=tokens, past=0)
    uses = Counter(t.name for op in block.operators for t in op.inputs)
    stay = {block.output, *block.live_tensors}
    held, most = {}, []
    if "in" in uses:  # what no operator reads was freed by the block before
        held["in"] = next(t for op in block.operators for t in op.inputs if t.name == "in").width * 2 * tokens
    for op in block.operators:
        held |= {t.name: t.width * int(t.format.bits) // 8 * tokens for t in op.outputs if t.role is Role.ACTIVATION}
        most.append(sum(held.values()))
        for t in op.inputs:
            uses[t.name] -= 1
        for t in (*op.inputs, *op.outputs):
            if uses[t.name] == 0 and t.name not in stay:
                held.pop(t.name, None)
    assert [evaluate(form, w) for form in live_bytes(block)] == most
    assert activation_bytes(Graph((block,)), w) == max(most)


@given(st.integers(0, 5000), st.integers(2, 70))
def test_search_finds_the_largest_fitting_value_anywhere(edge, fan):
    assert _largest(lambda n: n <= edge, fan) == edge


@pytest.mark.parametrize("edge", [0, 1, 63, 64, 65, 2**20, 2**31 + 7, 2**40 - 1])
def test_the_largest_that_fits_is_found_at_the_ends(edge):
    assert _largest(lambda n: n <= edge) == edge


def test_where_all_fit_there_is_no_largest():
    assert _largest(lambda n: n < inf) is None
    assert _largest(lambda n: np.True_) is None  # which depends on no number
    assert _largest(lambda n: np.False_) == 0


@given(graphs(), st.integers(1, 4), st.integers(1, 30), st.integers(1, 10), st.integers(0, 400_000))
def test_the_largest_batch_and_context_equal_a_linear_search(graph, batch, prompt, gen, spare):
    footprint = Footprint.of(graph)
    capacity = footprint.parts(batch=1, prompt=1, gen=1)[0] + spare
    found = memory(footprint, capacity, batch=batch, prompt=prompt, gen=gen)

    def fits(**given):
        return footprint.total_bytes(gen=gen, **given) <= capacity

    n = 0
    while n < 400 and fits(batch=n + 1, prompt=prompt):
        n += 1
    if n < 400:
        assert found.max_batch == n
    n = 0
    while n < 400 and fits(batch=batch, prompt=n + 1):
        n += 1
    if n < 400:
        assert found.max_context == (n + gen if n else 0)


def test_the_largest_batch_of_llama_2_7b_on_a_t4_with_4_bit_weights():
    graph = load_model("llama-2-7b").graph.then(quantize(parse_quantization("W4")), flash_attention(inf))
    capacity = 15360 * 2**20
    weights = 2 * 2 * 32000 * 4096 + 32 * (4 * 4096**2 + 3 * 4096 * 11008) // 2 + 2 * 65 * 4096
    one = 1026 * 524288 + 1024 * 2 * (3 * 11008 + 4096)  # cache of 1024 + 2 tokens; gate, up, their product, residual
    found = memory(Footprint.of(graph), capacity, batch=1, prompt=1024, gen=2)
    assert found.weight_bytes == weights
    assert found.kv_cache_bytes + found.activation_bytes == one
    assert found.max_batch == (capacity - weights) // one


def test_forms_evaluate_as_written():
    form: Form = 3 * Tensor(name="x", width=5, format=FP16).nbytes
    assert evaluate(form, Workload.decode(batch=7, kv_len=2)) == 3 * 5 * 2 * 7


@given(graphs(), balanced_devices())
def test_no_step_of_a_generation_is_free(graph: Graph, hardware: Hardware):
    laid_out = plan(graph.then(flash_attention(inf)), hardware)
    two, three = (generation(laid_out, batch=1, prompt=5, gen=gen) for gen in (2, 3))
    assert three.latency_s > two.latency_s


@pytest.mark.parametrize(("prompt", "batch"), [(2**53 - 9, 1), (3_037_000_500, 1), (4 * 10**9, 10**6)])
def test_no_count_is_negative_at_sizes_beyond_those_of_64_bit_integers(prompt, batch):
    """(query, key) cells of eager attention with a window are more than 2^63; analyze and sweep agree on them."""
    found = analyze("mistral-7b-v0.1", "h100-sxm", attention="eager", prompt=prompt, batch=batch, gen=2, bound=True)
    assert all(min(op.ops, op.bytes, op.bound_time_s) >= 0 for _, phase in found.phases for op in phase.operators)
    (qk,) = (op for op in found.phases.prefill.operators if op.name == "qk_matmul")
    assert qk.bytes >= 2 * 32 * 32 * batch * prompt * prompt  # scores of 32 heads in 32 layers
    swept = sweep("mistral-7b-v0.1", "h100-sxm", {"prompt": [prompt]}, batch=batch, gen=2, attention="eager")
    assert swept.columns["ttft_s"][0] == pytest.approx(found.generation.ttft_s)
