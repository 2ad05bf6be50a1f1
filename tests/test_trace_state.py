"""Traces of states, of caches that are written in place and of masks: against architectures, torch's counter and hand
counts.
"""

from functools import cache

import pytest

from llmviewer.documents import Section
from llmviewer.errors import InputError
from llmviewer.forms import evaluate, total
from llmviewer.model_files import _from_config
from llmviewer.operators.base import Role
from llmviewer.resource import Unit
from llmviewer.workload import Workload

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from llmviewer.tracing import load_traced, trace  # noqa: E402

STATES = {
    "mamba": {"hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 320, "residual_in_fp32": False},
    "mamba2": {
        "hidden_size": 64, "num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 32, "num_hidden_layers": 2,
        "vocab_size": 320, "chunk_size": 32, "residual_in_fp32": False,
    },
    "jamba": {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 320, "pad_token_id": 0, "attn_layer_period": 2, "attn_layer_offset": 1,
        "expert_layer_period": 2, "num_experts": 4,
    },
}  # fmt: skip
FILTERED = {"mamba": 128, "mamba2": 2 * 256, "jamba": 128}  # channels with a filter, of all layers
WORKLOADS = {
    "prefill": Workload.prefill(batch=3, prompt=50),
    "decode": Workload.decode(batch=2, kv_len=777),
    "chunk": Workload.chunk(batch=2, chunk=16, past=100),
}


def built(kind, fields):
    with torch.device("meta"):
        config = transformers.AutoConfig.for_model(kind, **fields)
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to("meta").eval()


@cache
def models(kind):
    """(the model that is traced, the model that the architecture builds from its config, the module)"""
    fields = {**STATES[kind], "model_type": kind, "dtype": "bfloat16"}
    module = built(kind, STATES[kind])
    return trace(module, name=kind), _from_config(Section(fields, "config.json"), name=kind), module


@pytest.fixture(params=STATES)
def both(request):
    return models(request.param)


def amount(graph, key, w):
    return evaluate(total(b.repeat * getattr(op.work(), key) for b, op in graph), w)


def ops(graph, w, unit=Unit.MATRIX, kinds=None):
    """OPs on a unit, of all operators or of those of some kinds."""
    made = ((b, op.arithmetic()) for b, op in graph if kinds is None or op.kind in kinds)
    return evaluate(total(b.repeat * n for b, done in made for where, n in done.items() if where.unit is unit), w)


def test_parameters_and_layers_equal_the_architectures(both):
    traced, ours, _ = both
    assert (traced.parameters, traced.active_parameters) == (ours.parameters, ours.active_parameters)
    assert (traced.graph.layers, traced.attention) == (ours.graph.layers, ours.attention)
    assert traced.kv_bytes_per_token == ours.kv_bytes_per_token


@pytest.mark.parametrize("w", WORKLOADS.values(), ids=WORKLOADS)
def test_matrix_ops_and_weights_equal_to_the_digit(both, w):
    """Scans apart, which Mamba-2 takes in chunks."""
    traced, ours, _ = both
    scans = [ops(m.graph, w, kinds={"scan"}) if m.model_type == "mamba2" else 0 for m in (traced, ours)]
    assert ops(traced.graph, w) - scans[0] == ops(ours.graph, w) - scans[1]
    assert amount(traced.graph, "weight_bytes", w) == amount(ours.graph, "weight_bytes", w)


@pytest.mark.parametrize("w", WORKLOADS.values(), ids=WORKLOADS)
def test_a_state_is_read_and_written_once_a_pass_for_each_sequence(both, w):
    """The module keeps one token more for its filter than that needs: read and written, in two bytes each."""
    traced, ours, _ = both
    more = 2 * 2 * w.sequences() * FILTERED[traced.model_type]
    assert amount(traced.graph, "kv_bytes", w) == amount(ours.graph, "kv_bytes", w) + more


def test_token_by_token_a_scan_has_the_ops_of_the_architecture(both):
    """8 for each number of a Mamba state; what is done for each channel is near 12, and the decay of the weights is
    worked out in each pass.
    """
    traced, ours, _ = both
    for w in WORKLOADS.values() if traced.model_type != "mamba2" else ():
        ratio = ops(traced.graph, w, Unit.VECTOR) / ops(ours.graph, w, Unit.VECTOR)
        assert 0.9 < ratio < 1.15


def test_chunks_of_a_prompt_have_the_products_that_torch_counts():
    """But for filters, which torch counts with the products, and states handed from each chunk to all after it."""
    from torch.utils.flop_counter import FlopCounterMode

    traced, _, module = models("mamba2")
    assert any("by chunks of 32 tokens, and count whole ones" in note for note in traced.notes)
    heads, dim, state, layers, taps, size = 8, 16, 32, 2, 4, 32

    def counted(chunks):
        ids = torch.zeros(2, size * chunks, dtype=torch.long, device="meta")
        with FlopCounterMode(display=False) as counter:
            module(input_ids=ids, use_cache=True, logits_to_keep=1)
        return counter.get_total_flops()

    filters = 2 * layers * 2 * taps * 256 * size
    passed = 2 * layers * 2 * heads * dim * state * (5**2 - 4**2 - 2)  # (chunks + 1)^2, of which 2 a chunk are linear
    said = [ops(traced.graph, Workload.prefill(batch=2, prompt=size * n)) for n in (3, 4)]
    assert counted(4) - counted(3) == said[1] - said[0] + filters + passed
    pairs, tokens, chunks = 2 * heads * (state + dim), 4 * heads * dim * state, 4 * heads * dim * state
    linear = 2 * 64 * (2 * 128 + 2 * 64 + 8) + 2 * 128 * 64
    assert said[1] - said[0] == 2 * layers * (size * (size * pairs + tokens + linear) + chunks)


def test_a_step_has_no_products_on_matrix_units_with_its_state(both):
    scan = ops(both[0].graph, WORKLOADS["decode"], kinds={"scan"})
    assert scan == 0


OWN = """
import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.norm, self.qkv, self.o = nn.RMSNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, attend):
        b, n, d = x.shape
        q, k, v = (t.view(b, n, 4, d // 4).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        return x + self.o(attend(q, k, v).transpose(1, 2).flatten(2))


class Own(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.embed, self.head = nn.Embedding(100, 64), nn.Linear(64, 100, bias=False)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def begin(self, batch):
        return torch.zeros(batch, 4, 50, 16), torch.zeros(batch, 4, 50, 16)

    def forward(self, input_ids, past_key_values=None, use_cache=True):
        x, caches, place = self.embed(input_ids), *(past_key_values or ([None] * len(self.layers), 0))
        left = []
        for layer, cache in zip(self.layers, caches):
            kept = [cache or self.begin(len(x))]
            x = layer(x, lambda q, k, v: self.attend(q, k, v, kept, place))
            left.append(kept[0])
        return self.head(x), (left, place + input_ids.shape[1])


class Grown(Own):
    def begin(self, batch):
        return torch.zeros(batch, 4, 0, 16), torch.zeros(batch, 4, 0, 16)

    def attend(self, q, k, v, kept, place):
        kept[0] = k, v = torch.cat((kept[0][0], k), 2), torch.cat((kept[0][1], v), 2)
        return F.scaled_dot_product_attention(q, k, v)


class Sliced(Own):
    def attend(self, q, k, v, kept, place):
        end = place + q.shape[2]
        for cache, new in zip(kept[0], (k, v)):
            cache[:, :, place:end] = new
        return F.scaled_dot_product_attention(q, *(cache[:, :, :end] for cache in kept[0]))


class Indexed(Own):
    def attend(self, q, k, v, kept, place):
        where = torch.arange(place, place + q.shape[2])
        kept[0][0].index_copy_(2, where, k)
        kept[0][1][:, :, where] = v
        return (q @ kept[0][0].transpose(-1, -2)).softmax(-1) @ kept[0][1]


class Stacked(Sliced):
    def begin(self, batch):
        return torch.zeros(2, batch, 4, 50, 16)

    def attend(self, q, k, v, kept, place):
        kept[0] = [kept[0]] if torch.is_tensor(kept[0]) else kept[0]
        for n, new in enumerate((k, v)):
            kept[0][0][n, :, :, place:place + q.shape[2]] = new
        return q


class Linear(Own):
    def begin(self, batch):
        return [torch.zeros(batch, 4, 16, 16)]

    def attend(self, q, k, v, kept, place):
        [state], out = kept[0], []
        for n in range(q.shape[2]):
            state = state + k[:, :, n, :, None] @ v[:, :, n, None]
            out.append(q[:, :, n, None] @ state)
        kept[0] = [state]
        return torch.cat(out, 2)


class Part(Own):
    def begin(self, batch):
        return [torch.zeros(batch, 4, 16, 16)]

    def attend(self, q, k, v, kept, place):
        kept[0][0][:, :2] = q[:, :2, -1:]
        return q @ kept[0][0]


class Masked(Own):
    def __init__(self, hide, block=0):
        super().__init__()
        self.hide = hide
        self.register_buffer("mask", torch.tril(torch.ones(block, block)))

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, lambda q, k, v: self.hide(self.mask, q @ k.transpose(-1, -2)).softmax(-1) @ v)
        return self.head(x)


def far(scores):
    places = torch.arange(scores.shape[-1])
    return places[:, None] - places


def tril():
    return Masked(lambda _, s: s.masked_fill(torch.ones(s.shape[-2:]).tril() == 0, float("-inf")))


def buffer():
    return Masked(lambda mask, s: s.masked_fill(mask[:s.shape[-2], :s.shape[-1]] == 0, float("-inf")), 1000)


def window():
    return Masked(lambda _, s: torch.where((far(s) >= 0) & (far(s) < 20), s, float("-inf")))


def near():
    return Masked(lambda _, s: s + torch.zeros(s.shape[-2:]).masked_fill(far(s).abs() > 5, -1e9))


def open():
    return Masked(lambda _, s: s + far(s))


def share():
    return Masked(lambda _, s: s.masked_fill(far(s).abs() * 3 > s.shape[-1], float("-inf")))


def decides():
    return Masked(lambda _, s: s if far(s).max().item() > 0 else -s)
"""


@pytest.mark.parametrize("name", ["Sliced", "Indexed"])
def test_a_cache_that_is_written_in_place_is_one_that_grows(own, name):
    grown, model = load_traced(own + "Grown"), load_traced(own + name)
    assert model.kv_bytes_per_token == grown.kv_bytes_per_token == 2 * 2 * 64 * 4
    assert (model.attention, model.max_context) == (grown.attention, 50)
    for w in (Workload.prefill(batch=3, prompt=30), Workload.decode(batch=2, kv_len=33)):
        for key in ("ops", "weight_bytes", "kv_bytes", "activation_bytes"):
            assert amount(model.graph, key, w) == amount(grown.graph, key, w)


def test_the_static_cache_of_transformers_is_as_the_dynamic_one():
    class Static(transformers.LlamaForCausalLM):
        def forward(self, input_ids, cache=None, **kwargs):
            past = cache or transformers.StaticCache(config=self.config, max_cache_len=48)
            return super().forward(input_ids, cache=past, **kwargs)

    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, vocab_size=100
    )
    with torch.device("meta"):
        kinds = Static(config), transformers.LlamaForCausalLM(config)
    static, plain = (trace(module, name="llama") for module in kinds)
    assert (static.max_context, plain.max_context) == (48, 2048)
    assert static.kv_bytes_per_token == plain.kv_bytes_per_token
    w = Workload.decode(batch=2, kv_len=33)
    for key in ("ops", "weight_bytes", "kv_bytes", "activation_bytes"):
        assert amount(static.graph, key, w) == amount(plain.graph, key, w)


