"""Graphs traced from modules that run once over their input, against architectures, torch's counter and hand counts."""

import logging

import pytest

import llmviewer
from llmviewer.cli import main
from llmviewer.documents import Section
from llmviewer.errors import InputError
from llmviewer.forms import evaluate, total
from llmviewer.memory import weight_bytes
from llmviewer.model_files import _from_config
from llmviewer.operators.attention import FlashAttention
from llmviewer.operators.linear import Linear, LMHead
from llmviewer.resource import Unit
from llmviewer.transforms.flash_attention import flash_attention
from llmviewer.transforms.quantize import parse_quantization, quantize
from llmviewer.workload import Workload

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from llmviewer.tracing import load_traced, trace  # noqa: E402

from .cases import first_fast  # noqa: E402

BATCH, LENGTH, SIDE = 3, 50, 64
TEXT = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 320,
    "pad_token_id": 0, "max_position_embeddings": 512,
}  # fmt: skip
PICTURE = {
    "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96, "image_size": SIDE,
    "patch_size": 16,
}  # fmt: skip
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 3, "num_heads": 4, "vocab_size": 320}
BOTH = {
    "BertModel": ("bert", TEXT),
    "BertForMaskedLM": ("bert", TEXT),
    "BertForSequenceClassification": ("bert", TEXT),
    "RobertaForMaskedLM": ("roberta", TEXT),
    "DistilBertForMaskedLM": ("distilbert", {**TEXT, "dim": 64, "hidden_dim": 96, "n_layers": 3, "n_heads": 4}),
    "ElectraModel": ("electra", {**TEXT, "embedding_size": 32}),
    "AlbertModel": ("albert", {**TEXT, "embedding_size": 32}),
    "T5EncoderModel": ("t5", T5),
    "CLIPTextModel": ("clip_text_model", TEXT),
    "SiglipTextModel": ("siglip_text_model", TEXT),
    "ViTModel": ("vit", PICTURE),
    "ViTForImageClassification": ("vit", PICTURE),
    "SiglipVisionModel": ("siglip_vision_model", PICTURE),
    "CLIPVisionModelWithProjection": ("clip_vision_model", PICTURE),
    "Dinov2Model": ("dinov2", {k: v for k, v in PICTURE.items() if k != "intermediate_size"}),
}  # fmt: skip


def matrix_ops(graph, w):
    forms = (b.repeat * ops for b, op in graph for unit, ops in op.arithmetic().items() if unit.unit is Unit.MATRIX)
    return evaluate(total(forms), w)


def amount(graph, key, w):
    return evaluate(total(b.repeat * getattr(op.work(), key) for b, op in graph), w)


def example(module, device="meta"):
    """Inputs of a module of transformers: ids, or images."""
    if module.main_input_name == "input_ids":
        return torch.zeros(BATCH, LENGTH, dtype=torch.long, device=device)
    return torch.zeros(BATCH, 3, SIDE, SIDE, dtype=next(module.parameters()).dtype, device=device)


