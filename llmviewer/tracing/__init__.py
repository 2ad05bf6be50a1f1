"""A graph from any causal language model in torch, without its weights: what there is no architecture for.

The module runs on the meta device for a few shapes of batch, new and cached tokens. The aten calls of all passes are
aligned, and what each does is fitted exactly by the features of a workload; a call that does not fit is an error.
Matmul-like calls are operators of their own, and the element-wise ones between them are fused. Score matrices are
whole in a trace; their OPs count what a causal mask leaves, as everywhere else here.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from .._layout import ROOT
from ..errors import InputError
from ..model import Model
from ..precision import FP16, Format
from .fitting import SHAPES, Shape
from .operators import Builder, format_of
from .program import Program, layer_lists
from .recording import Recording, record, tensors_in

_CONTEXT: Final = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "block_size")
_LONG: Final = 1 << 15  # tokens of the longest pass of a trace, where the module does not say how many it is made for


def load_traced(name: str) -> Model:
    """The model that "package.module:callable" names: a callable without arguments that returns a module.

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
    try:
        with torch.device("meta"):
            module = found()
            module = module.to("meta") if isinstance(module, torch.nn.Module) else module  # numbers drawn by hand
    except Exception as error:  # noqa: BLE001  # it is the user's code
        raise InputError(f"{name}: calling {attribute}() without arguments raised {_told(error)}") from None
    return trace(module, name=attribute, vocab=None)


def trace(module: Any, *, name: str, vocab: int | None = None) -> Model:
    """The model that `module` computes: a torch.nn.Module on the meta device, called as transformers calls its causal
    language models, with input_ids, past_key_values and use_cache.

    vocab  how many logits it must have; None takes as many as there are

    What the OPs of attention products count are the pairs that a causal mask leaves, though a trace has whole score
    matrices. What depends on shapes alone (masks, angles, indices) costs nothing. Raises InputError, naming the call,
    where one needs data, or does not fit.
    """
    torch = _torch(name)
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"{name}: must be a torch.nn.Module; got {type(module).__name__}")
    elsewhere = next(((n, p.device) for n, p in module.named_parameters() if p.device.type != "meta"), None)
    if elsewhere:
        raise InputError(f"{name}: must be on the meta device; {elsewhere[0]} is on {elsewhere[1]}")
    was_training = module.training
    module.eval()
    try:
        return _traced(module, name, vocab)
    finally:
        module.train(was_training)


def _traced(module: Any, name: str, vocab: int | None) -> Model:
    recordings = [_record(module, name, shape) for shape in SHAPES]
    program = Program(name, recordings)
    if program.logits < 0 or program.logits not in program.writer:
        raise InputError(f"{name}: forward must return logits, as .logits or first; got none that depend on its input")
    width = program.values[program.logits].shape[-1]
    if vocab is not None and width != vocab:
        raise InputError(f"{name}: must have {vocab} logits, as vocab says; got {width}")
    context = _context(module)
    prompt = Shape(2, min(6, context or 6), 0)
    _compare(program, _record(module, name, prompt), prompt)
    notes = _find_windows(module, program, context)
    builder = Builder(program)
    graph = builder.graph(program.segments(layer_lists(module))).check()
    unread = sorted({n for n, _ in module.named_parameters()} - builder.held)
    if unread:
        notes += (f"parameters that no pass reads, which are not counted: {', '.join(unread)}",)
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


def _record(module: Any, name: str, shape: Shape) -> Recording:
    """A pass of `shape`: the prompt that fills the cache, then the recorded one."""
    torch = import_module("torch")

    def ids(length: int) -> Any:
        return torch.zeros(shape.batch, length, dtype=torch.long, device="meta")

    if not shape.past:
        return record(module, lambda: module(input_ids=ids(shape.q_len), use_cache=True), name=name, cached=[])[0]
    before = ids(shape.past)
    _, out = record(module, lambda: module(input_ids=before, use_cache=True), name=name, cached=[])
    past = getattr(out, "past_key_values", None)
    past = out[1] if past is None and isinstance(out, tuple) and len(out) > 1 else past
    cached = [t for t in tensors_in(past) if t.numel()]
    if not cached:
        raise InputError(
            f"{name}: forward must return a cache of keys and values, as .past_key_values or second; got none "
            "(recurrent states are not traced; describe the model in a YAML file)"
        )
    new = ids(shape.q_len)
    return record(
        module, lambda: module(input_ids=new, past_key_values=past, use_cache=True), name=name, cached=cached
    )[0]


def _find_windows(module: Any, program: Program, context: int) -> tuple[str, ...]:
    """Looks for windows in a pass at the end of the longest context; a note where that does not run.

    A pass between the longest window and there, of several sequences, has to confirm them.
    """
    shape = Shape(1, 1, (context or _LONG) - 1)
    try:
        recording = _record(module, program.name, shape)
    except InputError as error:
        if context:
            raise
        return (f"not checked for {shape}: {error}",)
    _compare(program, recording, shape, find=True)
    if program.windows:
        between = Shape(2, 1, (shape.past + max(program.windows.values())) // 2)
        _compare(program, _record(module, program.name, between), between)
    return ()


def _compare(program: Program, recording: Recording, shape: Shape, *, find: bool = False) -> None:
    """Compares the products of one more pass, which had no part in the fit, with what the fit says.

    Another path for a prompt or a single token is found here. `find` takes fewer keys in attention for a window.
    """
    counted = [(c, i) for i, c in enumerate(program.calls) if c.matmul]
    if [(c.path, c.name) for c, _ in counted] != [product[:2] for product in recording.products]:
        raise InputError(
            f"{program.name}: makes other products for {shape} than for {SHAPES[0]}; a trace needs the same"
        )
    for (call, index), (_, _, ops) in zip(counted, recording.products, strict=True):
        said = program.said(index, shape)
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
