"""Several devices: what each has of the whole, what they send each other, and how stages follow each other."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, comb, inf, log, prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmviewer.analyzing.analysis import analyze
from llmviewer.devices.files import load_hardware
from llmviewer.errors import InputError
from llmviewer.forms import evaluate
from llmviewer.generation import decode_s, generation, prefill_s
from llmviewer.memory import memory, weight_bytes
from llmviewer.model import kv_cache
from llmviewer.model_files import load_model
from llmviewer.operators.attention import Attention, FlashAttention
from llmviewer.operators.base import RETAINED_ROLES, Role, Tensor
from llmviewer.operators.collectives import AllGather, AllReduce, AllToAll, Collective, Group, Send
from llmviewer.operators.elementwise import Rope
from llmviewer.operators.linear import ExpertsLinear, Linear, LMHead
from llmviewer.operators.routing import ExpertChoice
from llmviewer.operators.state_space import Scan
from llmviewer.parallel import parallel
from llmviewer.parallel.layout import Layout, Network, parse_layout
from llmviewer.parameters import Algorithm
from llmviewer.precision import FP16
from llmviewer.resource import hop, link
from llmviewer.setting import Setting
from llmviewer.workload import Workload, popularity

from .cases import few_types, for_each, one_per_type

NODES = ("scale_up.devices=8", "scale_up.latency=1 us", "scale_out.bandwidth=50 GB/s", "scale_out.latency=5 us")
H100 = load_hardware("h100-sxm", NODES)
DENSE = ("llama-2-7b", "llama-3.1-70b", "opt-30b", "falcon-40b", "gpt-j-6b", "gemma-2-27b", "olmo-2-7b")


def _shared(name, *, decode=False, **degrees):
    return parallel(Network.of(H100, Layout(**degrees)), decode=decode)(load_model(name).graph).check()


def _sum(graph, form_of, workload):
    return sum(block.repeat * evaluate(form_of(op), workload) for block, op in graph)


def _matrix_ops(graph, workload):
    return _sum(graph, lambda op: op.work().ops if isinstance(op, Linear) else op.work().ops * 0, workload)


def step_s(setting, *, batch, kv_len, prompt=0):
    """Between two tokens of a sequence."""
    workload = Workload.decode(batch=setting.layout.micro_batch_size(batch), kv_len=kv_len, prompt=prompt)
    return float(setting.time_s("decode", workload, batch))


# What a device has of the whole.


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("name", DENSE)
def test_tensor_parallel_ranks_sum_to_all_matrix_products(name, tp):
    heads = {op.heads.num_heads for _, op in load_model(name).graph if op.name == "qk_matmul"}
    if any(n % tp for n in heads):
        pytest.skip("refused: tested below")
    shared = _shared(name, tp=tp)
    for workload in (Workload.prefill(batch=2, prompt=300), Workload.decode(batch=3, kv_len=500)):
        whole = _matrix_ops(load_model(name).graph, workload)
        assert tp * _matrix_ops(shared, workload) == pytest.approx(whole, rel=1e-3)  # a vocabulary rounded up


@pytest.mark.parametrize(("name", "tp"), [("llama-3.1-70b", 8), ("llama-2-70b", 8), ("mixtral-8x7b", 4)])
def test_weights_and_cache_are_cut_into_equal_parts(name, tp):
    whole, part = load_model(name).graph, _shared(name, tp=tp)
    norms = sum(b.repeat * sum(w.numel for w in op.weights) for b, op in whole if op.kind == "norm")
    routers = sum(b.repeat * sum(w.numel for w in op.weights) for b, op in whole if op.kind == "router")
    assert part.parameters == (whole.parameters - norms - routers) / tp + norms + routers
    step = Workload.decode(batch=1, kv_len=1000)
    assert evaluate(kv_cache(part), step) == evaluate(kv_cache(whole), step) / tp


def test_a_kv_head_is_copied_where_there_are_fewer_than_ranks():
    whole, part = load_model("falcon-7b").graph, _shared("llama-3.1-8b", tp=16, dp=1)
    assert {op.heads.num_kv_heads for _, op in part if op.name == "qk_matmul"} == {1}
    step = Workload.decode(batch=1, kv_len=100)
    assert evaluate(kv_cache(part), step) == 32 * 100 * 2 * 128 * 2  # one head of eight on each of sixteen
    assert {op.heads.num_kv_heads for _, op in whole if op.name == "qk_matmul"} == {1}


def test_a_cache_that_another_layer_wrote_is_cut_as_that_layer_cuts_it():
    part = _shared("gemma-4-26b-a4b", tp=2)
    widths = {(b.name, t.width) for b, op in part for t in op.inputs if t.name == "k_cache" and op.name == "qk_matmul"}
    lent = _shared("gemma-3n-e4b", tp=2)
    of_all = {t.width for _, op in lent for t in op.inputs if t.name == "k_cache"}
    assert of_all == {256}  # one of two heads of 256 in every layer
    assert {width for _, width in widths} == {4 * 256, 512}  # four of eight heads, and one of two twice as wide


def test_latent_attention_cuts_heads_and_copies_the_latent():
    whole, part = load_model("deepseek-v3").graph, _shared("deepseek-v3", tp=8)
    shapes = {op.name: op.weight.shape for b, op in part if isinstance(op, Linear) and b.name == "moe"}
    assert shapes["q_a_proj"] == (1536, 7168)
    assert shapes["q_b_proj"] == (128 * 192 // 8, 1536)
    assert shapes["kv_b_proj"] == (128 * 256 // 8, 512)
    assert shapes["o_proj"] == (7168, 128 * 128 // 8)
    step = Workload.decode(batch=1, kv_len=100)
    assert evaluate(kv_cache(part), step) == evaluate(kv_cache(whole), step)


def test_a_layer_sums_twice_and_one_with_parallel_branches_once():
    def sums(name):
        return [b.repeat for b, op in _shared(name, tp=2) if isinstance(op, AllReduce) and b.layers]

    assert sums("llama-2-7b") == [32, 32]
    assert sums("gpt-j-6b") == [28]


def test_a_norm_over_all_heads_sends_a_number_a_token():
    sent = [op for _, op in _shared("olmo-2-7b", tp=4) if isinstance(op, AllReduce) and "norm" in op.name]
    assert {(op.inputs[0].width, op.inputs[0].format.bits) for op in sent} == {(1, 32)}


def test_cross_attention_weights_are_sharded():
    prompt = Workload.prefill(batch=1, prompt=100)

    def read(graph):
        ops = [op for _, op in graph if op.name.startswith("cross_") and isinstance(op, Linear)]
        assert ops
        return sum(evaluate(w.elements, prompt) for op in ops for w in op.weights)

    assert read(_shared("t5-large", tp=2)) == read(load_model("t5-large").graph) / 2


# Mixers with a state.


@pytest.mark.parametrize(
    ("name", "heads", "groups"),
    [
        ("mamba2-2.7b", 80, 1),
        ("mamba-codestral-7b", 128, 8),
        ("nemotron-h-56b", 256, 8),
        ("zamba2-7b", 112, 2),
        ("falcon-h1-34b", 32, 2),
        ("qwen3-next-80b-a3b", 32, 16),
        ("kimi-linear-48b-a3b", 32, 32),
        ("minimax-text-01", 64, 64),
        ("retnet-7b", 16, 16),
        ("rwkv-6-world-7b", 64, 64),
        ("rwkv-7-world-0.4b", 16, 16),
        ("rwkv-4-7b", 4096, 4096),
        ("mamba-2.8b", 5120, 5120),
        ("recurrentgemma-9b", 4096, 4096),
    ],
)
def test_a_scan_has_the_heads_and_groups_of_the_config(name, heads, groups):
    scans = [op for _, op in load_model(name).graph if isinstance(op, Scan)]
    assert {(op.heads, op.groups) for op in scans} == {(heads, groups)}
    for op in scans:
        part = op.part(2)
        assert (part.heads, part.groups) == (heads // 2, max(groups // 2, 1))
        assert part.depth == op.depth


def _of(graph, block):
    return {op.name: op for b, op in graph if b.name == block}


def test_mamba2_is_cut_by_heads_and_ranks_copy_the_group_they_share():
    ops = _of(_shared("mamba2-2.7b", tp=4), "layer")  # 80 heads of 64, one group of 128
    assert [t.width for t in ops["in_proj"].outputs] == [1280, 1280 + 2 * 128, 20]
    assert ops["in_proj"].weight.shape == (2 * 1280 + 2 * 128 + 20, 2560)
    assert [w.shape for w in ops["conv"].weights] == [(1536, 4), (1536,)]
    assert {t.width for t in ops["conv"].state()} == {1536 * 3}
    assert {t.width for t in ops["scan"].state()} == {1280 * 128}
    assert [w.shape for w in ops["scan"].weights] == [(20,)] * 3
    assert ops["scan"].pair_ops == 2 * 128 + 2 * 1280
    assert ops["scan"].token_ops == 4 * 1280 * 128
    assert ops["out_proj"].weight.shape == (2560, 1280)
    sent = [(op.name, op.inputs[0].width) for op in ops.values() if isinstance(op, AllReduce)]
    assert sent == [("gated_norm_all_reduce", 1), ("out_proj_all_reduce", 2560)]


def test_state_space_groups_are_sharded_like_heads_without_norm_communication():
    ops = _of(_shared("mamba-codestral-7b", tp=4), "layer")  # 8 groups of 16 heads
    assert ops["conv"].outputs[0].width == (8192 + 2 * 8 * 128) // 4
    assert [op.name for op in ops.values() if isinstance(op, Collective)] == ["out_proj_all_reduce"]
    spread = _of(_shared("mamba-codestral-7b", tp=16), "layer")  # two ranks to a group
    assert spread["conv"].outputs[0].width == 8192 // 16 + 2 * 128
    assert "gated_norm_all_reduce" in spread


def test_mamba_brings_step_and_matrices_together_in_one_message():
    ops = _of(_shared("mamba-2.8b", tp=4), "layer")
    joined = ops["x_proj_all_reduce"]
    assert [t.width for t in joined.inputs] == [160, 2 * 16]
    assert evaluate(joined.link_traffic()[hop("scale_up")], Workload.decode(batch=1, kv_len=1)) == 1
    assert evaluate(joined.payload(), Workload.decode(batch=1, kv_len=1)) == 192 * 4  # published in fp32
    assert ops["x_proj"].weight.shape == (192, 1280)
    assert ops["dt_proj"].weight.shape == (1280, 160)
    assert [t.width for t in ops["scan"].inputs] == [1280, 1280, 32, 1280, 1280 * 16]


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "kimi-linear-48b-a3b", "rwkv-7-world-0.4b", "retnet-7b",
                                  "recurrentgemma-9b", "lfm2-1.2b", "stripedhyena-7b", "minimax-m1"])  # fmt: skip
def test_states_are_cut_as_the_channels_that_write_them(name):
    whole, part = load_model(name).graph, _shared(name, tp=4)

    def states(graph):
        kept = {(b.name, t.name): b.repeat * t.width for b, op in graph for t in op.state() if t.role is Role.STATE}
        return sum(n for (_, tensor), n in kept.items() if "shift" not in tensor)

    assert 4 * states(part) == states(whole) > 0
    sent = {op.name for b, op in part if isinstance(op, Collective) and b.layers}
    assert sent <= {f"{out}_all_reduce" for out in (
        "out_proj", "o_proj", "linear_out", "out_filter_dense", "down_proj", "combine", "scan_norm"
    )}  # fmt: skip
    assert ("scan_norm_all_reduce" in sent) == (name == "minimax-m1")  # a norm over all heads


def test_ranks_and_groups_that_do_not_divide_each_other_are_refused():
    with pytest.raises(InputError) as caught:
        _shared("qwen3.5-27b", tp=3)  # 48 heads, but 16 of keys
    assert str(caught.value) == (
        "tp=3 and the 16 groups of heads that share a part of qkv in linear do not divide each other; try tp=2 or 4"
    )


def test_linear_attention_is_divided_by_heads_and_key_heads_are_copied():
    for ranks, key_heads in ((2, 4), (8, 1), (16, 1)):  # of 8, with 32 of queries
        setting = Setting.of("llama-3.1-8b", H100, layout=f"tp={ranks}", techniques=["linear-attention"])
        ops = {op.name: op for block in setting.graph.check().blocks if block.layers for op in block.operators}
        scan = ops["scan"]
        assert [t.width for t in scan.inputs] == [4096 // ranks, *2 * [128 * key_heads], key_heads * 128 * 129]
        assert [t.width for t in scan.outputs] == [4096 // ranks, key_heads * 128 * 129]
        assert ops["v_proj"].weight.shape == (128 * key_heads, 4096)
        assert ops["o_proj"].weight.shape == (4096, 4096 // ranks)


def test_low_rank_projections_stay_replicated_and_their_outputs_are_sharded():
    ops = _of(_shared("kimi-linear-48b-a3b", tp=4), "kda_sparse")
    assert ops["f_a_proj"].weight.shape == (128, 2304)
    assert ops["f_b_proj"].weight.shape == (1024, 128)
    adapters = _of(_shared("zamba2-1.2b", tp=4), "hybrid")
    assert adapters["gate_up_adapter_down"].weight.shape == (128, 2048)
    assert adapters["gate_up_adapter_up"].weight.shape == (4096, 128)
    assert [t.width for t in adapters["gate_up_add"].outputs] == [2048, 2048]


def test_groups_of_heads_are_brought_to_their_rank_before_they_are_joined():
    flash = _of(_shared("deepseek-v4-flash", tp=8), "csa_moe")  # 64 heads of 512 in 8 groups
    assert flash["o_rope"].num_heads == 8
    assert flash["o_a_proj"].weight.shape == (1024, 4096)
    assert flash["o_b_proj"].weight.shape == (4096, 1024)
    whole = _of(_shared("deepseek-v4-flash", tp=16), "csa_moe")
    assert whole["q_b_proj"].outputs[0].width == 4 * 512
    assert whole["o_a_proj"].inputs[0].width == 64 * 512  # 16 ranks cannot share out 8 groups


def test_shared_rope_key_of_latent_attention_is_replicated():
    ops = _of(_shared("kimi-linear-48b-a3b", tp=4), "mla_sparse")
    assert [t.width for t in ops["kv_a_proj"].outputs] == [512, 64]
    assert [t.width for t in ops["qk_matmul"].inputs] == [8 * 192, 8 * 128, 64]


def test_parallel_branches_are_summed_before_one_all_reduce():
    ops = _of(_shared("falcon-h1-34b", tp=4), "layer")
    assert [op.name for op in ops.values() if isinstance(op, AllReduce)] == [
        "gated_norm_all_reduce", "mixers_add_all_reduce", "down_proj_all_reduce",
    ]  # fmt: skip


# The law of all of them.


def _fewer(block, tp):
    """Whether some heads or groups of a block are fewer than ranks, so that several have the same one."""
    kv = [op.heads.num_kv_heads for op in block.operators if isinstance(op, Attention | Rope)]
    return any(n < tp for n in kv + [op.groups for op in block.operators if isinstance(op, Scan)])


@for_each("name", one_per_type, fast=few_types)
def test_sharded_parameters_sum_to_the_model_plus_replicated_ones(name):
    whole = load_model(name).graph
    for tp in (2, 4, 8):
        try:
            part = _shared(name, tp=tp)
        except InputError:
            continue  # heads that do not divide
        for a, b in zip(whole.blocks, part.blocks, strict=True):
            local = {op.name: op for op in b.operators}
            assert [n for n in local if n in {op.name for op in a.operators}] == [op.name for op in a.operators]
            for op in a.operators:
                _is_a_part(op, local[op.name], tp, copies=_fewer(a, tp), streams=(a.stream, b.stream))
            for op in b.operators:  # everybody reads what somebody has written, as wide as it was
                written = {
                    t.name: t.width for before in b.operators for t in before.outputs if t.role not in RETAINED_ROLES
                }
                assert all(t.width <= written.get(t.name, t.width) for t in op.inputs)


def _is_a_part(whole, part, tp, *, copies, streams):
    """Each rank does the whole of an operator, its even part, or more than that where groups of heads are copied.

    streams  those of the two blocks: a step has the tokens that they let through, which are none of a tower's images
    """
    step = Workload.decode(batch=2, kv_len=500, prompt=100)
    amounts = [[float(evaluate(op.work().ops, Workload.prefill(batch=2, prompt=300))) for op in (whole, part)]]
    both = zip((whole, part), streams, strict=True)
    amounts.append([float(evaluate(op.work().on(stream).ops, step)) for op, stream in both])
    for all_of_it, own in amounts:
        even = own == pytest.approx(all_of_it / tp, rel=2e-3)  # a vocabulary rounded up
        summed_before = "add" in whole.name and own < all_of_it  # in another addition, of branches side by side
        assert even or own == pytest.approx(all_of_it) or copies or summed_before, whole.name
        assert all_of_it / tp <= own * (1 + 1e-9) <= all_of_it * (1 + 1e-6), whole.name
    for all_of_it, own in zip(whole.weights, part.weights, strict=True):
        shape = all_of_it.shape
        cut = [(*shape[:i], ceil(n / tp), *shape[i + 1 :]) for i, n in enumerate(shape)]
        assert own.shape in (shape, *cut) or copies, own.name
        assert all_of_it.numel <= tp * own.numel, own.name
    for all_of_it, own in zip(whole.state(), part.state(), strict=True):
        assert own.width in (all_of_it.width, all_of_it.width // tp) or copies, own.name
        assert own.width * tp >= all_of_it.width


@for_each("name", one_per_type, fast=few_types)
def test_pipeline_stages_sum_to_the_model(name):
    whole = load_model(name).graph
    tied = sum(b.repeat * w.numel for b, op in whole for w in op.weights if w.tied)
    for pp in (2, 3):
        try:
            staged = _shared(name, pp=pp)
        except InputError:
            continue  # caches that layers of other stages have written
        assert whole.parameters <= staged.parameters <= whole.parameters + (pp - 1) * tied
        for workload in (Workload.prefill(batch=2, prompt=300), Workload.decode(batch=2, kv_len=500, prompt=100)):
            ops = [
                sum(b.repeat * evaluate(op.work().ops.on(b.stream), workload) for b, op in g) for g in (whole, staged)
            ]
            assert ops[1] == pytest.approx(ops[0])
            cache = [sum(evaluate(kv_cache(g.of_stage(n)), workload) for n in range(pp)) for g in (whole, staged)]
            assert cache[1] == pytest.approx(cache[0])


# Experts.


@pytest.mark.parametrize(
    "degrees", [{"tp": 8, "ep": 8}, {"tp": 8, "ep": 4}, {"dp": 8, "ep": 8}, {"tp": 2, "dp": 8, "ep": 16}]
)
def test_expert_parallel_ranks_hold_all_experts(degrees):
    whole, part = load_model("qwen3-30b-a3b").graph, _shared("qwen3-30b-a3b", **degrees)
    layout = Layout(**degrees)

    def experts(graph):
        return sum(b.repeat * op.weight.numel for b, op in graph if isinstance(op, ExpertsLinear))

    ranks = max(layout.ep, layout.tp)
    assert experts(part) * ranks == experts(whole)
    workload = Workload.prefill(batch=1, prompt=64)

    def ops(graph):
        return _sum(graph, lambda op: op.work().ops * isinstance(op, ExpertsLinear), workload)

    tokens_of_their_own = max(layout.ep // layout.tp, 1)
    assert ops(part) * ranks == pytest.approx(tokens_of_their_own * ops(whole))


def test_a_rank_reads_the_experts_that_tokens_of_all_ranks_reach():
    part = _shared("qwen3-30b-a3b", dp=8, ep=8)
    op = next(op for _, op in part if isinstance(op, ExpertsLinear))
    reached = _busiest_of_draws(experts=128, chosen=8, ranks=8, tokens=8 * 5)  # eight ranks of five tokens
    read = evaluate(op.weight.elements, Workload.decode(batch=5, kv_len=10))
    assert read == pytest.approx(reached * 768 * 2048, rel=0.02)


def _busiest_of_draws(*, experts, chosen, ranks, tokens, draws=400):
    """Mean number of experts used on the rank with most of them, of random choices."""
    random = np.random.default_rng(0)
    most = []
    for _ in range(draws):
        used = np.zeros(experts, dtype=bool)
        for _ in range(tokens):
            used[random.choice(experts, chosen, replace=False)] = True
        most.append(used.reshape(ranks, -1).sum(axis=1).max())
    return np.mean(most)


@pytest.mark.parametrize("tokens", [1, 4, 16, 64])
def test_the_busiest_rank_of_few_tokens_reads_more_experts_than_the_mean(tokens):
    found = Workload.decode(batch=tokens, kv_len=1).busiest_experts(256, 8, 8)
    assert found == pytest.approx(_busiest_of_draws(experts=256, chosen=8, ranks=8, tokens=tokens, draws=150), rel=0.05)
    mean = Workload.decode(batch=tokens, kv_len=1).distinct_experts(256, 8) / 8
    assert mean < found <= 32
    assert Workload.decode(batch=1e6, kv_len=1).busiest_experts(256, 8, 8) == pytest.approx(32)


def test_a_token_is_sent_once_to_each_rank_that_has_one_of_its_experts():
    part = _shared("deepseek-v3", dp=64, ep=64)
    dispatch = next(op for _, op in part if isinstance(op, AllToAll))
    nodes = 4  # of 8, each with one of the groups, of which a token chooses its 8 experts from 4: at least one of each
    ranks = 8 * nodes * (1 - (1 - 4 / 32) * comb(4 * 31 - 4, 4) / comb(4 * 31, 4))  # each has 4 experts
    assert dispatch.load_factor * 8 == pytest.approx(ranks)
    assert dispatch.domain_load_factor * 8 == pytest.approx(nodes)
    row = 10 * 7168 * 2  # of ten tokens
    ways = {
        Algorithm.AUTO: (nodes * 7 / 8, ranks * 7 / 64 + (ranks - nodes) * 7 / 8),  # from where it came, to the others
        Algorithm.RING: (8 * 7 / 8, 8 * 7 / 64),  # a copy for each expert
    }
    for algorithm, (out, up) in ways.items():
        sent = replace(dispatch, group=replace(dispatch.group, algorithm=algorithm)).link_traffic()
        step = Workload.decode(batch=10, kv_len=10)
        assert evaluate(sent[link("scale_out")], step) == pytest.approx(row * out)
        assert evaluate(sent[link("scale_up")], step) == pytest.approx(row * up)


@pytest.mark.parametrize("skew", [0, 0.6])
def test_copies_that_pass_on_inside_are_counted_one_by_one(skew):
    """Tokens that choose 2 of 16 experts at random, which 8 ranks in two domains take turns at: the experts that two
    points, one apart, hit among the shares of all in any order (systematic sampling).
    """
    shares, random = np.array(popularity(16, 2, skew)), np.random.default_rng(0)
    choice = ExpertChoice(experts=16, top_k=2, skew=skew)
    order = np.argsort(random.random((200_000, 16)), axis=1)
    passed = np.floor(np.cumsum(shares[order], axis=1) + random.random((200_000, 1)))
    chosen = order[np.diff(passed, axis=1, prepend=0) > 0]
    assert chosen.size == pytest.approx(400_000, rel=1e-3)
    for members in (1, 4):  # the domain of the most popular, whose rank is its first
        tokens = np.repeat(np.arange(200_000), (np.diff(passed, axis=1, prepend=0) > 0).sum(axis=1))
        assert choice.needed(members, ranks=8)[0] == pytest.approx(
            len(set(tokens[chosen % 8 < members])) / 200_000, rel=0.04
        )


def test_no_all_to_all_when_ranks_share_their_tokens():
    assert not [op for _, op in _shared("mixtral-8x7b", tp=8, ep=8) if isinstance(op, AllToAll)]


def _popular(experts, chosen, skew, tokens):
    """The parts of all tokens that go to each expert, where no token takes one twice."""
    weights = [n**-skew for n in range(1, experts + 1)]
    assert chosen * weights[0] < sum(weights)
    reached = Workload.decode(batch=tokens, kv_len=1).distinct_experts(experts, chosen, skew)
    shares = [chosen * w / sum(weights) for w in weights]
    assert reached == pytest.approx(sum(1 - (1 - q) ** tokens for q in shares))
    return shares


@pytest.mark.parametrize(
    ("degrees", "ranks"), [({"tp": 8, "ep": 8}, 8), ({"tp": 4, "ep": 4}, 4), ({"dp": 8, "ep": 8}, 8)]
)
def test_the_busiest_rank_takes_turns_at_the_most_popular_experts(degrees, ranks):
    q = _popular(128, 8, 0.5, 5)
    mine = q[::ranks]
    assert sum(mine) == max(sum(q[n::ranks]) for n in range(ranks)) > sum(q) / ranks
    plain, skewed = (
        Setting.of("qwen3-30b-a3b", H100, layout=Layout(**degrees), expert_skew=s).graph.check() for s in (0, 0.5)
    )
    step = Workload.decode(batch=5, kv_len=10)
    tokens = 5 * degrees.get("dp", 1)
    load = sum(mine) * ranks / 8
    for a, b in zip(plain.blocks, skewed.blocks, strict=True):
        for one, two in zip(a.operators, b.operators, strict=True):
            ops, more = (evaluate(op.work().ops, step) for op in (one, two))
            if isinstance(two, ExpertsLinear):
                assert more == pytest.approx(load * ops)
                assert evaluate(two.weight.elements, step) == pytest.approx(
                    sum(1 - (1 - p) ** tokens for p in mine) * two.weight.shape[1] * two.weight.shape[2]
                )
                assert two.weight.shape == one.weight.shape
            if isinstance(two, AllToAll):  # there and back, one of each token that takes any of its experts
                none, apart = comb(128 - 128 // ranks, 8) / comb(128, 8), (1 - 8 / 128) ** (128 // ranks)
                once = ranks * (1 - prod(1 - p for p in mine) ** (log(none) / log(apart))) * 5
                assert evaluate(two.link_traffic()[link("scale_up")], step) == pytest.approx(once * 2048 * 2 * 7 / 8)
                assert once > one.load_factor * 8 * 5


def test_a_skew_costs_time_where_experts_lie_apart_and_none_where_they_do_not():
    def prefill(layout, skew):
        return analyze("mixtral-8x7b", H100, batch=4, prompt=2048, layout=layout, expert_skew=skew).generation.ttft_s

    assert prefill("tp=8 ep=8", 1.0) > 1.2 * prefill("tp=8 ep=8", 0)
    assert prefill("tp=8", 1.0) == pytest.approx(prefill("tp=8", 0))


def test_experts_with_as_many_places_each_are_as_busy_as_each_other():
    graphs = [
        Setting.of("mixtral-8x7b", H100, layout="tp=8 ep=8", techniques=["expert-capacity"], expert_skew=skew).graph
        for skew in (0, 1.0)
    ]
    plain, skewed = (_matrix_ops(graph, Workload.prefill(batch=4, prompt=100)) for graph in graphs)
    assert plain == skewed


# What is sent.


def _sent(kind, elements=1000, **group):
    t = Tensor(name="x", width=elements, format=FP16)
    op = kind(name="c", inputs=(t,), outputs=(t,), group=Group(name="tp", **group))
    return {str(r): evaluate(f, Workload.decode(batch=1, kv_len=1)) for r, f in op.link_traffic().items()}


@pytest.mark.parametrize(
    ("algorithm", "share", "hops"),
    [("auto", 2 * 7 / 8, 1), ("ring", 2 * 7 / 8, 14), ("tree", 2, 6), ("one-shot", 7, 1), ("two-shot", 2 * 7 / 8, 2)],
)
def test_an_all_reduce_by_algorithm(algorithm, share, hops):
    found = _sent(AllReduce, inner=8, algorithm=Algorithm(algorithm))
    assert found == {"link scale_up": pytest.approx(2000 * share), "hop scale_up": hops}


def test_across_domains_each_member_reduces_its_part():
    found = _sent(AllReduce, inner=8, outer=4)
    assert found["link scale_up"] == 2000 * 2 * 7 / 8
    assert found["link scale_out"] == 2000 / 8 * 2 * 3 / 4


def test_a_hierarchical_all_to_all_has_few_messages_and_more_bytes_inside():
    ring = Algorithm.RING
    direct = _sent(AllToAll, inner=8, outer=32, algorithm=ring)
    hierarchical = _sent(AllToAll, inner=8, outer=32, algorithm=ring, hierarchical=True)
    assert direct["hop scale_out"] + direct["hop scale_up"] == 255  # O(G)
    assert hierarchical["hop scale_out"] + hierarchical["hop scale_up"] == 31 + 7  # O(G / G_node + G_node)
    assert hierarchical["link scale_up"] > direct["link scale_up"]
    assert hierarchical["link scale_out"] == direct["link scale_out"]


@pytest.mark.parametrize(("inner", "links"), [(2, 1 / 3), (3, 1 / 2), (4, 3 / 4), (8, 1)])
def test_corners_of_a_cube_use_the_links_among_them(inner, links):
    plain, cube = (_sent(AllReduce, inner=inner, topology=name) for name in ("switch", "cube"))
    assert cube["link scale_up"] == pytest.approx(plain["link scale_up"] / links)


def test_corners_of_a_cube_without_a_link_are_two_away():
    plain, cube = (_sent(AllToAll, inner=8, topology=name) for name in ("switch", "cube"))
    assert cube["link scale_up"] == pytest.approx(plain["link scale_up"] * (4 * 1 + 3 * 2) / 7)
    assert _sent(Send, inner=2, topology="cube", ports=3)["link scale_up"] == 3 * 2000


def test_a_mesh_uses_the_links_to_members_alone():
    pair, all_eight = (_sent(AllReduce, inner=n, topology="mesh", ports=7) for n in (2, 8))
    assert pair["link scale_up"] == 2000 * 1 * 7
    assert all_eight["link scale_up"] == 2000 * 2 * 7 / 8
    assert _sent(Send, inner=2, topology="mesh", ports=7)["link scale_up"] == 7 * 2000


def test_rows_pass_other_devices_in_a_torus():
    assert _sent(AllToAll, inner=64, topology="torus3d", ports=6)["link scale_up"] == pytest.approx(2000 * 63 / 64 * 3)
    assert _sent(AllGather, inner=64, topology="torus3d", ports=6)["link scale_up"] == 2000 * 63 / 64


@given(st.integers(2, 512), st.integers(1, 64), st.sampled_from(list(Algorithm)))
def test_no_algorithm_beats_auto(inner, outer, algorithm):
    least = _sent(AllReduce, inner=inner, outer=outer)
    named = _sent(AllReduce, inner=inner, outer=outer, algorithm=algorithm)
    assert all(named[key] >= least[key] - 1e-9 for key in least)


def test_latency_and_bytes_of_a_link_add_up():
    setting = Setting.of("llama-2-7b", H100, layout="tp=8")
    row = next(r for r in setting.plan.operators if r.operator.name == "o_proj_all_reduce")
    busy = evaluate(row.busy_s[link("scale_up")], Workload.decode(batch=1, kv_len=1))
    assert busy == pytest.approx(1e-6 + 4096 * 2 / 450e9)  # the switches of an H100 add


def test_a_latency_that_is_not_known_counts_as_none():
    device = load_hardware("h100-sxm", ["scale_up.devices=8"])
    if "scale_up.latency" not in device.numbers:
        assert Network.of(device, Layout(tp=2)).linked().rates[hop("scale_up")] == inf


def test_overlapped_time_is_the_longer_of_compute_and_communication():
    one, both = (Setting.of("llama-3.1-70b", H100, layout=Layout(tp=8, overlap=o)) for o in (False, True))
    for workload in (Workload.prefill(batch=1, prompt=2048), Workload.decode(batch=64, kv_len=1000)):
        apart = {r.operator.name: float(r.time_s) for r in one.plan.estimate(workload).operators}
        joined = {r.operator.name: float(r.time_s) for r in both.plan.estimate(workload).operators}
        longer = max(apart["down_proj"], apart["down_proj_all_reduce"])
        assert longer <= joined["down_proj+all_reduce"] <= apart["down_proj"] + apart["down_proj_all_reduce"]
        assert sum(joined.values()) < sum(apart.values())
    assert both.plan.ops == one.plan.ops
    assert both.plan.bytes == one.plan.bytes
    assert both.graph.parameters == one.graph.parameters
    found = analyze("llama-3.1-70b", H100, layout=Layout(tp=8, overlap=True))
    assert {op.name for op in found.phases.decode.operators if op.link_bytes} == {
        "embed_tokens+all_reduce", "o_proj+all_reduce", "down_proj+all_reduce", "lm_head+all_gather",
    }  # fmt: skip


# Pipelines.


def test_a_pipeline_does_not_make_a_single_stream_faster():
    alone, two = (Setting.of("llama-2-70b", H100, layout=text) for text in ("", "pp=2"))
    steps = [step_s(s, batch=1, kv_len=1000) for s in (alone, two)]
    assert steps[0] < steps[1] < 1.001 * steps[0]


def test_pipeline_stages_hold_all_layers_and_send_at_each_boundary():
    graph = _shared("llama-3.1-8b", pp=5)
    layers = [len([1 for b in graph.of_stage(n).blocks for _ in b.layers]) for n in range(5)]
    assert sorted(layers) == [6, 6, 6, 7, 7]
    assert [b.stage for b, op in graph if isinstance(op, Send)] == [0, 1, 2, 3]
    assert graph.parameters == load_model("llama-3.1-8b").parameters


def _sends(graph):
    """(name, width) of what leaves each stage."""
    return [[(t.name, t.width) for t in op.inputs] for _, op in graph if isinstance(op, Send)]


def test_the_layers_of_an_encoder_come_before_those_of_its_decoder():
    graph = _shared("t5-base", pp=4)
    stages = [{b.name for b in graph.of_stage(n).blocks if not b.name.startswith("send")} for n in range(4)]
    assert stages == [
        {"encoder_embedding", "encoder.0", "encoder.1-5"},  # a copy of the table that all layers read
        {"encoder.6-11", "encoder_norm"},
        {"embedding", "decoder.0", "decoder.1-5"},
        {"decoder.6-11", "head"},
    ]
    assert _sends(graph) == [[("encoded", 768)], [("encoded", 768)], [("mlp_add", 768), ("encoded", 768)]]
    rows = [evaluate(op.inputs[0].nbytes.on(b.stream), Workload.prefill(batch=3, prompt=100))
            for b, op in graph if isinstance(op, Send)]  # fmt: skip
    assert rows == [300 * 768 * 2, 300 * 768 * 2, 3 * 768 * 2]  # the decoder begins with one token


def test_an_encoder_sends_nothing_in_a_decode_step():
    setting = Setting.of("t5-base", H100, layout="pp=4")
    busy = [float(s.seconds(s.values(Workload.decode(batch=1, kv_len=50, prompt=40)))) for s in setting.plan.stages]
    assert busy[:2] == [0, 0]
    assert min(busy[2:]) > 0
    alone = Setting.of("t5-base", H100)
    steps = [step_s(s, batch=1, kv_len=50, prompt=40) for s in (alone, setting)]
    assert steps[0] < steps[1] < 1.3 * steps[0]  # one border, whose latency such a small model notices


def test_tensors_used_by_later_layers_are_sent_between_stages():
    assert _sends(_shared("zamba2-1.2b", pp=3)) == [
        [("mamba_add", 2048), ("embed_tokens", 2048)], [("mamba_add", 2048), ("embed_tokens", 2048)],
    ]  # fmt: skip
    (sent,) = _sends(_shared("gemma-3n-e2b", pp=2))
    assert sent == [("streams_add", 4 * 2048), ("per_layer_inputs", 15 * 256)]  # of the 15 layers to come
    assert _sends(_shared("qwen3-vl-2b", pp=14)) == [[("seen", 2048), ("deepstack_2_features", 2048)]] + 12 * [
        [("mlp_add", 2048)]
    ]


@pytest.mark.parametrize(
    ("name", "pp", "copies"),
    [
        ("llama-3.2-1b", 2, 128256 * 2048),  # head and embedding are one
        ("llama-3.1-8b", 4, 0),
        ("t5-base", 2, 32128 * 768),  # in the first stage for the encoder, in the second for the decoder and the head
        ("t5-base", 3, 32128 * 768 + 32128 * 768 + 2 * 32 * 12),
        ("albert-base-v2", 3, 30000 * 128 + 2 * (4 * 768 * 768 + 2 * 768 * 3072 + 8 * 768 + 3072 + 768)),
        ("deepseek-v3", 4, 0),
    ],
)
def test_pipeline_stages_hold_all_parameters_plus_copies_of_shared_ones(name, pp, copies):
    assert _shared(name, pp=pp).parameters == load_model(name).parameters + copies


def test_blocks_that_layers_share_are_held_once_in_each_stage_that_has_some():
    whole, staged = load_model("zamba2-2.7b"), _shared("zamba2-2.7b", pp=4)
    shared = sum(w.numel for b, op in whole.graph for w in op.weights if b.name == "hybrid_again" and w.tied)
    copies = staged.parameters - whole.parameters - 32000 * 2560  # the head is the embedding
    assert copies == 3 * 2 * shared  # two blocks in turn


def test_micro_batches_fill_the_pipeline():
    setting = Setting.of("llama-2-70b", H100, layout="pp=4")
    plan, layout = setting.plan, setting.layout
    one = plan.values(Workload.prefill(batch=2, prompt=512))
    slowest = max(float(stage.seconds(one)) for stage in plan.stages)
    found = float(prefill_s(plan, layout, batch=8, prompt=512))
    assert found == pytest.approx(float(plan.seconds(one)) + 3 * slowest)


def test_a_generation_of_a_pipeline_is_the_sum_of_its_steps():
    setting = Setting.of("llama-2-70b", H100, layout="tp=2 pp=4")
    found = generation(setting.plan, setting.decode_plan, layout=setting.layout, batch=24, prompt=50, gen=40)
    steps = sum(step_s(setting, batch=24, kv_len=n) for n in range(51, 90))
    assert float(found.latency_s - found.ttft_s) == pytest.approx(steps, rel=1e-9)


def test_the_fullest_stage_decides_whether_a_model_fits():
    setting = Setting.of("llama-3.1-8b", H100, layout="pp=2")
    found = memory(setting.footprint, setting.hardware.capacity, batch=1, prompt=100, gen=10)
    stages = [weight_bytes(setting.graph.of_stage(n)) for n in range(2)]
    assert found.weight_bytes == max(stages)
    assert sum(stages) == 2 * load_model("llama-3.1-8b").parameters


# Data and context parallelism.


def test_data_parallelism_shares_out_sequences_and_copies_weights():
    one, four = (Setting.of("llama-2-7b", H100, layout=text) for text in ("", "dp=4"))
    assert weight_bytes(four.graph) == weight_bytes(one.graph)
    assert four.layout.micro_batch_size(10) == ceil(10 / 4)
    alone, shared = (analyze("llama-2-7b", H100, batch=b, layout=text) for b, text in ((3, ""), (12, "dp=4")))
    assert shared.generation.tpot_s == alone.generation.tpot_s
    assert shared.generation.tokens_per_s == pytest.approx(4 * alone.generation.tokens_per_s)
    assert shared.memory.max_batch == 4 * alone.memory.max_batch


def test_context_parallelism_shares_out_pairs_tokens_and_cache():
    whole, part = load_model("llama-3.1-8b").graph, _shared("llama-3.1-8b", cp=4)
    prompt = Workload.prefill(batch=1, prompt=4096)
    heads = {b.name for b, op in whole if isinstance(op, LMHead)}

    def ops(graph):
        return sum(b.repeat * evaluate(op.work().ops, prompt) for b, op in graph if b.name not in heads)

    assert 4 * ops(part) == pytest.approx(ops(whole))
    step = Workload.decode(batch=1, kv_len=4096)
    assert evaluate(kv_cache(part), step) == evaluate(kv_cache(whole), step) / 4
    decoded = _shared("llama-3.1-8b", cp=4, decode=True)
    read = {op.name: evaluate(op.work().kv_bytes, step) for b, op in decoded if b.layers}
    assert read["qk_matmul"] == 4096 / 4 * 1024 * 2
    assert decode_s(Setting.of("llama-3.1-8b", H100, layout="cp=4").decode_plan, batch=1, first=100, last=200) > 0


def test_a_state_is_on_every_rank_of_context_parallelism_which_scans_its_own_tokens():
    whole, part = load_model("mamba2-2.7b").graph, _shared("mamba2-2.7b", cp=4)
    assert evaluate(kv_cache(part), Workload.decode(batch=3, kv_len=9)) == evaluate(
        kv_cache(whole), Workload.decode(batch=3, kv_len=9)
    )
    prompt = Workload.prefill(batch=1, prompt=4096)

    def scanned(graph):
        return _sum(graph, lambda op: op.work().ops * isinstance(op, Scan), prompt)

    assert 4 * scanned(part) == pytest.approx(scanned(whole))


# The laws of the field.


def test_seventy_billion_parameters_in_fp16_need_two_devices_of_80_gb_or_six_of_24():
    def fits(device, text):
        return analyze("llama-2-70b", device, prompt=16, gen=1, layout=text).memory.fits

    assert [fits(load_hardware("a100-sxm-80gb", ["scale_up.devices=8"]), f"pp={n}") for n in (1, 2)] == [False, True]
    rtx = load_hardware("rtx-4090")
    assert [fits(rtx, f"pp={n}") for n in (5, 6, 7)] == [False, True, True]


def test_a_token_of_seventy_billion_parameters_on_two_a100_is_no_faster_than_the_weights_are_read():
    a100 = load_hardware("a100-sxm-80gb", ["scale_up.devices=8"])
    weights = 2 * (load_model("llama-2-70b").parameters - 32000 * 8192)  # a row of the embedding is read
    for text, devices in (("tp=2", 2), ("pp=2", 1)):
        setting = Setting.of("llama-2-70b", a100, layout=text)
        step = step_s(setting, batch=1, kv_len=2)
        assert step > weights / devices / 2039e9
        assert step == pytest.approx(weights / devices / 2039e9, rel=0.01)


# What cannot be.


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("llama-2-7b", "tp=3", "tp=3 does not divide the 32 heads of q_proj in layer; try tp=2 or 4"),
        ("llama-3.1-8b", "tp=64", "tp=64 does not divide the 32 heads of q_proj in layer; try tp=32"),
        ("qwen3-30b-a3b", "tp=1 dp=6 ep=6", "ep=6 does not divide the 128 experts; try ep=4 or 8"),
        ("llama-2-7b", "pp=33", "pp=33 is more than the 32 layers; try pp=32 or fewer"),
        ("t5-base", "pp=25", "pp=25 is more than the 24 layers; try pp=24 or fewer"),
        ("gemma-3n-e2b", "pp=3",
         "pp=3: layer 20 reads the cache of layer 18, which would be in another stage; try pp=2"),
        ("gemma-4-e2b", "pp=2",
         "pp=2: layer 18 reads the cache of layer 13, which would be in another stage; use tp or dp"),
        ("mixtral-8x7b", "tp=2 ep=3", "ep must divide tp x dp = 2, the ranks that hold experts; got 3; try 2"),
        ("mixtral-8x7b", "ep=8",
         "ep must divide tp x dp, the ranks that hold experts, which is 1; got 8; give tp=8 or dp=8, too"),
        ("llama-2-7b", "tp=0", "tp must be at least 1; got 0"),
        ("llama-2-7b", "xp=2", "layout 'xp=2': must be degrees of tp, pp, ep, dp, cp, such as tp=8 pp=2; got 'xp=2'"),
        ("llama-2-7b", "tp=2 tp=4",
         "layout 'tp=2 tp=4': must be degrees of tp, pp, ep, dp, cp, such as tp=8 pp=2; got 'tp=4'"),
    ],
)  # fmt: skip
def test_layouts_that_do_not_divide_are_refused_with_the_nearest_that_do(name, text, message):
    with pytest.raises(InputError) as caught:
        _ = Setting.of(name, H100, layout=text).plan
    assert str(caught.value) == message


def test_missing_link_bandwidth_is_refused():
    bare = load_hardware("t4")
    assert Network.of(bare, Layout(tp=2)).inside == "host"
    alone = load_hardware("h100-sxm", ["scale_up.devices=8"])
    if "scale_out.bandwidth" not in alone.numbers:
        with pytest.raises(InputError, match=r"h100-sxm has no scale_out\.bandwidth"):
            _ = Setting.of("llama-2-7b", alone, layout="tp=16").plan


@given(
    st.sampled_from([("tp", 2), ("tp", 4), ("pp", 3), ("dp", 5), ("cp", 2)]), st.integers(1, 64), st.integers(1, 2000)
)
def test_more_devices_never_need_more_memory_or_time_for_sums_of_work(degree, batch, prompt):
    name, n = degree
    one, many = (Setting.of("llama-2-7b", H100, layout=text) for text in ("", f"{name}={n}"))
    sizes = [float(s.footprint.total_bytes(batch=batch, prompt=prompt, gen=1)) for s in (one, many)]
    assert sizes[1] <= sizes[0] * 1.05  # collectives have buffers of their own
    assert all(t.role is not Role.WEIGHT for _, op in many.graph for t in op.inputs)


def test_texts_of_layouts():
    assert str(parse_layout("ep=16, dp=16")) == "ep=16 dp=16"
    assert parse_layout("") == Layout()
    assert Layout(tp=8, pp=2, dp=3).devices == 48


def test_collectives_are_launches_like_all_others():
    found = analyze("llama-2-7b", H100, layout="tp=8")
    kinds = {op.kind for op in found.phases.decode.operators}
    assert "communication" in kinds
    sent = [op for op in found.phases.decode.operators if op.kind == "communication"]
    assert all(op.link_bytes > 0 for op in sent)
    assert {op.bound for op in sent} == {"link"}
    assert found.setting.layout.devices == 8
    assert issubclass(AllReduce, Collective)


def test_notes_state_unknown_link_latencies_and_replicated_operators():
    bare = load_hardware("t4")
    found = analyze("jamba-v0.1", bare, layout="tp=2").notes
    assert "t4 has no scale-up link: devices communicate over host links (15.8 GB/s each)" in found
    assert "host.latency of t4 is unknown and counts as 0; set it by --hardware-set host.latency=VALUE" in found
    assert not [note for note in found if "every rank" in note]
    lent = analyze("kimi-linear-48b-a3b", bare, layout="tp=2").notes
    assert "tp=2: f_a_proj, g_a_proj, kv_a_proj are replicated on every rank" in lent
    chosen = analyze("deepseek-v3.2", "h200-sxm", layout="tp=8")
    assert "tp=8: q_a_proj, kv_a_proj, index_k_proj, indexer are replicated on every rank" in chosen.notes
    indexers = [op for op in chosen.phases.prefill.operators if op.name == "indexer"]
    pairs = 61 * 1024 * 1025 // 2  # of all layers: 64 heads of 128, the weight of each, and 65 to add up and compare
    assert sum(op.ops for op in indexers) == pairs * (64 * 2 * (128 + 1) + 65)
    known = analyze("llama-2-7b", H100, layout="tp=2").notes
    assert not [note for note in known if "not known" in note or "every rank" in note]
    assert not [note for note in analyze("jamba-v0.1", bare).notes if "link" in note or "every rank" in note]


@pytest.mark.parametrize(
    ("batch", "asked", "parts", "share"), [(5, 0, 3, 2), (4, 0, 4, 1), (3, 0, 3, 1), (9, 8, 5, 2), (16, 8, 8, 2)]
)
def test_a_batch_that_does_not_divide_takes_no_more_parts_than_it_needs(batch, asked, parts, share):
    layout = Layout(pp=4, micro_batches=asked)
    assert (layout.micro_batch_count(batch), layout.micro_batch_size(batch)) == (parts, share)


@pytest.mark.parametrize(("batch", "busiest"), [(64, 8), (3, 1)])
def test_batch_sharded_attention_has_the_nth_part_of_the_keys_of_a_single_head(batch, busiest):
    """Gemma 2B has one key head of 256 elements and 8 query heads: a device had all keys with one query head."""
    plain, sharded = (
        Setting.of("gemma-2b", "h100-sxm", tp=8, batch_sharded_attention=on).decode_graph for on in (False, True)
    )
    step = Workload.decode(batch=batch, kv_len=4096)
    assert evaluate(kv_cache(plain), step) == 8 * evaluate(kv_cache(sharded), step) == batch * 4096 * 18 * 2 * 256 * 2
    replicated, attention = (
        next(op for _, op in graph if isinstance(op, FlashAttention)) for graph in (plain, sharded)
    )
    assert evaluate(replicated.work().kv_bytes, step) == batch * 4096 * 2 * 256 * 2
    assert evaluate(attention.work().kv_bytes, step) == busiest * 4096 * 2 * 256 * 2
    assert evaluate(attention.work().activation_bytes, step) == 2 * busiest * 8 * 256 * 2  # queries and results
    assert evaluate(attention.work().ops, step) == busiest * 8 * 4096 * (4 * 256 + 5)


def test_batch_sharded_attention_sends_queries_and_results_of_the_sequences_of_other_ranks():
    prompt, step = Workload.prefill(batch=64, prompt=1024), Workload.decode(batch=64, kv_len=4096)
    setting = Setting.of("gemma-2b", "h100-sxm", tp=8, batch_sharded_attention=True)
    for graph, tokens in ((setting.graph, 64 * 1024), (setting.decode_graph, 64)):
        sent = [op for _, op in graph.check() if isinstance(op, AllToAll)]
        assert [op.name for op in sent] == ["q_rope_all_to_all", "attention_all_to_all"]
        for op in sent:  # seven eighths of one head of each token
            link_bytes = {str(r): evaluate(f, prompt if tokens > 64 else step) for r, f in op.link_traffic().items()}
            assert link_bytes["link scale_up"] == tokens * 256 * 2 * 7 / 8


def test_batch_sharded_attention_divides_sequences_among_the_ranks_of_each_key_head_alone():
    """Qwen3 32B has 8 key heads: 16 ranks are 8 pairs, and 8 ranks share none."""
    step = Workload.decode(batch=4, kv_len=1000)
    for tp, ranks in ((8, 1), (16, 2)):
        plain, sharded = (
            Setting.of("qwen3-32b", H100, tp=tp, batch_sharded_attention=on).decode_graph for on in (False, True)
        )
        assert evaluate(kv_cache(plain), step) == ranks * evaluate(kv_cache(sharded), step)
        assert [op.group.size for _, op in sharded if isinstance(op, AllToAll)] == ([ranks] * 2 if ranks > 1 else [])
    with pytest.raises(InputError, match="needs ranks that share key heads"):
        Setting.of("gemma-2b", "h100-sxm", cp=2, batch_sharded_attention=True)


def test_expected_attention_of_a_batch_share_is_that_of_its_sequences_with_all_heads():
    """A rank with 8 of 64 sequences and all 8 heads runs the kernel that one device runs for a batch of 8."""
    sharded = analyze("gemma-2b", "h100-sxm", tp=8, batch=64, prompt=2048, gen=8, batch_sharded_attention=True)
    alone = analyze("gemma-2b", "h100-sxm", batch=8, prompt=2048, gen=8)
    for name in ("prefill", "decode"):
        times = [
            next(op.expected_time_s for op in getattr(one.phases, name).operators if op.name == "attention")
            for one in (sharded, alone)
        ]
        assert times[0] == pytest.approx(times[1])
