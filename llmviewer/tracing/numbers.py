"""Values of meta tensors that depend only on shapes, such as masks, computed lazily."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final

_MASKS: Final = frozenset({"masked_fill", "masked_fill_", "where", "add", "add_"})  # calls that may mask scores
_HIDDEN: Final = -1e4  # a smaller number, added to a score, masks it
_KNOWN: Final = ("arange", "ones", "zeros", "full", "new_ones", "new_zeros", "new_full", "scalar_tensor", "eye", "lift")
_KEPT: Final = 1 << 20  # most elements of a computed tensor


class Later:
    """A lazily computed value.

    make  function of the values of `needs`
    """

    def __init__(self, make: Callable[..., Any], needs: Sequence[Later] = ()) -> None:
        self._make: Callable[..., Any] | None = make
        self._needs = needs
        self._made: Any = None

    def __call__(self) -> Any:
        ahead = [self]
        while ahead:  # dependencies first, without recursion
            one = ahead[-1]
            waits = [need for need in one._needs if need._make]  # noqa: SLF001  # of its own
            ahead += waits
            if not waits:
                ahead.pop()._work()  # noqa: SLF001  # of its own
        return self._made

    def _work(self) -> None:
        if self._make:
            self._made = self._make(*(need._made for need in self._needs))  # noqa: SLF001  # of its own
            self._make, self._needs = None, ()


class Numbers:
    """Values of tensors that depend only on shapes, such as masks, computed on demand alongside the trace.

    before  values known at the start
    """

    def __init__(self, before: Numbers | None = None) -> None:
        # By id(): the tensor, kept alive, and its values.
        self._known: dict[int, tuple[Any, Later]] = {**before._known} if before else {}  # noqa: SLF001  # of its own
        self._waiting: list[Later] = [*before._waiting] if before else []  # noqa: SLF001  # of its own
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
        known = self._known.get(id(tensor))
        return known[1]() if known else None

    def keep(self, tensor: Any, numbers: Any) -> None:
        self._known[id(tensor)] = (tensor, Later(lambda: numbers))

    def follow(self, func: Any, args: Any, kwargs: Any, outs: Sequence[Any], ins: Sequence[Any]) -> None:
        """Repeats a call with values if those of all its tensors are known."""
        schema = func._schema  # noqa: SLF001  # public in all but name
        name, changes = schema.name.partition("::")[2], schema.is_mutable
        known = all(id(x) in self._known for x in ins) if ins else name.startswith(_KNOWN)
        if not outs or not known or any(x.numel() > _KEPT for x in outs):
            if changes:
                gone = set(map(memory_of, outs))
                self._known = {key: pair for key, pair in self._known.items() if memory_of(pair[0]) not in gone}
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
        made = self._later(make, args, kwargs)
        for place, x in enumerate(outs):
            self._known[id(x)] = (x, Later(partial(_nth, place), (made,)))
        if changes:
            made()

    def shown(self, name: str, args: Any, kwargs: Any, scores: Any) -> Later | None:
        """The band of scores that a masking call leaves, as in left()."""
        if name not in _MASKS or scores.dim() < 2:
            return None
        if not any(id(x) in self._known for x in self.tensors((args, kwargs))):
            return None
        rows, keys = scores.shape[-2:]

        def make(args: Any, kwargs: Any) -> tuple[int, int] | None:
            first, *rest = (_once(x) if isinstance(x, self._tensor) else x for x in (*args, *kwargs.values()))
            mask = None
            if name.startswith("masked_fill"):
                mask = rest[0] if rest[0] is None else rest[0].logical_not()
            elif name == "where" and first is not None and len(rest) > 1:
                mask = first.logical_not() if isinstance(rest[0], self._tensor) else first
            elif name.startswith("add"):
                mask = next((x for x in (first, *rest) if isinstance(x, self._tensor)), None)
            return None if mask is None else self.left(mask, rows, keys)

        return self._later(make, args, kwargs)

    def seen(self, mask: Any, scores: Any) -> Later | None:
        """The band of scores that a mask leaves, as in left()."""
        if id(mask) not in self._known:
            return None
        rows, keys = scores.shape[-2:]
        return self._later(lambda args, _: self.left(args[0], rows, keys), (mask,), {})

    def _later(self, make: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Later:
        """`make` of the arguments with values, None for unknown tensors; gives None if values cannot be computed."""
        flat, spec = self._tree.tree_flatten((args, kwargs))
        needs = {place: self._known[id(x)][1] for place, x in enumerate(flat) if id(x) in self._known}
        still = [None if isinstance(x, self._tensor) else x for x in flat]

        def made(*numbers: Any) -> Any:
            if any(one is None for one in numbers):
                return None
            filled = dict(zip(needs, numbers, strict=True))
            return make(*self._tree.tree_unflatten([filled.get(n, x) for n, x in enumerate(still)], spec))

        later = Later(made, [*needs.values()])
        self._waiting.append(later)
        return later

    def left(self, mask: Any, rows: int, keys: int) -> tuple[int, int] | None:
        """(keys before, keys after) its own that a query sees at most under a mask; -1: all.

        A mask shows keys where it is True, or no large negative number. None if it is no band or hides nothing.
        """
        torch = import_module("torch")
        if mask.shape[-1:] != (keys,) or (mask.dim() > 1 and mask.shape[-2] not in (1, rows)):
            return None
        kept = mask if mask.dtype == torch.bool else mask > _HIDDEN
        kept = kept.expand(*kept.shape[:-2], rows, keys).reshape(-1, rows, keys)
        off = torch.arange(keys)[None] - torch.arange(keys - rows, keys)[:, None]
        seen = off[kept[0]]
        if not seen.numel() or bool(kept.all()):
            return None
        before, after = max(-int(seen.min()), 0), max(int(seen.max()), 0)
        if not bool((kept == (off >= -before) & (off <= after)).all()):
            return None
        return (-1 if before >= keys - 1 else before, -1 if after >= keys - 1 else after)


def _nth(place: int, found: Sequence[Any] | None) -> Any:
    return None if found is None else found[place]


def _once(mask: Any) -> Any:
    """A mask without its dimensions of sequences and heads, if it is the same for all."""
    for place in range(mask.dim() - 2):
        mask = mask.narrow(place, 0, 1) if mask.stride(place) == 0 else mask
    return mask


def memory_of(tensor: Any) -> int:
    """The address of a tensor's storage, which its views share."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  # on the meta device there is no address
