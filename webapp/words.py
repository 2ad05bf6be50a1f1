"""The words of the page: what each control is for, in a line, and a glossary of the field's terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from llmviewer.options import PARAMETERS, RequestOptions
from llmviewer.parameters import declared


class ControlWords(NamedTuple):
    """A control: its label, one line on what it does, and what it is about in the glossary."""

    label: str
    about: str
    term: str


def _declared(name: str) -> ControlWords:
    """The words of an option, as it is declared."""
    parameter = (PARAMETERS | declared(RequestOptions))[name]
    return ControlWords(parameter.label, parameter.about, parameter.term)


CONTROLS: Final[Mapping[str, ControlWords]] = {
    "model": ControlWords(
        "Model", "The network. Type to search by name; drop in a config.json for one that does not ship.", "model"
    ),
    "on": ControlWords(
        "Devices", "One or several, which are compared. Drop in a YAML for one that does not ship.", "device"
    ),
    "phase": ControlWords(
        "Phase", "Prefill reads the whole prompt at once; decode writes one token of each sequence.", "phase"
    ),
    "batch": _declared("batch"),
    "prompt": _declared("prompt"),
    "gen": _declared("gen"),
    "context": _declared("kv_len"),
    "quant": _declared("quant"),
    "attention": _declared("attention"),
    "tp": _declared("tp"),
    "pp": _declared("pp"),
    "ep": _declared("ep"),
    "dp": _declared("dp"),
    "cp": _declared("cp"),
    "mla": _declared("mla"),
    "accounting": _declared("accounting"),
    "skew": _declared("expert_skew"),
    "images": _declared("images"),
    "offload": _declared("offload"),
    "mtp": _declared("mtp"),
    "library": _declared("library"),
    "engine": _declared("engine"),
    "measured": ControlWords(
        "Measured", "What you timed: ttft, tpot, latency or tokens_per_s. Says how good that is.", "measured time"
    ),
    "techniques": ControlWords(
        "Techniques", "Choose several; their parameters can be edited, with semicolons between them.", "technique"
    ),
    "sweep": ControlWords(
        "Show", "Curves along batch or length, or a figure of the paper (arXiv:2402.16363) for this model.", "sweep"
    ),
    "curves": ControlWords("A curve for each", "The devices chosen, or precisions on the first of them.", "sweep"),
    "quants": ControlWords(
        "Precisions", "Those of the curves, with semicolons; empty: those of the paper.", "precision"
    ),
    "pins": ControlWords(
        "Pinned", "Settings that are kept to compare the present one with; they are part of the link.", "comparison"
    ),
    "passes": ControlWords("Passes", "Of the model in the trace; needed only where they are not recognised.", "trace"),
    "stage": ControlWords("Stage", "Of a pipeline, that whose device was recorded; the first is 1.", "trace"),
    "op": ControlWords(
        "Operator", "What the inspector shows; a click on a point, bar, row or node chooses it too.", "operator"
    ),
}


class Term(NamedTuple):
    """An entry of the glossary."""

    name: str
    also: str  # other names of the same thing
    meaning: str


GLOSSARY: Final = (
    Term("accounting", "", "What is counted: faithful is what kernels have to do; survey follows arXiv:2402.16363."),
    Term("activations", "hidden states", "Tensors that operators pass to each other."),
    Term(
        "arithmetic intensity",
        "operational intensity, OP/B",
        "OPs over bytes moved to and from the device's memory. Below the ridge point a kernel is memory-bound, "
        "above it compute-bound.",
    ),
    Term("attainable performance", "OP/s under the roof", "OPs over the least time; min(peak, intensity x bandwidth)."),
    Term("attention", "", "Each new token attends to the keys and values of all before it; eager or flash."),
    Term("bandwidth", "memory bandwidth, B/s", "Bytes a second between the device's main memory and its chip."),
    Term("batch", "batch size, sequences", "Concurrent sequences; they share each read of the weights."),
    Term("bound", "lower bound, limit", "The least time that any kernel needs on a device that meets its datasheet."),
    Term("capacity", "VRAM, device memory", "Bytes that the device's main memory holds."),
    Term("comparison", "side by side", "Two settings or more, and how many times one is the other."),
    Term("compute-bound", "", "The arithmetic takes longest: more bandwidth does not help."),
    Term("context", "KV length, sequence length", "Tokens that a new token attends to, its own included."),
    Term("decode", "generation, token phase", "The passes that write one token of each sequence at a time."),
    Term(
        "device",
        "hardware, GPU, accelerator",
        "What runs the model; its rates and capacity are those of its datasheet.",
    ),
    Term(
        "engine",
        "serving framework, runtime",
        "What launches kernels one after another; its host may leave gaps between them.",
    ),
    Term("expected time", "achievable", "What kernels of a measured library take, with an 80 % interval."),
    Term("expert", "MoE", "One of several feed-forward networks of a layer, of which each token takes a few."),
    Term("flash attention", "fused attention", "Attention in one launch whose scores stay on the chip."),
    Term(
        "generated tokens",
        "output tokens, completion",
        "Tokens that are written after the prompt, one in each decode step.",
    ),
    Term(
        "image tokens",
        "visual tokens",
        "What a vision tower makes of a picture; part of the prompt.",
    ),
    Term(
        "kernel library",
        "cuBLAS, TensorRT-LLM, vLLM",
        "Implementations of operators, whose speed was measured.",
    ),
    Term("KV cache", "key-value cache", "Keys and values of all tokens so far, kept for later passes."),
    Term("latency", "end-to-end time", "From the prompt's arrival to the last token."),
    Term(
        "latent attention",
        "MLA",
        "Keys and values of all heads come from one small vector a token, which is what is cached.",
    ),
    Term("link-bound", "communication-bound", "Waits for data from other devices, host memory or storage."),
    Term("measured time", "benchmark", "What you timed; it is held against the bound and the expected time."),
    Term("memory-bound", "bandwidth-bound", "Waits for bytes from memory: fewer bytes or more sequences help."),
    Term("model", "network, LLM", "The network: its operators and their weights, as its config.json says."),
    Term(
        "offload",
        "CPU offload",
        "Weights or cache lie in host memory or on storage, and come over a link when they are used.",
    ),
    Term("OP", "FLOP, operation", "An arithmetic operation; a multiply-add is two."),
    Term("operator", "kernel, launch", "One launch on the device: a matrix product, attention, a norm."),
    Term("parallelism", "TP, PP, EP, DP, CP", "How a model is laid out on several devices."),
    Term("phase", "stage", "Prefill or decode."),
    Term("precision", "quantization, W4A16g128", "Bits of weights (W), activations (A), KV cache; values a scale (g)."),
    Term("prefill", "prompt phase, context phase", "The pass that reads the prompt and yields the first token."),
    Term("prompt", "input, context", "Tokens that are read before the first is written."),
    Term("ridge point", "turning point", "The intensity above which a kernel is compute-bound: peak over bandwidth."),
    Term("roofline", "", "Performance against intensity under peak and bandwidth (doi:10.1145/1498765.1498785)."),
    Term("sweep", "", "One setting after another along the batch or the length; curves cross where a bound changes."),
    Term(
        "technique",
        "optimization",
        "A method to make inference faster, such as speculative decoding; most have parameters.",
    ),
    Term("throughput", "tokens/s", "Tokens per second, of all sequences."),
    Term("token prediction", "MTP, multi-token prediction", "Layers trained to predict the tokens after the next."),
    Term("TPOT", "time per output token, inter-token latency, ITL", "The mean time of a decode step."),
    Term("trace", "timeline, profile", "What a profiler recorded of a run: each kernel with its start and duration."),
    Term("TTFT", "time to first token", "The time of the prefill."),
    Term("weights", "parameters", "The numbers a model is made of; every pass reads those that it uses."),
)