def counted(module, *inputs):
    """OPs as torch counts them."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(*inputs)
    return counter.get_total_flops()


@pytest.fixture(scope="module", params=first_fast(BOTH, "traces every family", 4))
def pair(request):
    """(the model traced, that of the architecture, OPs of torch, a workload)"""
    kind, fields = BOTH[request.param]
    fields = {"model_type": kind, **fields, "architectures": [request.param]}
    with torch.device("meta"):
        config = transformers.AutoConfig.for_model(**fields)
        module = getattr(transformers, request.param)._from_config(config, dtype=torch.bfloat16).eval()
    ours = _from_config(Section({**fields, "dtype": "bfloat16"}, "config.json"), name=request.param)
    workload = Workload.prefill(batch=BATCH, prompt=ours.image_input_tokens or LENGTH)
    config.pad_token_id = None  # whose look-up among ids needs their values
    return trace(module, name=request.param), ours, counted(module, example(module)), workload


def test_parameters_layers_and_weights_equal_the_architectures(pair):
    traced, ours, _, _ = pair
    masked = 64 if ours.model_type == "dinov2" else 0  # a token that training alone reads
    assert traced.parameters == ours.parameters - masked
    assert weight_bytes(traced.graph) == weight_bytes(ours.graph) - 2 * masked
    assert traced.graph.layers == (1 if ours.model_type == "albert" else ours.graph.layers)  # which runs one again
    assert (traced.format, traced.model_type) == (ours.format, ours.model_type)


def test_matrix_ops_equal_to_the_digit(pair):
    """A text tower of CLIP is causal: torch counts its hidden pairs."""
    traced, ours, flops, w = pair
    assert matrix_ops(traced.graph, w) == matrix_ops(ours.graph, w)
    assert (matrix_ops(traced.graph, w) == flops) == (ours.model_type != "clip_text_model")


def test_traced_encoder_equals_the_architecture(pair):
    traced, ours, _, _ = pair
    assert (traced.generates, ours.generates) == (False, False)
    assert traced.kv_bytes_per_token == 0
    assert traced.attention == ours.attention
    assert any(note.startswith("runs once over its input, without a cache") for note in traced.notes)


@pytest.mark.parametrize("flash", [False, True])
def test_bytes_of_activations_are_within_an_eighth(pair, flash):
    """Not equal: additions are fused with the norm that follows, and tables are looked up one by one."""
    traced, ours, _, w = pair
    one, other = (m.graph.then(flash_attention(2e5)).check() if flash else m.graph for m in (traced, ours))
    fused, expected = (sum(b.repeat * isinstance(op, FlashAttention) for b, op in graph) for graph in (one, other))
    assert fused == expected == flash * (fused or 1)
    assert 7 / 8 < amount(one, "activation_bytes", w) / amount(other, "activation_bytes", w) < 9 / 8


@pytest.mark.parametrize("scheme", ["W4A16g32", "W8A8"])
def test_quantization_reads_as_many_weights(pair, scheme):
    """But for the table of T5's biases, which each layer of the architecture reads and the module once, and for the
    pooling of SigLIP, whose queries are made with a third of a matrix and so left alone.
    """
    _, ours, _, w = pair
    one, other = (
        amount(m.graph.then(quantize(parse_quantization(scheme))).check(), "weight_bytes", w) for m in pair[:2]
    )
    unlike = {"t5": (0.98, 1), "siglip_vision_model": (1, 1.2)}
    low, high = unlike.get(ours.model_type, (1, 1))
    assert low <= one / other <= high
    assert (one == other) == (ours.model_type not in unlike)


# Kinds of transformers without an architecture here, against torch's counter on modules in memory.

SHIFTED = {"image_size": SIDE, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
STAGES = {"image_size": SIDE, "hidden_sizes": [16, 32], "depths": [2, 2], "num_stages": 2}
KINDS = {
    "beit": PICTURE,
    "convbert": TEXT,
    "convnext": STAGES,
    "deberta-v2": {**TEXT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "esm": {**TEXT, "mask_token_id": 1},
    "fnet": TEXT,
    "roformer": TEXT,
    "swinv2": SHIFTED,
    "xlnet": {"d_model": 64, "n_layer": 3, "n_head": 4, "d_inner": 96, "vocab_size": 320},
}
UNREAD = {"esm": 13, "xlnet": 640}  # parameters that a pass does not read


@pytest.mark.parametrize("kind", first_fast(KINDS, "traces every family", 2))
def test_kinds_without_an_architecture(kind):
    config = transformers.AutoConfig.for_model(kind, **KINDS[kind])
    with torch.device("meta"):
        module = transformers.AutoModel.from_config(config).eval()
    real = transformers.AutoModel.from_config(config, attn_implementation="eager").eval().requires_grad_(False)
    model = trace(module.to("meta"), name=kind)
    assert model.parameters == sum(p.numel() for p in real.parameters()) - UNREAD.get(kind, 0)
    w = Workload.prefill(batch=BATCH, prompt=LENGTH)
    assert matrix_ops(model.graph, w) == counted(real, example(real, "cpu"))
    assert model.graph.layers == (len(KINDS[kind].get("depths", ())) or 3)


REFUSED = {
    "xlm": "xlm: the module itself: .item(), or an `if` on a tensor, needs the values of a tensor, and a trace has "
    "only shapes; make what it decides a constant, or describe the model in a YAML file",
    "wav2vec2": "wav2vec2: reads input_values, and its shape is not known; let the callable return (module, inputs)",
    "resnet": "resnet: reads images, and its config has no image_size; let the callable return (module, inputs)",
    "canine": "canine: forward must run as forward(input_ids); it raised RuntimeError: max_pool1d() Invalid computed "
    "output size: 0; for another input let the callable return (module, inputs)",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_kinds_that_are_refused_in_one_line(kind):
    with torch.device("meta"):
        module = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind))
    with pytest.raises(InputError) as caught:
        trace(module.to("meta"), name=kind)
    assert str(caught.value) == REFUSED[kind]


def test_inputs_of_both_towers_at_once_are_refused():
    """The products of their results grow with the square of the sequences."""
    config = transformers.CLIPConfig(text_config=TEXT, vision_config=PICTURE)
    with torch.device("meta"):
        module = transformers.CLIPModel(config)
        inputs = {"input_ids": torch.zeros(2, 9, dtype=torch.long), "pixel_values": torch.zeros(2, 3, SIDE, SIDE)}
    with pytest.raises(InputError) as caught:
        trace(module, name="clip", inputs=inputs)
    assert str(caught.value) == (
        "clip: the module itself: mm has results that are no sum of whole multiples of sequences: 4, 9, 16, 49, ..."
    )


# Modules of one's own, in a module of the working folder.

OWN = """
import torch
from torch import nn
from torch.nn import functional as F

