"""Counts as sums of coefficients times features of the workload: what makes a sweep one call and a formula readable.

An operator's OPs and bytes do not depend on the workload; the workload only says what the features (tokens, attended
pairs, cached tokens, ...) amount to. So an operator states a `Form` once; phases, batches and lengths evaluate it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Num: TypeAlias = float | npt.NDArray[Any]  # a number, or an array of them: every formula takes both


class Stream(NamedTuple):
    """The part of a pass that some blocks see: `name` is a method of Workload, `arguments` are what it takes."""

    name: str = ""
    arguments: tuple[float, ...] = ()

    def __str__(self) -> str:
        return _call(self.name, self.arguments)

    def of(self, workload: object) -> object:
        """The workload of that part."""
        if not self.name:
            return workload
        method: Callable[..., object] = getattr(workload, self.name)
        return method(*self.arguments)


WHOLE: Final = Stream()  # all of the pass
SOURCE: Final = Stream("source")  # what an encoder reads
TARGET: Final = Stream("target")  # what the decoder beside it writes


def images(patches: int, tiles: int = 1) -> Stream:
    """What a tower for pictures reads: `patches` of each, or of each of the `tiles` that one is cut into."""
    return Stream("images", (patches,) if tiles == 1 else (patches, tiles))


def seeing(tokens: int) -> Stream:
    """What sequences with pictures do, which attend to `tokens` of each besides their own."""
    return Stream("seeing", (tokens,))


def texts(tokens: int) -> Stream:
    """What is done to all but the `tokens` of each picture."""
    return Stream("texts", (tokens,))


def sampled(share: float) -> Stream:
    """What the part `share` of the tokens goes on to."""
    return Stream("sampled", (share,))


def together(share: float) -> Stream:
    """What the part `share` of the passes goes on to with all of its tokens."""
    return Stream("together", (share,))


SINGLE: Final = Stream("single")  # each sequence as if it were one token


def evicted(budget: float) -> Stream:
    """The pass with no more than `budget` tokens of each sequence left of those before it."""
    return Stream("evicted", (budget,))


def thinned(share: float) -> Stream:
    """What the part `share` of the tokens does, which sees none but its like."""
    return Stream("thinned", (share,))


def replicas(ranks: float) -> Stream:
    """What `ranks` devices with as much to do as this one have together."""
    return Stream("replicas", (ranks,))


class Feature(NamedTuple):
    """An amount that a workload has: `name` is a method of Workload, `arguments` are what it takes.

    each  arguments for each of several devices, where they differ; `arguments` are those of the first
    """

    name: str
    arguments: tuple[float, ...] = ()
    stream: Stream = WHOLE
    each: tuple[tuple[float, ...], ...] = ()

    def __str__(self) -> str:
        return f"{self.stream} {_call(self.name, self.arguments)}".lstrip()

    def of(self, workload: object) -> Num:
        method: Callable[..., Num] = getattr(self.stream.of(workload), self.name)
        if self.each:
            return method(*(np.array(column)[:, None] for column in zip(*self.each, strict=True)))
        return method(*self.arguments)


def _call(name: str, arguments: tuple[float, ...]) -> str:
    texts = [f"{a:g}" for a in arguments if a < np.inf]  # a window that is none goes without saying
    return f"{name}({', '.join(texts)})" if texts else name


@dataclass(frozen=True)
class Form:
    """sum of coefficient x feature. Adds to forms, multiplies by numbers, in sorted order and without zeros."""

    terms: tuple[tuple[Feature, float], ...] = ()

    @classmethod
    def of(cls, terms: Mapping[Feature, float]) -> Form:
        return cls(tuple(sorted((feature, c) for feature, c in terms.items() if _counts(c))))

    def __add__(self, other: Form) -> Form:
        terms = dict(self.terms)
        for feature, c in other.terms:
            terms[feature] = terms.get(feature, 0) + c
        return Form.of(terms)

    def __mul__(self, factor: float) -> Form:
        return Form(tuple([(feature, product) for feature, c in self.terms if (product := c * factor)]))

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> Form:
        return Form(tuple([(feature, part) for feature, c in self.terms if (part := c / divisor)]))

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __str__(self) -> str:
        """Such as "33554432 tokens + 8 pairs(4096)"."""
        return " + ".join(f"{c:.12g} {feature}" for feature, c in self.terms) or "0"

    def on(self, stream: Stream) -> Form:
        """The same amounts of a part of the pass; those that are of a part already stay."""
        if stream == WHOLE:
            return self
        return total(Form(((f._replace(stream=stream) if f.stream == WHOLE else f, c),)) for f, c in self.terms)

    def features(self) -> frozenset[Feature]:
        return frozenset(feature for feature, _ in self.terms)

    def __call__(self, values: Mapping[Feature, Num]) -> Num:
        """The amount, from the `values` of its features. The order of summation is fixed, so an entry of an array
        equals the number that the same workload gives alone, to the last bit.
        """
        total: Num = 0.0
        for feature, c in self.terms:
            total = total + c * values[feature]
        return total


def _counts(coefficient: Num) -> bool:
    """Whether it is not 0, on any of several devices."""
    return bool(coefficient.any() if isinstance(coefficient, np.ndarray) else coefficient)


def total(forms: Iterable[Form]) -> Form:
    """The sum of any number of forms."""
    terms: dict[Feature, float] = {}
    for form in forms:
        for feature, c in form.terms:
            terms[feature] = terms.get(feature, 0) + c
    return Form.of(terms)


def evaluate(form: Form, workload: object) -> Num:
    """What `form` amounts to in `workload`."""
    return form({feature: feature.of(workload) for feature in form.features()})


def _one(name: str, *arguments: float) -> Form:
    return Form(((Feature(name, arguments), 1.0),))


ONE = _one("one")
SEQUENCES = _one("sequences")
TOKENS = _one("tokens")
LOGITS = _one("logits")
WANTED = _one("wanted")


def pairs(window: float = np.inf) -> Form:
    """(query, key) pairs that a causal mask of `window` keys leaves."""
    return _one("pairs", window)


def cells(window: float = np.inf) -> Form:
    """(query, key) cells of whole score matrices, masked ones included."""
    return _one("cells", window)


def kv_tokens(window: float = np.inf) -> Form:
    """Cached positions that a pass attends to, its own included."""
    return _one("kv_tokens", window)


def kv_streams(tile: float, resident: float, window: float = np.inf) -> Form:
    """Cached positions read when queries are taken `tile` tokens at a time and each tile reads the keys it needs;
    once where there are no more than `resident` of them, which can stay while the queries pass.
    """
    return _one("kv_streams", tile, resident, window)


STEADY: Final = frozenset(("one", "sequences", "tokens", "logits", "wanted", "table_rows", "distinct_experts"))
"""Features that are the same in every decode step of a batch, however long its context."""

PERIODIC: Final = ("chunked_pairs", "chunked_kv")  # what starts anew at every multiple of its argument


def chunked_pairs(chunk: int) -> Form:
    """(query, key) pairs left by a causal mask that hides what is before the query's own chunk of positions."""
    return _one("chunked_pairs", chunk)


