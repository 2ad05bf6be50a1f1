"""Runs a torch module on the meta device and records its aten calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from math import prod
from typing import Any, Final

from ..errors import InputError
from .numbers import LazyValue, ShapeValues, memory_of
from .recording import PLACES, Call, Recording, Use, Value

# Calls that only change the layout: fused kernels read the original.
_COPYING_CALLS: Final = frozenset({"clone", "contiguous", "_reshape_copy", "lift_fresh"})
_MOVING_CALLS: Final = frozenset(
    {"cat", "stack", "_to_copy", "copy_", "index", "index_select", "gather", "constant_pad_nd", "roll"}
    | {"index_copy_", "index_put_"}
)
# OPs per element of calls with more than one, as in our operators.
_OPS_PER_ELEMENT: Final = {
    "native_layer_norm": 7, "_fused_rms_norm": 4, "_softmax": 5, "_safe_softmax": 5, "silu": 4, "sigmoid": 4, "gelu": 5,
}  # fmt: skip
_ALLOCATING_CALLS: Final = ("empty", "zeros", "ones", "full", "new_", "rand", "arange")  # prefixes of allocation calls
_ONES_CALLS: Final = ("ones", "ones_like", "new_ones")
_COPYING_OR_CASTING: Final = _COPYING_CALLS | {"_to_copy"}  # calls whose results have the values of their input
_DATA_DEPENDENT_CALLS: Final = frozenset(
    {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique_dim"}
)
_PYTHON_NAMES: Final = {"_local_scalar_dense": ".item(), or an `if` on a tensor,"}  # what Python code calls them
_EXTRA_MATMULS: Final = ("embedding", "_grouped_mm")  # matmul-like calls missing in torch's flop registry


class Recorder:
    """Records dispatched calls as a Recording."""

    def __init__(self, module: Any, cached: Sequence[Any], inputs: Sequence[Any], numbers: ShapeValues) -> None:
        self.numbers = numbers
        self.recording = Recording()
        self.causal = False  # whether the current attention is causal
        self.mask: Any = None  # mask of the current attention
        self.shows: LazyValue | None = None  # band that the mask leaves
        self._modules = dict(module.named_modules(remove_duplicate=False))
        self.now: tuple[str, str] | None = None  # the current call
        self._flops: dict[Any, Callable[..., int]] = import_module("torch.utils.flop_counter").flop_registry
        self._tracker = import_module("torch.utils.module_tracker").ModuleTracker()
        self._paths: dict[frozenset[str], str] = {}  # path of the current module, by the set of running modules
        self._seen: dict[
            int, tuple[Use, bool]
        ] = {}  # by id(): the value and part that it shows; whether its layout changed
        self._showing: dict[int, list[int]] = {}  # ids of tensors that show a value
        self._blank: dict[int, list[Any]] = {}  # by storage: tensors not yet written to
        self._cache: set[int] = set()  # values of the cache and of its new entries
        self._alive: list[Any] = []  # keeps tensors alive, so that ids stay unique
        for name, parameter in module.named_parameters():
            self._enter(parameter, name)
        for tensor in cached:
            self._enter(tensor, "cache")
        self._fed = set(map(id, (*cached, *inputs)))  # ids of tensors that depend on the module's input
        self._ones: set[int] = set()  # ids of tensors of ones, such as default masks
        self._alive += inputs
        for tensor in inputs:
            if _is_floating(tensor):
                self._enter(tensor, "input")

    def run(self, forward: Callable[[], Any]) -> Any:
        """The result of `forward`, with its calls recorded."""
        base = import_module("torch.utils._python_dispatch").TorchDispatchMode
        mode = type(
            "Mode",
            (base,),
            {"__torch_dispatch__": lambda _, f, types, args=(), kwargs=None: self._call(f, args, kwargs or {})},
        )
        with self._tracker, mode():
            return forward()

    def is_ones(self, tensor: Any) -> bool:
        return id(tensor) in self._ones

    def shown(self, tensor: Any) -> int:
        """The value that a tensor shows; -1 if it depends only on shapes."""
        entry = self._seen.get(id(tensor))
        return entry[0].value if entry else -1

    def with_logits(self, out: Any, past: Any) -> Recording:
        """The recording of a pass that returns logits, as .logits or first result, and leaves the cache `past`."""
        self.recording.kept = tuple(map(self.shown, tensors_of(past)))
        logits = getattr(out, "logits", None)
        self.recording.logits = self.shown(next(tensors_in(out), None) if logits is None else logits)
        return self.recording

    def with_results(self, out: Any) -> Recording:
        """The recording of a pass all of whose results count; the last one ends it."""
        values = set(map(self.shown, tensors_in(out))) - {-1}
        results = frozenset(v for v in values if self.recording.values[v].source == "call")
        self.recording.results, self.recording.logits = results, max(results, default=-1)
        return self.recording

    def _enter(self, tensor: Any, source: str) -> int:
        values = self.recording.values
        dtype = str(tensor.dtype).removeprefix("torch.")
        values.append(Value(numel=tensor.numel(), dtype=dtype, source=source, shape=tuple(tensor.shape)))
        self._show(tensor, Use(len(values) - 1, tensor.numel(), 0, tensor.numel()), anew=False)
        return len(values) - 1

    def _show(self, tensor: Any, use: Use, *, anew: bool) -> None:
        self._seen[id(tensor)] = (use, anew)
        self._showing.setdefault(use.value, []).append(id(tensor))
        self._alive.append(tensor)

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        path = self._path()
        schema, packet = func._schema, func._overloadpacket  # noqa: SLF001  # public in all but name
        name = schema.name.partition("::")[2]
        self.now = (path, name)
        if name == "_local_scalar_dense" and self.numbers.of(args[0]) is not None:
            return self.numbers.of(args[0]).item()
        out = func(*args, **kwargs)
        self.now = None
        ins, outs = self.numbers.tensors((args, kwargs)), self.numbers.tensors(out)
        self.numbers.follow(func, args, kwargs, outs, ins)
        fed = not name.startswith(_ALLOCATING_CALLS) and any(id(x) in self._fed for x in ins)
        # the schema of _unsafe_view does not mark it as a view
        views = name == "_unsafe_view" or (not schema.is_mutable and any(r.alias_info for r in schema.returns))
        self._mark(
            ins,
            outs,
            fed=fed,
            ones=name in _ONES_CALLS or ((views or name in _COPYING_OR_CASTING) and any(map(self.is_ones, ins))),
        )
        if name.startswith(_ALLOCATING_CALLS) or (views and ins and memory_of(ins[0]) in self._blank):
            self._leave_blank(outs)
        copies = name in _COPYING_CALLS or (name == "_to_copy" and self._is_stored(ins))
        if views or (copies and not schema.is_mutable):
            self._look(ins[:1], outs, copied=copies)
            return out
        tracked_inputs = [x for x in ins if id(x) in self._seen]
        if tracked_inputs and not name.startswith(_ALLOCATING_CALLS) and any(map(_is_floating, outs)):
            matmul = packet in self._flops or name in _EXTRA_MATMULS
            largest = (
                0
                if name in _MOVING_CALLS
                else _OPS_PER_ELEMENT.get(name, 1) * max(x.numel() for x in (*tracked_inputs, *outs))
            )
            ops = self._ops(packet, name, args, kwargs, out) if matmul else largest
            if matmul and self.mask is not None:  # the first product computes the scores
                self.shows, self.mask = self.numbers.seen(self.mask, outs[0]), None
            uses = tuple(map(self._use, tracked_inputs))
            new_values = tuple(self._made(x, mutated=schema.is_mutable) for x in outs if _is_floating(x))
            self._grown(name, uses, new_values)
            self.recording.deciding |= {*new_values} if not all(map(_is_floating, outs)) else set()
            self.recording.calls.append(
                Call(
                    name=name, path=path, uses=uses, made=new_values, ops=ops, matmul=matmul, fed=fed,
                    causal=matmul and (self.causal or self._is_causal(path)),
                    shows=self.shows if matmul else self.numbers.shown(name, args, kwargs, outs[0]),
                )
            )  # fmt: skip
        elif tracked_inputs and name.endswith("mm"):
            raise InputError(
                f"{path}: {name} must be of floating-point numbers, which a trace follows; it is of whole numbers"
            )
        else:
            self.recording.deciding |= set(map(self.shown, tracked_inputs))
        return out

    def _mark(self, ins: list[Any], outs: list[Any], *, fed: bool, ones: bool) -> None:
        """Records the dependencies of a call's results, and whether they are all ones."""
        self._fed |= set(map(id, outs)) if fed else set()
        self._ones |= set(map(id, outs)) if ones else set()
        self._alive += (*ins, *(outs if fed or ones else ()))

    def _leave_blank(self, outs: list[Any]) -> None:
        """Records tensors of uninitialized memory."""
        for out in outs:
            self._blank.setdefault(memory_of(out), []).append(out)

    def _path(self) -> str:
        """Path of the current module: the deepest one, because shared modules have another path elsewhere."""
        running = frozenset(self._tracker.parents)
        if running not in self._paths:
            deepest = max(running, key=lambda path: (sum(path.startswith(f"{one}.") for one in running), len(path)))
            self._paths[running] = str(deepest).partition(".")[2]
        return self._paths[running]

    def _is_causal(self, path: str) -> bool:
        """Whether the module at `path` has is_causal."""
        return getattr(self._modules.get(path), "is_causal", False) is True

    def _grown(self, name: str, uses: tuple[Use, ...], new_values: tuple[int, ...]) -> None:
        if name in PLACES | {"cat"} and any(self.recording.values[use.value].source == "cache" for use in uses):
            self._cache |= set(new_values)

    def _is_stored(self, ins: list[Any]) -> bool:
        """Whether a conversion is of the cache or a parameter, and thus fused into its reader."""
        value = self.shown(ins[0]) if ins else -1
        return value in self._cache or (value >= 0 and self.recording.values[value].source != "call")

    def _use(self, tensor: Any) -> Use:
        use = self._seen[id(tensor)][0]
        return Use(use.value, use.elements, use.low, use.high, tensor.shape[-1] if tensor.dim() else 1)

    def _ops(self, packet: Any, name: str, args: Any, kwargs: Any, out: Any) -> int:
        if name == "embedding":
            return 0
        if name == "_grouped_mm":  # each row with the matrix of its expert
            return int(2 * args[0].numel() * args[1].shape[-1])
        return int(self._flops[packet](*args, **kwargs, out_val=out))

    def _made(self, tensor: Any, *, mutated: bool) -> int:
        old = self.shown(tensor)
        if mutated and old < 0:
            return self._filled(tensor)
        if not mutated:
            return self._enter(tensor, "call")
        old_value = self.recording.values[old]
        self.recording.values.append(Value(numel=old_value.numel, dtype=old_value.dtype, shape=old_value.shape))
        new = len(self.recording.values) - 1
        self._showing[new] = [key for key in self._showing.pop(old, []) if self._seen[key][0].value == old]
        for key in self._showing[new]:
            use, anew = self._seen[key]
            self._seen[key] = (Use(new, use.elements, use.low, use.high), anew)
        return new

    def _filled(self, tensor: Any) -> int:
        """The value that all tensors of an uninitialized storage show after the first write."""
        views = self._blank.pop(memory_of(tensor), [tensor])
        largest = max(views, key=lambda one: int(one.numel()))
        new = self._enter(largest, "call")
        for one in views:
            self._look([largest], [one], copied=False)
        self._fed |= set(map(id, views)) if id(tensor) in self._fed else set()
        return new

    def _look(self, ins: list[Any], outs: list[Any], *, copied: bool) -> None:
        """Records views of known values: how much they show, and where."""
        entry = self._seen.get(id(ins[0])) if ins else None
        if entry is None:
            return
        use, anew = entry
        for out in outs:
            dims = [(n, s) for n, s in zip(out.shape, out.stride(), strict=True) if s]
            low, high = out.storage_offset(), out.storage_offset() + 1 + sum((n - 1) * s for n, s in dims)
            if anew or copied:
                low, high = use.low, use.high
            elements = min(use.elements, prod(n for n, _ in dims))
            self._show(out, Use(use.value, elements, low, high), anew=anew or copied)