class Layer(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.norm, self.qkv, self.o, self.causal = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64), causal
        self.mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, 4, 16).transpose(1, 2) for y in self.qkv(self.norm(x)).split(d, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(x)

class Gpt(nn.Module):
    def __init__(self, causal=True, layers=3):
        super().__init__()
        self.tokens, self.places = nn.Embedding(100, 64), nn.Embedding(128, 64)
        self.layers = nn.ModuleList(Layer(causal) for _ in range(layers))
        self.head = nn.Linear(64, 100, bias=False)

    def forward(self, idx):
        x = self.tokens(idx) + self.places(torch.arange(idx.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

class Twice(Gpt):  # hands on two tensors
    def forward(self, idx):
        first = x = self.tokens(idx) + self.places(torch.arange(idx.shape[1])) @ self.head.weight.T @ self.head.weight
        for layer in self.layers:
            x, first = layer(x) + first, first + x
        return self.head(x + first)

class NoCache(Gpt):
    def forward(self, input_ids, past_key_values=None, use_cache=True):
        return super().forward(input_ids)

class Encoder(nn.Module):
    def __init__(self, causal=False, batch_first=True):
        super().__init__()
        self.tokens, self.causal = nn.Embedding(100, 64), causal
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1]) if self.causal else None
        return self.encoder(self.tokens(ids), mask=mask, is_causal=self.causal)

class Weighted(nn.Module):  # attention whose mean weights are made and thrown away
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x):
        return self.attend(x, x, x)[0]

class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10))

class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 288, bias=False), nn.Linear(96, 64, bias=False)

    def forward(self, x):
        gate, up, more = self.up(x).chunk(3, -1)
        return self.down(F.silu(gate) * up + more)

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 2, stride=2),
                         nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.GRU(64, 64, batch_first=True)

    def forward(self, x):
        return self.cells(x)[0]

