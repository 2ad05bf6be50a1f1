"""A graph from any module in torch, without its weights: what there is no architecture for.

The module runs on the meta device for a few shapes: of batch, new and cached tokens where it keeps a cache, of what it
reads once where it does not. The aten calls of all passes are aligned, and what each does is fitted exactly by the
features of a workload; a call that does not fit is an error. Matmul-like calls are operators of their own, and the
element-wise ones between them are fused. Score matrices are whole in a trace; with a cache their OPs count what a
causal mask leaves, as everywhere else here. What keeps a state is traced token by token, and held to a prompt.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from .._layout import ROOT
from ..errors import InputError
from ..model import Model
from ..precision import FP16, Format
from .fitting import CACHED, FIXED, ONCE, STEPS, Shape
from .numbers import Numbers
from .operators import Builder, format_of
from .passes import Passes, passes_of
from .program import Program, layer_lists
from .recording import Recording
from .scans import compare_prompts

_CONTEXT: Final = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "block_size")
_NAMED: Final = 4  # parameters that a note tells by name
_TRIED: Final = (64, 1024)  # tokens of it after prompts whose scans go token by token, and by chunks
_MASK: Final = 600  # tokens of one pass whose masks are worked out
_LONG: Final = 1 << 15  # tokens of the longest pass of a trace, where the module does not say how many it is made for


def load_traced(name: str) -> Model:
    """The model that "package.module:callable" names: a callable without arguments that returns a module, or a tuple of
    it and what trace() takes as `inputs` and `dims`.

    It is called under torch.device("meta"), so it takes no memory. Modules in the working folder are found, too.
    Raises InputError where it cannot be imported, called or traced.
    """
    path, _, attribute = name.partition(":")
    torch = _torch(name)
    try:
        with _working_folder():
            found: Any = import_module(path)
    except Exception as error:  # noqa: BLE001  # it is the user's code
        raise InputError(f"{name}: module {path} cannot be imported ({_told(error)})") from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InputError(f"{name}: module {path} has no {attribute!r}; give package.module:callable")
        found = getattr(found, part)
    numbers = Numbers()
    try:
        with torch.device("meta"):
            made = numbers.run(found)
            module, *given = made if isinstance(made, tuple) and 1 < len(made) < 4 else (made,)
            module = module.to("meta") if isinstance(module, torch.nn.Module) else module  # numbers drawn by hand
    except Exception as error:  # noqa: BLE001  # it is the user's code
        raise InputError(f"{name}: calling {attribute}() without arguments raised {_told(error)}") from None
    if not isinstance(module, torch.nn.Module):
        what = type(made).__name__ if made is module else f"a tuple that begins with {type(module).__name__}"
        raise InputError(f"{attribute}: must return a torch.nn.Module, or (module, inputs); got {what}")
    return _trace(module, attribute, numbers=numbers, **dict(zip(("inputs", "dims"), given, strict=False)))


def trace(
    module: Any, *, name: str, vocab: int | None = None, inputs: Any = None, dims: Mapping[Any, Any] | None = None
) -> Model:
    """The model that `module` computes: a torch.nn.Module on the meta device.

    What keeps keys and values is called as transformers calls its causal language models, with input_ids,
    past_key_values and use_cache. Anything else runs once over its input: ids of tokens, the pictures that its config
    describes, or what is given.

    vocab   how many logits it must have; None takes as many as there are
    inputs  what forward takes, on the meta device: a tensor, a tuple of what it takes by place or a dict by name. The
            first dimension of tensors is sequences; what is as long as the second dimension of ids, or else of the
            first tensor of three dimensions, is tokens, if it can vary
    dims    which dimensions vary, where that is not so: {name or place: {0: "sequences", 1: "tokens"}}

    What the OPs of attention products count are the pairs that a causal mask leaves, though a trace has whole score
    matrices; of what runs once all pairs, but where the module says is_causal. What depends on shapes alone (masks,
    angles, indices) costs nothing. Raises InputError, naming the call, where one needs data, or does not fit.
    """
    return _trace(module, name, vocab=vocab, inputs=inputs, dims=dims)


def _trace(
    module: Any, name: str, *, vocab: int | None = None, inputs: Any = None, dims: Any = None, numbers: Any = None
) -> Model:
    """The same, `numbers` being known of what the module's buffers hold."""
    torch = _torch(name)
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"{name}: must be a torch.nn.Module; got {type(module).__name__}")
    elsewhere = next(((n, p.device) for n, p in module.named_parameters() if p.device.type != "meta"), None)
    if elsewhere:
        raise InputError(f"{name}: must be on the meta device; {elsewhere[0]} is on {elsewhere[1]}")
    lazy = next((n for n, p in module.named_parameters() if torch.nn.parameter.is_lazy(p)), None)
    if lazy:
        raise InputError(f"{name}: must have parameters of known sizes; {lazy} waits for data")
    was_training, learned = module.training, [p for p in module.parameters() if p.requires_grad]
    try:
        module.eval().requires_grad_(requires_grad=False)
        with torch.device("cpu"):  # the numbers of masks are worked out, whatever device the caller makes tensors on
            ways = passes_of(module, name, inputs, dims)
            return _traced(module, name, vocab, [replace(way, numbers=numbers) for way in ways])
    finally:
        module.train(was_training)
        for parameter in learned:
            parameter.requires_grad_()