def _is_floating(tensor: Any) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())


def plain_attention(recorder: Recorder) -> Any:
    """A mode that runs scaled_dot_product_attention as its three steps, in one format, with learned masks only."""
    torch = import_module("torch")
    base = import_module("torch.overrides").TorchFunctionMode
    plain, multi_head = (
        getattr(torch.nn.functional, name) for name in ("scaled_dot_product_attention", "multi_head_attention_forward")
    )

    def attend(query: Any, key: Any, value: Any, bias: Any = None, *_: Any, **kwargs: Any) -> Any:
        bias = kwargs.get("attn_mask", bias)
        shared = query.shape[-3] // key.shape[-3] if query.dim() > 3 else 1
        if shared > 1:
            key, value = (x.unsqueeze(2).expand(-1, -1, shared, -1, -1).flatten(1, 2) for x in (key, value))
        recorder.mask = bias
        scores = torch.matmul(query, key.transpose(-1, -2))
        scores = scores + bias if recorder.shown(bias) >= 0 else scores
        return torch.matmul(torch.softmax(scores, -1), value)

    def dispatch(_: Any, func: Any, __: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor:
            tensor = func(*args, **kwargs)
            recorder.numbers.keep(tensor, func(*args, **{**kwargs, "device": "cpu"}))
            return tensor
        if func is torch.Tensor.__contains__ and args[0].is_meta:
            return False  # the question is whether ids are padding
        if func is torch.Tensor.all and recorder.is_ones(args[0]):
            return torch.ones((), dtype=torch.bool, device="cpu")  # a mask that hides nothing
        if func not in (plain, multi_head):
            return func(*args, **kwargs)
        try:
            recorder.causal = bool(kwargs.get("is_causal") or (func is plain and args[5:] and args[5]))
            return (attend if func is plain else func)(*args, **kwargs)
        finally:
            recorder.causal, recorder.mask, recorder.shows = False, None, None

    return type("Plain", (base,), {"__torch_function__": dispatch})()


def tensors_in(container: Any, depth: int = 6) -> Iterator[Any]:
    """Tensors in an object, such as a cache of any class."""
    if isinstance(container, import_module("torch").Tensor):
        yield container
        return
    parts = (
        container.values() if isinstance(container, dict) else container if isinstance(container, list | tuple) else ()
    )
    if not depth or isinstance(container, type):
        return
    for part in (*parts, *(vars(container).values() if hasattr(container, "__dict__") else ())):
        yield from tensors_in(part, depth - 1)


def tensors_of(past: Any) -> list[Any]:
    """Tensors in a cache."""
    return [t for t in tensors_in(past) if t.numel()]


def record(
    module: Any,
    forward: Callable[[], Any],
    *,
    name: str,
    called: str,
    hint: str = "",
    cached: Sequence[Any] = (),
    given: Sequence[Any] = (),
    numbers: ShapeValues | None = None,
) -> tuple[Recorder, Any]:
    """The recorder of one forward pass, and its result.

    called   how forward is called, in words
    hint     what to do if it cannot be called so
    cached   tensors of the cache
    given    arguments
    numbers  known values of buffers and the cache

    Raises InputError, with the call, if a call needs data.
    """
    torch = import_module("torch")
    recorder = Recorder(module, cached, given, ShapeValues(numbers))
    try:
        with torch.no_grad(), torch.device("meta"), plain_attention(recorder):
            out = recorder.run(forward)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    except Exception as error:  # noqa: BLE001  # whatever the module's own code raises
        raise InputError(_failure(name, called, hint, recorder.now, error)) from None
    return recorder, out


def _failure(name: str, called: str, hint: str, now: tuple[str, str] | None, error: Exception) -> str:
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    if now is None:
        return f"{name}: forward must run as {called}; it raised {text}{hint}"
    path, call = now
    where = f"{path or 'the module itself'}: {_PYTHON_NAMES.get(call, call)}"
    if call in _DATA_DEPENDENT_CALLS or any(
        sign in text for sign in ("nonzero", "data-dependent", "Cannot copy out of meta tensor")
    ):
        return (
            f"{name}: {where} needs the values of a tensor, and a trace has only shapes; "
            "make what it decides a constant, or describe the model in a YAML file"
        )
    return f"{name}: {where} fails on meta tensors ({text}){hint}"