def chunked_kv(chunk: int) -> Form:
    """Cached positions that such a mask lets a pass attend to."""
    return _one("chunked_kv", chunk)


def chosen_kv(chosen: int) -> Form:
    """Cached positions read where every query attends to `chosen` of those before it, or to all if there are fewer."""
    return _one("chosen_kv", chosen)


def all_pairs() -> Form:
    """(token, token) pairs of whole sequences, in which each sees those before and after it."""
    return _one("cells", np.inf)


def touched_kv(density: float) -> Form:
    """Cached positions read where each query of a sequence reads the part `density` of them, no two the same."""
    return _one("touched_kv", density)


def near_pairs(reach: int) -> Form:
    """(token, token) pairs no further apart than `reach`, in which each sees those before and after it."""
    return _one("near_pairs", reach)


def cross_pairs() -> Form:
    """(new token of a decoder, token of its encoder) pairs."""
    return _one("cross_pairs")


def source_kv() -> Form:
    """Tokens of the encoder, which cross-attention attends to where there is a token to decode."""
    return _one("source_kv")


def source_tokens() -> Form:
    """Tokens of the encoder whose keys and values stay."""
    return _one("source_tokens")


def chunk_pairs(chunk: int) -> Form:
    """(query, key) pairs within chunks of that many new tokens."""
    return _one("chunk_pairs", chunk)


def distinct_experts(experts: int, chosen: int, skew: float = 0) -> Form:
    """Experts that are reached when each token chooses some of them, on average: all alike likely, or with popularities
    that fall with their rank to the power of `skew`.
    """
    return _one("distinct_experts", experts, chosen, *((skew,) if skew else ()))


def any_of(share: float) -> Form:
    """The chance that at least one token needs what each needs with the probability `share`."""
    return _one("distinct_experts", 1, share)


def table_rows(rows: int) -> Form:
    """Rows of a table of `rows` read to look up one for every token."""
    return _one("table_rows", rows)


def fft() -> Form:
    """N log2 n of Fourier transforms over the new tokens of each sequence, of n points, two for each token."""
    return _one("fft")
