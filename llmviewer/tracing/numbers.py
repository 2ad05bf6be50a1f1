"""Values of meta tensors that depend only on shapes, such as masks, computed lazily."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final

_MASKING_CALLS: Final = frozenset({"masked_fill", "masked_fill_", "where", "add", "add_"})  # calls that may mask scores
_MASKED_BELOW: Final = -1e4  # a smaller number, added to a score, masks it
_CONSTANT_CALLS: Final = (
    "arange",
    "ones",
    "zeros",
    "full",
    "new_ones",
    "new_zeros",
    "new_full",
    "scalar_tensor",
    "eye",
    "lift",
)
_MAX_ELEMENTS: Final = 1 << 20  # most elements of a computed tensor


class LazyValue:
    """A lazily computed value.

    make  function of the values of `needs`
    """

    def __init__(self, make: Callable[..., Any], needs: Sequence[LazyValue] = ()) -> None:
        self._make: Callable[..., Any] | None = make
        self._needs = needs
        self._made: Any = None

    def __call__(self) -> Any:
        stack = [self]
        while stack:  # dependencies first, without recursion
            value = stack[-1]
            pending = [need for need in value._needs if need._make]  # noqa: SLF001  # of its own
            stack += pending
            if not pending:
                stack.pop()._work()  # noqa: SLF001  # of its own
        return self._made

    def _work(self) -> None:
        if self._make:
            self._made = self._make(*(need._made for need in self._needs))  # noqa: SLF001  # of its own
            self._make, self._needs = None, ()


class ShapeValues:
    """Values of tensors that depend only on shapes, such as masks, computed on demand alongside the trace.

    before  values known at the start
    """

    def __init__(self, before: ShapeValues | None = None) -> None:
        # By id(): the tensor, kept alive, and its values.
        self._known: dict[int, tuple[Any, LazyValue]] = {**before._known} if before else {}  # noqa: SLF001  # of its own
        self._waiting: list[LazyValue] = [*before._waiting] if before else []  # noqa: SLF001  # of its own
        self._tree: Any = import_module("torch.utils._pytree")
        self._tensor = import_module("torch").Tensor

    def run(self, make: Callable[[], Any]) -> Any:
        """The result of `make`; the values of buffers that it fills are then known."""

        def follow(_: Any, func: Any, __: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            self.follow(func, args, kwargs or {}, self.tensors(out), self.tensors((args, kwargs)))
            return out

        base = import_module("torch.utils._python_dispatch").TorchDispatchMode
        with type("Made", (base,), {"__torch_dispatch__": follow})():
            return make()

    def tensors(self, tree: Any) -> list[Any]:
        if isinstance(tree, self._tensor):
            return [tree]
        parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
        return [x for part in parts for x in self.tensors(part)]

    def of(self, tensor: Any) -> Any:
        """The tensor with values; None if unknown."""
        entry = self._known.get(id(tensor))
        return entry[1]() if entry else None

    def keep(self, tensor: Any, numbers: Any) -> None:
        self._known[id(tensor)] = (tensor, LazyValue(lambda: numbers))

    def follow(self, func: Any, args: Any, kwargs: Any, outs: Sequence[Any], ins: Sequence[Any]) -> None:
        """Repeats a call with values if those of all its tensors are known."""
        schema = func._schema  # noqa: SLF001  # public in all but name
        name, changes = schema.name.partition("::")[2], schema.is_mutable
        is_computable = all(id(x) in self._known for x in ins) if ins else name.startswith(_CONSTANT_CALLS)
        if not outs or not is_computable or any(x.numel() > _MAX_ELEMENTS for x in outs):
            if changes:
                overwritten = set(map(memory_of, outs))
                self._known = {key: pair for key, pair in self._known.items() if memory_of(pair[0]) not in overwritten}
            return
        if "device" in kwargs:
            kwargs = {**kwargs, "device": import_module("torch").device("cpu")}

        def make(args: Any, kwargs: Any) -> list[Any] | None:
            try:
                return self.tensors(func(*args, **kwargs))
            except RuntimeError:  # no CPU kernel
                return None

        if changes:  # earlier values have read the old contents
            for later in self._waiting:
                later()
            self._waiting.clear()
        results = self._later(make, args, kwargs)
        for place, x in enumerate(outs):
            self._known[id(x)] = (x, LazyValue(partial(_nth, place), (results,)))
        if changes:
            results()

    def shown(self, name: str, args: Any, kwargs: Any, scores: Any) -> LazyValue | None:
        """The band of scores that a masking call leaves, as in left()."""
        if name not in _MASKING_CALLS or scores.dim() < 2:
            return None
        if not any(id(x) in self._known for x in self.tensors((args, kwargs))):
            return None
        rows, keys = scores.shape[-2:]

        def make(args: Any, kwargs: Any) -> tuple[int, int] | None:
            first, *rest = (_without_batch(x) if isinstance(x, self._tensor) else x for x in (*args, *kwargs.values()))
            mask = None
            if name.startswith("masked_fill"):
                mask = rest[0] if rest[0] is None else rest[0].logical_not()
            elif name == "where" and first is not None and len(rest) > 1:
                mask = first.logical_not() if isinstance(rest[0], self._tensor) else first
            elif name.startswith("add"):
                mask = next((x for x in (first, *rest) if isinstance(x, self._tensor)), None)
            return None if mask is None else self.left(mask, rows, keys)

        return self._later(make, args, kwargs)

    def seen(self, mask: Any, scores: Any) -> LazyValue | None:
        """The band of scores that a mask leaves, as in left()."""
        if id(mask) not in self._known:
            return None
        rows, keys = scores.shape[-2:]
        return self._later(lambda args, _: self.left(args[0], rows, keys), (mask,), {})

    def _later(self, make: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> LazyValue:
        """`make` of the arguments with values, None for unknown tensors; gives None if values cannot be computed."""
        flat, spec = self._tree.tree_flatten((args, kwargs))
        needs = {place: self._known[id(x)][1] for place, x in enumerate(flat) if id(x) in self._known}
        constants = [None if isinstance(x, self._tensor) else x for x in flat]

        def compute(*numbers: Any) -> Any:
            if any(one is None for one in numbers):
                return None
            filled = dict(zip(needs, numbers, strict=True))
            return make(*self._tree.tree_unflatten([filled.get(n, x) for n, x in enumerate(constants)], spec))

        later = LazyValue(compute, [*needs.values()])
        self._waiting.append(later)
        return later

    def left(self, mask: Any, rows: int, keys: int) -> tuple[int, int] | None:
        """(keys before, keys after) its own that a query attends to at most under a mask; -1: all.

        A mask shows keys where it is True, or no large negative number. None if it is no band or hides nothing.
        """
        torch = import_module("torch")
        if mask.shape[-1:] != (keys,) or (mask.dim() > 1 and mask.shape[-2] not in (1, rows)):
            return None
        visible = mask if mask.dtype == torch.bool else mask > _MASKED_BELOW
        visible = visible.expand(*visible.shape[:-2], rows, keys).reshape(-1, rows, keys)
        distance = torch.arange(keys)[None] - torch.arange(keys - rows, keys)[:, None]
        visible_distances = distance[visible[0]]
        if not visible_distances.numel() or bool(visible.all()):
            return None
        before, after = max(-int(visible_distances.min()), 0), max(int(visible_distances.max()), 0)
        if not bool((visible == (distance >= -before) & (distance <= after)).all()):
            return None
        return (-1 if before >= keys - 1 else before, -1 if after >= keys - 1 else after)


def _nth(place: int, results: Sequence[Any] | None) -> Any:
    return None if results is None else results[place]


def _without_batch(mask: Any) -> Any:
    """A mask without its dimensions of sequences and heads, if it is the same for all."""
    for place in range(mask.dim() - 2):
        mask = mask.narrow(place, 0, 1) if mask.stride(place) == 0 else mask
    return mask


def memory_of(tensor: Any) -> int:
    """The address of a tensor's storage, which its views share."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  # on the meta device there is no address