def _traced(module: Any, name: str, vocab: int | None, ways: Sequence[Passes]) -> Model:
    """The model by the first of some ways to run it that all counts fit."""
    first, *others = ways
    try:
        program = Program(name, first.basis, [first.record(shape) for shape in first.basis.shapes], first.places)
        return _model(module, program, first, vocab)
    except InputError as error:
        if not others:
            raise
        why = str(error).removeprefix(f"{name}: ")
        return _traced(module, name, vocab, [replace(others[0], why=why), *others[1:]])


def _model(module: Any, program: Program, passes: Passes, vocab: int | None) -> Model:
    name = program.name
    if program.logits < 0 or program.logits not in program.writer:
        what = "logits, as .logits or first" if passes.basis in (CACHED, STEPS) else "what it makes of its input"
        raise InputError(f"{name}: forward must return {what}; got nothing that depends on it")
    width = program.values[program.logits].shape[-1]
    if vocab is not None and width != vocab:
        raise InputError(f"{name}: must have {vocab} logits, as vocab says; got {width}")
    context = min(_context(module) or _LONG, *program.lengths.values()) if program.lengths else _context(module)
    context = context if passes.basis is not FIXED else 0
    notes = (*passes.notes, *_checked(program, passes, context))
    builder = Builder(program)
    segments = program.segments(layer_lists(module))
    graph = builder.graph(segments).check()
    joined = sum(segment.joined for segment in segments)
    if joined:
        notes += (f"{joined} layers hand on more than one tensor, and are one block",)
    unread = sorted({n for n, _ in module.named_parameters()} - builder.held)
    if unread:
        more = f" and {len(unread) - _NAMED} more" if len(unread) > _NAMED else ""
        named = ", ".join(unread[:_NAMED]) + more
        notes += (f"parameters that no pass reads, which are not counted: {named}",)
    return Model(
        name=name,
        title=name,
        model_type=getattr(getattr(module, "config", None), "model_type", None) or type(module).__name__,
        graph=graph,
        format=_format(module),
        max_context=context,
        source=f"a trace of {type(module).__module__}.{type(module).__qualname__}",
        notes=("traced on the meta device: element-wise launches are fused between products", *notes),
    )


def _checked(program: Program, passes: Passes, context: int) -> tuple[str, ...]:
    """Holds the program to passes that had no part in the fit; notes of what was not to be checked."""
    if passes.basis is FIXED:
        return ()
    if passes.basis is STEPS:
        notes = compare_prompts(program, passes)
        return (*notes, *(_find_windows(passes, program, context) if program.cached else ()))
    if passes.basis is CACHED:
        prompt = Shape(2, min(6, context or 6))
        _compare(program, passes.record(prompt), prompt)
    if passes.basis is ONCE:
        shape = Shape(2, min(context or _MASK, _MASK))
        try:
            recording = passes.record(shape)
        except InputError:  # the longest pass says so, too
            recording = program.recordings[-1]
        else:
            _compare(program, recording, shape)
        return (*_masked(program, recording), *_find_windows(passes, program, context))
    return _find_windows(passes, program, context)


