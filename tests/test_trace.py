"""Graphs traced from torch modules, compared with the architectures' graphs of the same configs."""

import json
import os
import subprocess
import sys

import pytest

from llmviewer._layout import ROOT
from llmviewer.documents import Section
from llmviewer.errors import InputError
from llmviewer.forms import evaluate, total
from llmviewer.memory import weight_bytes
from llmviewer.model_files import _from_config
from llmviewer.operators.attention import FlashAttention
from llmviewer.operators.linear import LMHead
from llmviewer.resource import Unit
from llmviewer.transforms.flash_attention import flash_attention
from llmviewer.transforms.quantize import parse_quantization, quantize
from llmviewer.workload import Workload

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from llmviewer.tracing import load_traced, trace  # noqa: E402

from .cases import first_fast  # noqa: E402

SMALL = {
    "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 320,
    "num_key_value_heads": 2,
}  # fmt: skip
CONFIGS = {
    "llama": {**SMALL, "num_key_value_heads": 8},
    "llama-2-7b of 2 layers": {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 2,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000,
    },
    "qwen2": {**SMALL, "tie_word_embeddings": True},
    "gpt2": {"n_embd": 256, "n_layer": 2, "n_head": 8, "vocab_size": 320, "n_positions": 1024},
    "mistral": {**SMALL, "sliding_window": 64, "max_position_embeddings": 2048},
    "mixtral": {**SMALL, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None},
    "olmo2": {**SMALL},
    "gpt_neox": {**SMALL},
    "bloom": {"hidden_size": 256, "n_layer": 2, "n_head": 8, "vocab_size": 320},
}  # fmt: skip
WORKLOADS = {
    "prefill": Workload.prefill(batch=3, prompt=50),
    "decode": Workload.decode(batch=2, kv_len=777),
    "chunk": Workload.chunk(batch=2, chunk=16, past=100),
    "verify": Workload.verify(batch=2, draft=3, past=64),
}


def build(name, attention="eager"):
    """(module on meta, the model that the architecture builds from its config)"""
    fields = {"model_type": name, **CONFIGS[name]}
    config = transformers.AutoConfig.for_model(**fields, attn_implementation=attention)
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return module, _from_config(Section({**fields, "dtype": "bfloat16"}, "config.json"), name=name)


@pytest.fixture(scope="module", params=first_fast(CONFIGS, "traces every family", 2))
def both(request):
    module, ours = build(request.param)
    return trace(module, name=request.param), ours


def amount(graph, key, w):
    return evaluate(total(b.repeat * getattr(op.work(), key) for b, op in graph), w)


def matrix_ops(graph, w):
    forms = (b.repeat * ops for b, op in graph for unit, ops in op.arithmetic().items() if unit.unit is Unit.MATRIX)
    return evaluate(total(forms), w)


def test_parameters_and_layers_equal_the_architectures(both):
    traced, ours = both
    assert traced.parameters == ours.parameters
    assert traced.active_parameters == ours.active_parameters
    assert traced.graph.layers == ours.graph.layers
    assert len(traced.graph.blocks) == 3  # equal layers are one block
    assert (traced.model_type, traced.attention) == (ours.model_type, ours.attention)
    assert traced.format == ours.format


def test_the_cache_holds_as_much_a_token(both):
    traced, ours = both
    assert traced.kv_bytes_per_token == ours.kv_bytes_per_token > 0


@pytest.mark.parametrize("w", WORKLOADS.values(), ids=WORKLOADS)
def test_matrix_ops_weights_and_cache_equal_to_the_digit(both, w):
    traced, ours = both
    assert matrix_ops(traced.graph, w) == matrix_ops(ours.graph, w)
    assert amount(traced.graph, "weight_bytes", w) == amount(ours.graph, "weight_bytes", w)
    assert amount(traced.graph, "kv_bytes", w) == amount(ours.graph, "kv_bytes", w)