def test_linear_attention_token_by_token(own):
    model = load_traced(own + "Linear")
    numbers = 4 * 16 * 16
    states = [t for _, op in model.graph for t in op.state()]
    assert [(t.role, t.width, str(t.rows)) for t in states] == [(Role.STATE, numbers, "1 sequences")] * len(states)
    assert model.kv_bytes_per_token == 0
    for w in (Workload.prefill(batch=3, prompt=30), Workload.decode(batch=2, kv_len=33)):
        assert amount(model.graph, "kv_bytes", w) == 2 * 2 * w.sequences() * numbers * 4
        scan = ops(model.graph, w, Unit.VECTOR, {"scan"})
        assert scan == 2 * w.tokens() * (2 + 1 + 2) * numbers  # a key by a value, added, by a query
        assert ops(model.graph, w) == 2 * 2 * w.tokens() * (64 * 192 + 64 * 64) + 2 * w.logits() * 64 * 100


ERRORS = {
    "Stacked": "layers.0: copy_ writes again into a cache; keys and values must be two tensors",
    "Part": "layers.0: copy_ writes a part of what it keeps; a trace knows states that are written whole, and caches "
    "that tokens are written into",
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_one_line(own, name):
    with pytest.raises(InputError) as caught:
        load_traced(own + name)
    assert str(caught.value) == f"{name}: {ERRORS[name]}"


def test_traced_step_that_mixes_sequences_is_refused():
    """The last token that transformers' RWKV keeps, (batch, width), is added to the next one, (batch, 1, width)."""
    fields = {"hidden_size": 64, "attention_hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100}
    with pytest.raises(InputError) as caught:
        trace(built("rwkv", fields), name="rwkv")
    few, more = 2 * 2 * 2 * 64 * 64, 2 * 3 * 3 * 64 * 64
    assert str(caught.value) == (
        "rwkv: rwkv.blocks.0.attention.key: mm must work on each sequence of a batch by itself; it mixes them: "
        f"{few} OPs for batch 2, 1 new tokens after 5, {more} for batch 3, 1 new tokens after 5"
    )


MASKS = {
    "tril": "MHA",
    "buffer": "MHA",
    "window": "MHA window 20",
    "near": "MHA bidirectional within 5",
    "open": "MHA bidirectional",
    "share": "MHA bidirectional",
    "decides": "MHA bidirectional",
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_that_depend_on_lengths_alone_are_worked_out(own, name):
    model = load_traced(own + name)
    assert model.attention == MASKS[name]
    odd = [note for note in model.notes if "other bands" in note]
    assert odd == (
        ["masks that are other bands for other lengths hide nothing of layers.0, layers.1"] if name == "share" else []
    )
    w = Workload.prefill(batch=2, prompt=100)
    pairs = {
        "MHA": 100 * 101 / 2,
        "MHA window 20": 20 * 21 / 2 + 80 * 20,
        "MHA bidirectional within 5": 100 * 11 - 5 * 6,
    }
    products = 2 * 2 * 2 * 64 * 2 * pairs.get(MASKS[name], 100 * 100)
    assert ops(model.graph, w) == 2 * 2 * 200 * (64 * 192 + 64 * 64) + 2 * 200 * 64 * 100 + products