class Decides(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum().item() > 0 else x

class Constant(nn.Linear):
    def forward(self, x):
        return torch.ones(3)

class Nothing(nn.Module):
    def forward(self):
        return 1

class Pair(Gpt):
    def forward(self, ids, other):
        return super().forward(ids)

class Kept(nn.Module):  # one product of 64 by 96 numbers, whose weight is kept in another shape
    def __init__(self, equation, *shape):
        super().__init__()
        self.equation, self.weight = equation, nn.Parameter(torch.empty(shape))

    def forward(self, x):
        return torch.einsum(self.equation, x, self.weight)

def zeros(*sizes, **kwargs):
    return torch.zeros(*sizes, **kwargs)

def ids(*sizes):
    return torch.zeros(*sizes, dtype=torch.long)

def both_ways(): return Gpt(causal=False)
def given(): return Gpt(), ids(2, 16)
def named(): return Gpt(), {"idx": ids(2, 16)}
def causal_encoder(): return Encoder(causal=True)
def weighted(): return Weighted(), zeros(2, 9, 64)
def mlp(): return Mlp(), zeros(8, 64)
def gated(): return Gated(), zeros(2, 9, 64)
def net(): return Net(), (zeros(1, 3, 32, 32),)
def rows_first(): return Kept("bk,nk->bn", 96, 64), zeros(2, 64)
def columns_first(): return Kept("bk,kn->bn", 64, 96), zeros(2, 64)
def in_parts(): return Kept("bk,enk->ben", 4, 24, 64), zeros(2, 64)
def in_parts_by_columns(): return Kept("bk,ekn->ben", 4, 64, 24), zeros(2, 64)
def gru(): return Recurrent(), zeros(2, 9, 64)
def first_length(): return Encoder(batch_first=False).encoder, zeros(9, 2, 64), DIMS
def pair(): return nn.Transformer(64, 4, 1, 1, 128, batch_first=True), (zeros(2, 9, 64), zeros(2, 9, 64))
DIMS = {0: {0: "tokens", 1: "sequences"}}

def tuple_of_numbers(): return 3, ids(2, 5)
def four(): return Gpt(), ids(2, 5), {}, 4
def in_memory(): return Mlp(), zeros(8, 64, device="cpu")
def no_tensor(): return Mlp(), 3
def no_name(): return Mlp(), {(1, 2): zeros(8, 64)}
def scalar(): return Mlp(), zeros(())
def square(): return Gpt(), ids(5, 5)
def two_types(): return Mlp(), (zeros(9, 2, 64), zeros(9, 2, 64, dtype=torch.float16))
def too_narrow(): return Mlp(), zeros(8, 63)
def wrong_name(): return Gpt(), {"idz": ids(2, 5)}
def no_dims(): return Gpt(), ids(2, 5), 7
def other_dims(): return Gpt(), ids(2, 5), {0: {0: "time"}}
def dims_of_none(): return Gpt(), ids(2, 5), {"x": {0: "sequences"}}
def seventh(): return Gpt(), ids(2, 5), {0: {7: "sequences"}}
def no_sequences(): return Gpt(), ids(2, 5), {0: {1: "tokens"}}
def decides(): return Decides(4, 4), zeros(2, 4)
def constant(): return Constant(4, 4), zeros(2, 4)
def lazy(): return nn.LazyLinear(4), zeros(2, 4)
"""


def linear_ops(tokens):
    """Parameters of three layers of Gpt and its head."""
    return 2 * tokens * (3 * (64 * 192 + 64 * 64 + 2 * 64 * 256) + 64 * 100)


@pytest.mark.parametrize(
    ("name", "pairs"), [("Gpt", 55), ("both_ways", 100), ("given", 55), ("named", 55), ("NoCache", 55)]
)
def test_a_language_model_without_a_cache(own, name, pairs):
    model = load_traced(own + name)
    w = Workload.prefill(batch=2, prompt=10)
    assert matrix_ops(model.graph, w) == linear_ops(20) + 3 * 2 * 2 * 2 * 64 * pairs
    assert model.attention == ("MHA" if pairs == 55 else "MHA bidirectional")
    assert (model.generates, model.graph.layers, len(model.graph.blocks)) == (False, 3, 3)
    heads = [op for _, op in model.graph if isinstance(op, LMHead)]
    assert [str(op.outputs[0].rows) for op in heads] == ["1 tokens"]  # it makes all logits


def test_one_projection_is_read_in_parts(own):
    """Queries, keys and values go to attention once each: 3 x 64 numbers of a token, and 64 come back."""
    flash = load_traced(own + "Gpt").graph.then(flash_attention(1e9)).check()
    moved = [op.work().activation_bytes for _, op in flash if isinstance(op, FlashAttention)]
    assert [evaluate(form, Workload.prefill(batch=2, prompt=10)) for form in moved] == [20 * 4 * 64 * 4]


def test_slices_of_a_projection_without_a_bias_are_read_each(own):
    """Numbers of a token: 64 to 288, three slices of 96 to one, and 96 to 64."""
    (_, up), (_, gate), (_, down) = load_traced(own + "gated").graph
    moved = [evaluate(op.work().activation_bytes, Workload.prefill(batch=2, prompt=10)) for op in (up, gate, down)]
    assert moved == [20 * 4 * (64 + 288), 20 * 4 * (3 * 96 + 96), 20 * 4 * (96 + 64)]


def test_layers_that_hand_on_more_than_one_tensor_are_one_block(own):
    model = load_traced(own + "Twice")
    w = Workload.prefill(batch=2, prompt=10)
    plain = linear_ops(20) + 3 * 2 * 2 * 2 * 64 * 55
    assert matrix_ops(model.graph, w) == plain + 2 * 20 * 2 * 64 * 100
    assert "3 layers hand on more than one tensor, and are one block" in model.notes
    assert model.graph.layers == 1


def test_layers_of_torch(own):
    both, causal = (load_traced(own + name) for name in ("Encoder", "causal_encoder"))
    w = Workload.prefill(batch=2, prompt=10)
    linear = 2 * 20 * 2 * (4 * 64 * 64 + 2 * 64 * 128)
    assert [matrix_ops(m.graph, w) - linear for m in (both, causal)] == [2 * 2 * 2 * 2 * 64 * n for n in (100, 55)]
    assert [m.attention for m in (both, causal)] == ["MHA bidirectional", "MHA"]


def test_unused_operators_are_left_out_of_the_graph(own):
    graph = load_traced(own + "weighted").graph.then(flash_attention(2e5)).check()
    assert sum(isinstance(op, FlashAttention) for _, op in graph) == 1
    assert not any("mean" in op.name for _, op in graph)


def test_a_dimension_is_named(own):
    """The batch is the second dimension, the default of torch's layers."""
    w = Workload.prefill(batch=2, prompt=10)
    model, same = load_traced(own + "first_length"), load_traced(own + "Encoder")
    assert matrix_ops(model.graph, w) == matrix_ops(same.graph, w)


def test_inputs_of_one_size_count_the_same_for_any_prompt(own):
    model, w = load_traced(own + "net"), [Workload.prefill(batch=5, prompt=p) for p in (1, 77)]
    ops = 2 * 5 * (32 * 32 * 8 * 27 + 16 * 16 * 16 * 32 + 160)
    assert [matrix_ops(model.graph, one) for one in w] == [ops, ops]
    assert model.parameters == 8 * 27 + 8 + 16 + 16 * 32 + 16 + 170
    assert model.notes[-1] == (
        "runs once over its input, without a cache, of one size for each sequence: input 0 of 3 x 32 x 32; --prompt "
        "changes no count, and with --prompt 1 its tokens/s are inputs per second"
    )


def test_traced_modules_with_fixed_lengths_are_noted(own):
    model = load_traced(own + "gru")
    assert "lengths cannot vary: cells: " in model.notes[1]
    assert matrix_ops(model.graph, Workload.prefill(batch=5, prompt=1)) == 2 * 5 * 9 * 2 * 3 * 64 * 64


def test_rows_of_features(own):
    model = load_traced(own + "mlp")
    assert matrix_ops(model.graph, Workload.prefill(batch=5, prompt=1)) == 2 * 5 * (64 * 128 + 1280)
    assert (model.graph.layers, [b.name for b in model.graph.blocks]) == (1, ["layer"])


@pytest.mark.parametrize("name", ["rows_first", "columns_first", "in_parts", "in_parts_by_columns"])
def test_a_product_is_one_of_n_and_k_however_its_weight_is_kept(own, name):
    """Kernels that are expected, and layouts, read both from the weight."""
    (found,) = (op for _, op in load_traced(own + name).graph if isinstance(op, Linear))
    assert (found.weight.shape, found.inputs[0].width) == ((96, 64), 64)


def test_two_inputs(own):
    model = load_traced(own + "pair")
    module = torch.nn.Transformer(64, 4, 1, 1, 128, batch_first=True, device="meta").eval()
    x = torch.zeros(2, 10, 64, device="meta")
    assert matrix_ops(model.graph, Workload.prefill(batch=2, prompt=10)) == counted(module, x, x)


ERRORS = {
    "tuple_of_numbers": "must return a torch.nn.Module, or (module, inputs); got a tuple that begins with int",
    "four": "must return a torch.nn.Module, or (module, inputs); got tuple",
    "in_memory": "inputs must be on the meta device; input 0 is on cpu",
    "no_tensor": "inputs must be a tensor, or a tuple or dict with tensors; got int",
    "no_name": "inputs must be a tensor, or a tuple or dict with tensors; got dict",
    "scalar": "inputs must have a dimension that varies, the first for sequences; got numbers alone",
    "square": "inputs must have other numbers of sequences than of tokens, to tell them apart; got 5 x 5: say which is "
    "which, as in (module, inputs, {0: {0: 'sequences', 1: 'tokens'}})",
    "two_types": "inputs must have one floating-point type; got float16, float32",
    "too_narrow": "0: addmm fails on meta tensors (RuntimeError: a and b must have same reduction dim, but got "
    "[2, 63] X [64, 128].)",
    "wrong_name": "forward must run as forward(idz); it raised TypeError: Gpt.forward() got an unexpected keyword "
    "argument 'idz'",
    "no_dims": "dims must say which dimensions of which input vary, as {0: {0: 'sequences', 1: 'tokens'}}; got 7",
    "other_dims": "dimensions must be 'sequences' or 'tokens'; got 'time'",
    "dims_of_none": "dims must name an input (input 0); got 'x'",
    "seventh": "input 0 has 2 dimensions, from 0; got 7",
    "no_sequences": "dims must say which dimension is 'sequences'; got {0: {1: 'tokens'}}",
    "decides": "the module itself: .item(), or an `if` on a tensor, needs the values of a tensor, and a trace has only "
    "shapes; make what it decides a constant, or describe the model in a YAML file",
    "constant": "forward must return what it makes of its input; got nothing that depends on it",
    "lazy": "must have parameters of known sizes; weight waits for data",
    "Nothing": "forward must take an input; it takes none",
    "Pair": "forward must run as forward(ids); it raised TypeError: Pair.forward() missing 1 required positional "
    "argument: 'other'; for another input let the callable return (module, inputs)",
    "Mlp": "0: addmm fails on meta tensors (RuntimeError: a and b must have same reduction dim, but got [2, 3] X "
    "[64, 128].); for another input let the callable return (module, inputs)",
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_one_line(own, name, capsys):
    assert main(["models", own + name]) == 2
    assert capsys.readouterr() == ("", f"llmviewer: {name}: {ERRORS[name]}\n")


def test_a_picture_is_analyzed_as_the_architecture_has_it():
    fields = {"model_type": "vit", **PICTURE, "architectures": ["ViTModel"]}
    with torch.device("meta"):
        module = transformers.ViTModel(transformers.ViTConfig(**PICTURE))
    ours = _from_config(Section({**fields, "dtype": "float32"}, "config.json"), name="vit")
    one, other = (llmviewer.analyze(m, "h100-sxm", prompt=17) for m in (trace(module, name="vit"), ours))
    assert one.phases.decode is other.phases.decode is None
    assert one.phases.prefill.total.bytes == pytest.approx(other.phases.prefill.total.bytes, rel=0.05)
    assert one.memory.weight_bytes == other.memory.weight_bytes
    assert "one pass over the prompt, no decode: vit does not generate" in one.notes


def test_tensor_mask_equals_an_is_causal_flag():
    """The eager attention of transformers adds a mask tensor; the other sets is_causal."""
    config = transformers.CLIPTextConfig(**TEXT)
    kinds = []
    for attention in ("eager", "sdpa"):
        config._attn_implementation = attention
        with torch.device("meta"):
            module = transformers.CLIPTextModel(config)
        kinds.append(trace(module, name="clip").attention)
    assert kinds == ["MHA", "MHA"]


def test_error_for_a_module_shows_how_to_trace_it():
    module = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(9)))
    with pytest.raises(InputError) as caught:
        llmviewer.analyze(module, "h100-sxm")
    said = str(caught.value)
    assert said.endswith(" ...; llmviewer.tracing.trace(module, name=...) makes a Model of a module on the meta device")
    assert "\n" not in said


def test_a_trace_within_the_meta_device_is_as_one_outside():
    """Where the numbers of masks have a device all the same."""
    with torch.device("meta"):
        module = transformers.CLIPTextModel(transformers.CLIPTextConfig(**TEXT))
        within = trace(module, name="clip")
    assert within.graph == trace(module, name="clip").graph


def test_nothing_is_left_changed():
    with torch.device("meta"):
        module = transformers.BertModel(transformers.BertConfig(**TEXT)).train()
    module.pooler.dense.weight.requires_grad_(requires_grad=False)
    trace(module, name="bert")
    frozen = [name for name, p in module.named_parameters() if not p.requires_grad]
    assert (module.training, frozen) == (True, ["pooler.dense.weight"])
    assert not logging.getLogger("transformers").disabled