@pytest.mark.parametrize("w", WORKLOADS.values(), ids=WORKLOADS)
def test_activations_are_within_a_quarter(both, w):
    """Not equal: additions are fused with the norm that follows, which spares a pass over the residual stream, and
    keys and values go to the cache in a launch of their own, which costs one.
    """
    traced, ours = both
    ratio = amount(traced.graph, "activation_bytes", w) / amount(ours.graph, "activation_bytes", w)
    assert 0.75 < ratio < 1.25


@pytest.mark.parametrize("scheme", ["W4A16g128", "W8A8KV8", "W16A16"])
def test_quantization_leaves_it_valid_and_equal(both, scheme):
    traced, ours = (m.graph.then(quantize(parse_quantization(scheme))).check() for m in both)
    w = WORKLOADS["decode"]
    assert amount(traced, "weight_bytes", w) == amount(ours, "weight_bytes", w)
    assert amount(traced, "kv_bytes", w) == amount(ours, "kv_bytes", w)


def test_flash_attention_applies(both):
    traced, ours = (m.graph.then(flash_attention(2e5)).check() for m in both)
    assert sum(b.repeat for b, op in traced if isinstance(op, FlashAttention)) == traced.layers
    w = WORKLOADS["prefill"]
    assert amount(traced, "kv_bytes", w) == amount(ours, "kv_bytes", w)
    assert matrix_ops(traced, w) == matrix_ops(ours, w)


def test_weights_in_memory_equal(both):
    traced, ours = both
    assert weight_bytes(traced.graph) == weight_bytes(ours.graph)


def test_one_prediction_head_where_logits_are_wanted(both):
    heads = [op for _, op in both[0].graph if isinstance(op, LMHead)]
    assert [str(op.outputs[0].rows) for op in heads] == ["1 logits"]


@pytest.mark.slow("traces again")
@pytest.mark.parametrize("both", ["llama", "qwen2", "gpt2"], indirect=True)
def test_the_implementation_of_attention_changes_nothing(both):
    eager, _ = both
    sdpa = trace(build(eager.name, "sdpa")[0], name=eager.name)
    for w in WORKLOADS.values():
        assert matrix_ops(eager.graph, w) == matrix_ops(sdpa.graph, w)
        assert amount(eager.graph, "activation_bytes", w) == amount(sdpa.graph, "activation_bytes", w)


# Models of one's own, in a module of the working folder.

OWN = """
import torch
from torch import nn
from torch.nn import functional as F

class Layer(nn.Module):
    attend = staticmethod(F.scaled_dot_product_attention)

    def __init__(self, d):
        super().__init__()
        self.norm, self.qkv, self.o = nn.RMSNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, past):
        b, q, d = x.shape
        q, k, v = (t.view(b, q, 4, d // 4).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        a = self.attend(q, k, v)
        return x + self.o(a.transpose(1, 2).flatten(2)), (k, v)

class Own(nn.Module):
    def __init__(self, d=64, layers=2, act=lambda x: x):
        super().__init__()
        self.embed, self.layers, self.act = nn.Embedding(100, d), nn.ModuleList(Layer(d) for _ in range(layers)), act
        self.head = nn.Linear(d, 100, bias=False)

    def forward(self, input_ids, past_key_values=None, use_cache=True):
        x, caches = self.embed(input_ids), []
        for layer, past in zip(self.layers, past_key_values or [None] * len(self.layers)):
            x, cache = layer(x, past)
            caches.append(cache)
        return self.head(self.act(x)), caches

class Loop(Own):
    def forward(self, input_ids, past_key_values=None, use_cache=True):
        out, caches = super().forward(input_ids, past_key_values)
        for _ in range(input_ids.shape[1]):
            out = out + 1
        return out, caches

def item(x):
    return x if x.sum().item() > 0 else -x

def pick(x):
    return x[x > 0]

class Windowed(Own):
    def forward(self, input_ids, past_key_values=None, use_cache=True):
        past = past_key_values and [tuple(t[:, :, -500:] for t in p) for p in past_key_values]
        return super().forward(input_ids, past)

def linear():
    model = Windowed()
    for layer in model.layers:
        layer.attend = lambda q, k, v: q @ k.transpose(-1, -2) @ v
    return model

def drawn():
    with torch.device("cpu"):
        model = Own()
    return model

def raises():
    raise ValueError("no such\\nsize")

def number():
    return 7

def decides():
    return Own(act=item)

def selects():
    return Own(act=pick)

def wrong():
    return Own(act=lambda x: x @ x)
"""