def _find_windows(passes: Passes, program: Program, context: int) -> tuple[str, ...]:
    """Looks for windows in a pass at the end of the longest context; a note where that does not run.

    A pass between the longest window and there, of several sequences, has to confirm them. What reads all at once is
    known to have none.
    """
    longest = context or _LONG
    tried = min(longest, _TRIED[bool(program.chunks)]) if passes.basis is STEPS else longest
    shape = Shape(2, tried) if passes.basis is ONCE else Shape(1, 1, tried - 1)
    try:
        recording = passes.record(shape)
    except InputError as error:
        if context:
            raise
        return (f"not checked for {shape}: {error}",)
    _compare(program, recording, shape, find=passes.basis is not ONCE)
    if program.windows:
        between = Shape(2, 1, (shape.past + max(program.windows.values())) // 2)
        _compare(program, passes.record(between), between)
    few = (f"windows of more than {tried} keys were not looked for",) if tried < longest else ()
    return (*(() if passes.basis is ONCE else _masked(program, recording)), *few)


def _masked(program: Program, recording: Recording) -> tuple[str, ...]:
    """Takes over what masks of a long pass leave; a note of those that are not followed."""
    odd = program.masked(recording)
    return (f"masks that are other bands for other lengths hide nothing of {', '.join(odd)}",) if odd else ()


def _compare(program: Program, recording: Recording, shape: Shape, *, find: bool = False) -> None:
    """Compares the products of one more pass, which had no part in the fit, with what the fit says.

    Another path for a prompt or a single token is found here. `find` takes fewer keys in attention for a window.
    """
    counted = [(c, i) for i, c in enumerate(program.calls) if c.matmul]
    if [(c.path, c.name) for c, _ in counted] != [product[:2] for product in recording.products]:
        raise InputError(
            f"{program.name}: makes other products for {shape} than for {program.basis.shapes[0]}; "
            "a trace needs the same"
        )
    for (call, index), (_, _, ops) in zip(counted, recording.products, strict=True):
        said = program.said(index, shape)
        length = program.wide_calls.get(index, 0)  # of a cache, of which a prompt may leave out what is empty
        if length and ops * length == said * (shape.past + shape.q_len):
            continue
        if said != ops and not (find and program.narrowed(index, shape, ops)):
            raise program.error(call, f"has {ops} OPs for {shape} where shorter passes say {said}")


def _context(module: Any) -> int:
    config = getattr(module, "config", None)
    found = (getattr(config, key, None) for key in _CONTEXT)
    return next((n for n in found if isinstance(n, int) and n > 0), 0)


def _format(module: Any) -> Format:
    """The format of most parameters."""
    counts: Counter[str] = Counter()
    for parameter in module.parameters():
        counts[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    return (format_of(counts.most_common(1)[0][0]) if counts else None) or FP16


@contextmanager
def _working_folder() -> Iterator[None]:
    """Lets modules of the working folder be imported."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    _hide_our_kernels()
    try:
        yield
    finally:
        sys.path.remove(here)


def _hide_our_kernels() -> None:
    """Keeps transformers, where the working folder is a checkout of this program, from taking its kernels/ for a
    package of that name which it knows.
    """
    found = find_spec("kernels") if "kernels" not in sys.modules else None
    if found and found.origin and Path(found.origin).parent == ROOT / "kernels":
        sys.modules["kernels"] = None  # type: ignore[assignment]  # documented: it is then not found


def _torch(name: str) -> ModuleType:
    try:
        return import_module("torch")
    except ImportError:
        raise InputError(f"{name}: a trace needs torch; install it with pip install 'llmviewer[oracle]'") from None


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}".rstrip(": ")
