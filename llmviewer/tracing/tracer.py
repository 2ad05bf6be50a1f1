"""The model that a torch module computes: records passes, fits them, checks the fit, and builds the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from ..errors import InputError
from ..model import Model
from ..precision import FP16, Format
from .builder import Builder
from .checks import check, longest_context
from .fitting import CACHED, STEPS
from .numbers import ShapeValues
from .operators import format_of
from .passes import TracedPasses, passes_of
from .program import Program
from .segments import Segment, layer_lists, segments_of

_CONTEXT: Final = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "block_size")
_MAX_NAMED_PARAMETERS: Final = 4  # unread parameters that a note names


def trace(
    module: Any, *, name: str, vocab: int | None = None, inputs: Any = None, dims: Mapping[Any, Any] | None = None
) -> Model:
    """The model that `module` computes: a torch.nn.Module on the meta device.

    What keeps keys and values is called as transformers calls its causal language models, with input_ids,
    past_key_values or cache, and use_cache. Anything else runs once over its input: ids of tokens, the images that
    its config describes, or what is given.

    vocab   how many logits it must have; None takes as many as there are
    inputs  what forward takes, on the meta device: a tensor, a tuple of what it takes by place or a dict by name. The
            first dimension of tensors is sequences; what is as long as the second dimension of ids, or else of the
            first tensor of three dimensions, is tokens, if it can vary
    dims    which dimensions vary, where that is not so: {name or place: {0: "sequences", 1: "tokens"}}

    Attention products count the pairs that a causal mask leaves, though a trace has whole score matrices; those of a
    module that runs once count all pairs, unless it says is_causal. What depends on shapes alone (masks, angles,
    indices) costs nothing. Raises InputError, naming the call, where one needs data, or does not fit.
    """
    return trace_module(module, name, vocab=vocab, inputs=inputs, dims=dims)


def trace_module(
    module: Any,
    name: str,
    *,
    vocab: int | None = None,
    inputs: Any = None,
    dims: Any = None,
    numbers: ShapeValues | None = None,
) -> Model:
    """Traces a module, see trace(), with the known `numbers` of its buffers."""
    torch = import_torch(name)
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"{name}: must be a torch.nn.Module; got {type(module).__name__}")
    misplaced = next(((n, p.device) for n, p in module.named_parameters() if p.device.type != "meta"), None)
    if misplaced:
        raise InputError(f"{name}: must be on the meta device; {misplaced[0]} is on {misplaced[1]}")
    lazy_parameter = next((n for n, p in module.named_parameters() if torch.nn.parameter.is_lazy(p)), None)
    if lazy_parameter:
        raise InputError(f"{name}: must have parameters of known sizes; {lazy_parameter} waits for data")
    was_training, trainable = module.training, [p for p in module.parameters() if p.requires_grad]
    try:
        module.eval().requires_grad_(requires_grad=False)
        with torch.device("cpu"):  # the numbers of masks are worked out, whatever device the caller makes tensors on
            traced_passes = passes_of(module, name, inputs, dims)
            return _first_that_fits(module, name, vocab, [replace(way, numbers=numbers) for way in traced_passes])
    finally:
        module.train(was_training)
        for parameter in trainable:
            parameter.requires_grad_()


def _first_that_fits(module: Any, name: str, vocab: int | None, ways: Sequence[TracedPasses]) -> Model:
    """The model by the first of some ways to run it whose counts can all be fitted."""
    first, *others = ways
    try:
        program = Program(name, first.basis, [first.record(shape) for shape in first.basis.shapes], first.places)
        return _model(module, program, first, vocab)
    except InputError as error:
        if not others:
            raise
        why = str(error).removeprefix(f"{name}: ")
        return _first_that_fits(module, name, vocab, [replace(others[0], why=why), *others[1:]])


def _model(module: Any, program: Program, passes: TracedPasses, vocab: int | None) -> Model:
    name = program.name
    if program.logits < 0 or program.logits not in program.writer:
        result_text = (
            "logits, as .logits or as its first result"
            if passes.basis in (CACHED, STEPS)
            else "what it makes of its input"
        )
        raise InputError(f"{name}: forward must return {result_text}; got nothing that depends on it")
    width = program.values[program.logits].shape[-1]
    if vocab is not None and width != vocab:
        raise InputError(f"{name}: must have {vocab} logits, as vocab says; got {width}")
    context = longest_context(program, _context(module))
    check_notes = check(program, passes, context)
    builder = Builder(program)
    segments = segments_of(program, layer_lists(module))
    graph = builder.graph(segments).check()
    build_notes = _notes(segments, {n for n, _ in module.named_parameters()} - builder.read_parameters)
    return Model(
        name=name,
        title=name,
        model_type=getattr(getattr(module, "config", None), "model_type", None) or type(module).__name__,
        graph=graph,
        format=_format(module),
        max_context=context,
        source=f"a trace of {type(module).__module__}.{type(module).__qualname__}",
        notes=(
            "traced on the meta device: element-wise launches are fused between products",
            *passes.notes,
            *check_notes,
            *build_notes,
        ),
    )


def _notes(segments: Sequence[Segment], unread: set[str]) -> tuple[str, ...]:
    """Notes on how layers were cut, and on parameters that no pass reads."""
    notes: tuple[str, ...] = ()
    joined = sum(segment.joined for segment in segments)
    if joined:
        notes += (f"{joined} layers hand on more than one tensor, and are one block",)
    if unread:
        rest_text = f" and {len(unread) - _MAX_NAMED_PARAMETERS} more" if len(unread) > _MAX_NAMED_PARAMETERS else ""
        named = ", ".join(sorted(unread)[:_MAX_NAMED_PARAMETERS]) + rest_text
        notes += (f"parameters that no pass reads, which are not counted: {named}",)
    return notes


def _context(module: Any) -> int:
    """The longest context that the module's config says; 0 where it says none."""
    config = getattr(module, "config", None)
    context_values = (getattr(config, key, None) for key in _CONTEXT)
    return next((n for n in context_values if isinstance(n, int) and n > 0), 0)


def _format(module: Any) -> Format:
    """The format of most parameters."""
    counts: Counter[str] = Counter()
    for parameter in module.parameters():
        counts[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return (format_of(counts.most_common(1)[0][0]) if counts else None) or FP16


def import_torch(name: str) -> ModuleType:
    """Raises InputError where torch is not installed."""
    try:
        return import_module("torch")
    except ImportError:
        raise InputError(f"{name}: a trace needs torch; install it with pip install 'llmviewer[oracle]'") from None