def test_a_callable_of_ones_own(own):
    model = load_traced(own + "Own")
    assert model.name == "Own"
    assert model.parameters == 100 * 64 * 2 + 2 * (64 + 64 * 192 + 192 + 64 * 64 + 64)
    assert model.kv_bytes_per_token == 2 * 2 * 64 * 4
    assert model.attention == "MHA"
    assert [b.layers for b in model.graph.blocks] == [(), (0, 1), ()]
    w = Workload.prefill(batch=2, prompt=10)
    linear = 2 * 20 * 2 * (64 * 192 + 64 * 64) + 2 * 2 * 100 * 64
    attention = 2 * 2 * 2 * 64 * 2 * 55
    assert matrix_ops(model.graph, w) == linear + attention


ERRORS = {
    "nowhere_at_all:x": "nowhere_at_all:x: module nowhere_at_all cannot be imported "
    "(ModuleNotFoundError: No module named 'nowhere_at_all')",
    "own_model:absent": "own_model:absent: module own_model has no 'absent'; give package.module:callable",
    "own_model:raises": "own_model:raises: calling raises() without arguments raised ValueError: no such size",
    "own_model:number": "number: must return a torch.nn.Module, or (module, inputs); got int",
    "own_model:decides": "decides: the module itself: .item(), or an `if` on a tensor, needs the values of a "
    "tensor, and a trace has only shapes; make what it decides a constant, or describe the model in a YAML file",
    "own_model:selects": "selects: the module itself: index needs the values of a tensor, and a trace has "
    "only shapes; make what it decides a constant, or describe the model in a YAML file",
    "own_model:wrong": "wrong: the module itself: bmm fails on meta tensors (RuntimeError: Expected size for first two "
    "dimensions of batch2 tensor to be: [2, 64] but got: [2, 7].)",
    "own_model:Loop": "Loop: forward must make the same calls for inputs of all sizes; it makes 33 for one and 35 for "
    "another (is there a loop over tokens?)",
    "own_model:linear": "linear: layers.0: layer sees the last 501 tokens; such a window is followed only in "
    "attention: a product with keys, a softmax, a product with values",
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_one_line(own, name):
    with pytest.raises(InputError) as caught:
        load_traced(name)
    assert str(caught.value) == ERRORS[name]


def test_a_window_is_found_in_a_long_pass(own):
    model = load_traced(own + "Windowed")
    assert model.attention == "MHA window 501"
    full, w = load_traced(own + "Own"), Workload.decode(batch=2, kv_len=2000)
    keys = 2 * 2 * 2 * 64 * 2  # OPs of a key: two products, two layers, two sequences
    assert matrix_ops(full.graph, w) - matrix_ops(model.graph, w) == keys * (2000 - 501)
    assert amount(model.graph, "kv_bytes", w) < amount(full.graph, "kv_bytes", w) / 3


def test_numbers_that_a_module_draws_by_hand_are_not_kept(own):
    assert load_traced(own + "drawn").parameters == load_traced(own + "Own").parameters


# Further kinds of transformers, against torch's flop counter: CTRL and Doge have no architecture here.

TINY = {
    "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 320,
    "pad_token_id": 0, "max_position_embeddings": 2048,
}  # fmt: skip
SHARED_KV = {**TINY, "num_key_value_heads": 2}
ROUTED = {**SHARED_KV, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
KINDS = {
    "afmoe": {**ROUTED, "sliding_window": 64},
    "ctrl": {"n_embd": 128, "dff": 256, "n_layer": 2, "n_head": 4, "vocab_size": 320, "n_positions": 2048},
    "diffllama": SHARED_KV,
    "doge": SHARED_KV,
    "modernbert-decoder": {**TINY, "local_attention": 64, "num_hidden_layers": 3},
}


def made(kind, config):
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(kind, **config), dtype=torch.bfloat16, attn_implementation="eager"
        )
    return module.to("meta").eval()


def counted(module, *, batch, kv_len):
    """OPs of a decode step as torch counts them; rows of experts by the matrix of one."""
    from torch.utils.flop_counter import FlopCounterMode

    def ids(length):
        return torch.zeros(batch, length, dtype=torch.long, device="meta")

    def grouped(rows, weights, *_, **__):
        return 2 * rows[0] * rows[1] * weights[2]

    past = module(input_ids=ids(kv_len - 1), use_cache=True).cache
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten._grouped_mm: grouped}) as counter:
        module(input_ids=ids(1), cache=past, use_cache=True)
    return counter.get_total_flops()


