"""What tensors on the meta device hold that depends on shapes alone, such as masks: worked out when it is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final

_MASKS: Final = frozenset({"masked_fill", "masked_fill_", "where", "add", "add_"})  # calls that may hide scores
_HIDDEN: Final = -1e4  # what is less, added to a score, hides it
_KNOWN: Final = ("arange", "ones", "zeros", "full", "new_ones", "new_zeros", "new_full", "scalar_tensor", "eye", "lift")
_KEPT: Final = 1 << 20  # numbers of a tensor that are worked out


class Later:
    """What is worked out when somebody asks for it, from others of its kind.

    make  takes what `needs` are
    """

    def __init__(self, make: Callable[..., Any], needs: Sequence[Later] = ()) -> None:
        self._make: Callable[..., Any] | None = make
        self._needs = needs
        self._made: Any = None

    def __call__(self) -> Any:
        ahead = [self]
        while ahead:  # what is needed first, without a call within a call for each
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
    """What tensors hold that depend on shapes alone, such as masks: it is worked out beside the trace, when it is read.

    before  what is known to begin with
    """

    def __init__(self, before: Numbers | None = None) -> None:
        # By id: the tensor, which keeps it, and the same with numbers.
        self._known: dict[int, tuple[Any, Later]] = {**before._known} if before else {}  # noqa: SLF001  # of its own
        self._waiting: list[Later] = [*before._waiting] if before else []  # noqa: SLF001  # of its own
        self._tree: Any = import_module("torch.utils._pytree")
        self._tensor = import_module("torch").Tensor

    def run(self, make: Callable[[], Any]) -> Any:
        """What `make` returns; what it puts into buffers is known then."""

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
        """The same with numbers; None where they are not known."""
        known = self._known.get(id(tensor))
        return known[1]() if known else None

    def keep(self, tensor: Any, numbers: Any) -> None:
        self._known[id(tensor)] = (tensor, Later(lambda: numbers))

    def follow(self, func: Any, args: Any, kwargs: Any, outs: Sequence[Any], ins: Sequence[Any]) -> None:
        """Does with numbers what a call did without them, where all the tensors that it takes are known."""
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
            except RuntimeError:  # what a CPU has no kernel for
                return None

        if changes:  # what came before has read what was there
            for later in self._waiting:
                later()
            self._waiting.clear()
        made = self._later(make, args, kwargs)
        for place, x in enumerate(outs):
            self._known[id(x)] = (x, Later(partial(_nth, place), (made,)))
        if changes:
            made()

    def shown(self, name: str, args: Any, kwargs: Any, scores: Any) -> Later | None:
        """What a call that masks scores leaves of them, as left() says it."""
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
        """What a mask leaves of scores, as left() says it."""
        if id(mask) not in self._known:
            return None
        rows, keys = scores.shape[-2:]
        return self._later(lambda args, _: self.left(args[0], rows, keys), (mask,), {})

    def _later(self, make: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> Later:
        """What `make` does with arguments in which tensors have numbers, or are None where none are known; None where
        those that are known could not be worked out.
        """
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
        """How many keys before and after its own a query sees at most where a mask is True, or no large negative
        number; -1 is all. None where that is no band along the diagonal, or hides nothing.
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
    """A mask that is the same for all sequences and heads, for one of them."""
    for place in range(mask.dim() - 2):
        mask = mask.narrow(place, 0, 1) if mask.stride(place) == 0 else mask
    return mask


def memory_of(tensor: Any) -> int:
    """Which piece of memory a tensor is in; views of it are in the same."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  # on the meta device there is no address