@pytest.mark.parametrize("kind", first_fast(KINDS, "traces every family"))
def test_further_kinds(kind):
    module = made(kind, KINDS[kind])
    model = trace(module, name=kind)
    assert model.parameters == sum(p.numel() for p in module.parameters())
    assert model.graph.layers == KINDS[kind].get("num_hidden_layers", 2)
    assert matrix_ops(model.graph, Workload.decode(batch=2, kv_len=301)) == counted(module, batch=2, kv_len=301)


REFUSED = {
    "jetmoe": "model.layers.0.self_attention.experts.router: _to_copy needs the values of a tensor, and a trace has "
    "only shapes; make what it decides a constant, or describe the model in a YAML file",
    "recurrent_gemma": "forward must return a cache or a state, as .cache or as its second result; got none "
    "(what a module keeps within itself is not traced; describe the model in a YAML file)",
}
REFUSED_CONFIG = {
    "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "kv_channels": 32,
    "vocab_size": 320, "pad_token_id": 0,
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_kinds_that_a_trace_does_not_know_are_refused_in_one_line(kind):
    with pytest.raises(InputError) as caught:
        trace(made(kind, REFUSED_CONFIG), name=kind)
    assert str(caught.value) == f"{kind}: {REFUSED[kind]}"


@pytest.mark.slow("imports transformers in a process of its own")
def test_our_kernels_do_not_hide_a_package_of_that_name(tmp_path):
    """transformers looks for it, and `python -m` in a checkout looks in the checkout first."""
    (tmp_path / "uses_llama.py").write_text(
        "def small():\n"
        "    from transformers import LlamaConfig, LlamaForCausalLM\n"
        "    return LlamaForCausalLM(LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2,\n"
        "                                        num_attention_heads=2, vocab_size=100))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "llmviewer", "models", "uses_llama:small", "--format", "json"],
        capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.stderr == ""
    assert json.loads(done.stdout)["model_type"] == "llama"


def test_without_torch(own, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError) as caught:
        load_traced("own_model:Own")
    assert str(caught.value) == "own_model:Own: a trace needs torch; install it with pip install 'llmviewer[oracle]'"


def test_weights_in_memory_are_not_wanted():
    with pytest.raises(InputError) as caught:
        trace(torch.nn.Linear(2, 2), name="real")
    assert str(caught.value) == "real: must be on the meta device; weight is on cpu"


def test_a_wrong_vocabulary():
    with pytest.raises(InputError) as caught:
        trace(build("llama")[0], name="llama", vocab=5)
    assert str(caught.value) == "llama: must have 5 logits, as vocab says; got 320"


def test_nothing_is_left_changed(own):
    before, path = torch.get_default_device(), list(sys.path)
    module = build("llama")[0].train()
    trace(module, name="llama")
    load_traced("own_model:Own")
    assert module.training
    assert (torch.get_default_device(), sys.path) == (before, path)
    assert json.dumps([str(p.device) for p in module.parameters()]).count("cpu") == 0
