"""Forms: counts as sums of coefficients times features of the workload (tokens, attended pairs, cached tokens, ...).

An operator states its OPs and bytes as a `Form` once; phases, batches and lengths evaluate it, so a sweep is one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from .records import frozen

Num: TypeAlias = float | npt.NDArray[Any]  # every formula takes numbers and arrays


class Stream(NamedTuple):
    """The part of a pass that a block processes: `name` is a method of Workload, with `arguments`."""

    name: str = ""
    arguments: tuple[float, ...] = ()

    def __str__(self) -> str:
        return _call(self.name, self.arguments)

    def of(self, workload: object) -> object:
        """The workload of this part."""
        if not self.name:
            return workload
        method: Callable[..., object] = getattr(workload, self.name)
        return method(*self.arguments)


WHOLE_PASS: Final = Stream()  # the whole pass
SOURCE: Final = Stream("source")  # input of an encoder
TARGET: Final = Stream("target")  # output of its decoder
BATCH_SHARE: Final = "batch_share"  # name of the streams of batch_share()


def images(patches: int, tiles: int = 1) -> Stream:
    """Input of an image tower: `patches` per image, or per each of its `tiles`."""
    return Stream("images", (patches,) if tiles == 1 else (patches, tiles))


def with_images(tokens: int) -> Stream:
    """Sequences with images, whose cross-attention reads `tokens` per image."""
    return Stream("with_images", (tokens,))


def denoising(tokens: int) -> Stream:
    """Passes of a decoder that refines `tokens` tokens together, one pass per token generated."""
    return Stream("denoising", (tokens,))


def text_tokens(tokens: int) -> Stream:
    """All tokens except the `tokens` of each image."""
    return Stream("text_tokens", (tokens,))


def sampled(share: float) -> Stream:
    """The fraction `share` of the tokens, chosen independently."""
    return Stream("sampled", (share,))


def sampled_sequences(share: float) -> Stream:
    """All tokens of the fraction `share` of the sequences, chosen independently."""
    return Stream("sampled_sequences", (share,))


def pass_fraction(share: float) -> Stream:
    """All tokens, in the fraction `share` of the passes."""
    return Stream("pass_fraction", (share,))


SINGLE: Final = Stream("single")  # each sequence as a single token
LOGIT_TOKENS: Final = Stream("logit_tokens")  # new tokens whose logits are needed


def evicted(budget: float) -> Stream:
    """The pass with at most `budget` earlier tokens per sequence in the cache."""
    return Stream("evicted", (budget,))


def thinned(share: float) -> Stream:
    """The fraction `share` of the tokens, which attend only to each other."""
    return Stream("thinned", (share,))


def resized(share: float) -> Stream:
    """The sequences with the fraction `share` of their positions, as at a lower resolution."""
    return Stream("resized", (share,))


def replicas(ranks: float) -> Stream:
    """The passes of `ranks` devices with equal work, together."""
    return Stream("replicas", (ranks,))


def batch_share(ranks: int) -> Stream:
    """The sequences of the rank with most of them, of `ranks` that divide the batch."""
    return Stream(BATCH_SHARE, (ranks,))


class Feature(NamedTuple):
    """An amount of a workload: `name` is a method of Workload, with `arguments`.

    device_arguments  arguments per device if devices differ; `arguments` are those of the first
    """

    name: str
    arguments: tuple[float, ...] = ()
    stream: Stream = WHOLE_PASS
    device_arguments: tuple[tuple[float, ...], ...] = ()

    def __str__(self) -> str:
        return f"{self.stream} {_call(self.name, self.arguments)}".lstrip()

    def of(self, workload: object) -> Num:
        method: Callable[..., Num] = getattr(self.stream.of(workload), self.name)
        if self.device_arguments:
            return method(*(np.array(column)[:, None] for column in zip(*self.device_arguments, strict=True)))
        return method(*self.arguments)


def _call(name: str, arguments: tuple[float, ...]) -> str:
    texts = [f"{a:g}" for a in arguments if a < np.inf]  # infinite windows are not shown
    return f"{name}({', '.join(texts)})" if texts else name


@frozen
class Form:
    """Sum of coefficient x feature, sorted and without zeros. Supports + with forms and * with numbers."""

    terms: tuple[tuple[Feature, float], ...] = ()

    @classmethod
    def of(cls, terms: Mapping[Feature, float]) -> Form:
        return cls(tuple(sorted((feature, c) for feature, c in terms.items() if _is_nonzero(c))))

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
        """The form as text, such as "33554432 tokens + 8 pairs(4096)"."""
        return " + ".join(f"{c:.12g} {feature}" for feature, c in self.terms) or "0"

    def on(self, stream: Stream) -> Form:
        """The form over a part of the pass; terms that are over a part already are unchanged."""
        if stream == WHOLE_PASS:
            return self
        return total(Form(((f._replace(stream=stream) if f.stream == WHOLE_PASS else f, c),)) for f, c in self.terms)

    def features(self) -> frozenset[Feature]:
        return frozenset(feature for feature, _ in self.terms)

    def __call__(self, values: Mapping[Feature, Num]) -> Num:
        """The amount for `values` of its features.

        The order of summation is fixed, so an entry of an array equals the number of the same workload to the last bit.
        """
        total: Num = 0.0
        for feature, c in self.terms:
            total = total + c * values[feature]
        return total


def _is_nonzero(coefficient: Num) -> bool:
    """Whether the coefficient is not 0, on any of several devices."""
    return bool(coefficient.any() if isinstance(coefficient, np.ndarray) else coefficient)


def total(forms: Iterable[Form]) -> Form:
    """The sum of forms."""
    terms: dict[Feature, float] = {}
    for form in forms:
        for feature, c in form.terms:
            terms[feature] = terms.get(feature, 0) + c
    return Form.of(terms)


def evaluate(form: Form, workload: object) -> Num:
    """The amount of `form` in `workload`."""
    return form({feature: feature.of(workload) for feature in form.features()})


def _feature(name: str, *arguments: float) -> Form:
    return Form(((Feature(name, arguments), 1.0),))


ONE = _feature("one")
SEQUENCES = _feature("sequences")
TOKENS = _feature("tokens")
LOGITS = _feature("logits")
WITH_LOGITS = _feature("with_logits")


def pairs(window: float = np.inf) -> Form:
    """(query, key) pairs under a causal mask with a window of `window` keys."""
    return _feature("pairs", window)


def cells(window: float = np.inf) -> Form:
    """(query, key) cells of whole score matrices, masked ones included."""
    return _feature("cells", window)


def kv_tokens(window: float = np.inf) -> Form:
    """Cached positions that a pass attends to, new ones included."""
    return _feature("kv_tokens", window)


def kv_streams(tile: float, resident: float, window: float = np.inf) -> Form:
    """Cached positions read if each tile of `tile` queries reads its keys; once, if at most `resident` keys stay."""
    return _feature("kv_streams", tile, resident, window)


CONTEXT_INDEPENDENT: Final = frozenset(
    ("one", "sequences", "tokens", "logits", "with_logits", "table_rows", "distinct_experts", "busiest_experts")
)
"""Features that are the same in every decode step of a batch, however long its context."""

ADDITIVE: Final = frozenset((
    "sequences", "tokens", "logits", "pairs", "cells", "kv_tokens", "kv_streams", "kv_pages", "chunked_pairs",
    "chunked_kv", "chosen_kv", "touched_kv", "near_pairs", "chunk_pairs", "cross_pairs", "source_kv", "source_tokens",
    "fft", "history_fft",
))  # fmt: skip
"""Features whose value for a pass is the sum of those for each of its groups of sequences."""

PERIODIC: Final = ("chunked_pairs", "chunked_kv")  # features that are periodic in their argument


def chunked_pairs(chunk: int) -> Form:
    """(query, key) pairs under a causal mask within the query's chunk of positions."""
    return _feature("chunked_pairs", chunk)


def chunked_kv(chunk: int) -> Form:
    """Cached positions that a pass attends to under a mask within chunks of positions."""
    return _feature("chunked_kv", chunk)


def chosen_kv(chosen: int) -> Form:
    """Cached positions read if each query attends to at most `chosen` earlier ones."""
    return _feature("chosen_kv", chosen)


def all_pairs() -> Form:
    """(query, key) pairs of whole sequences, without a mask."""
    return _feature("cells", np.inf)


def touched_kv(density: float) -> Form:
    """Cached positions read if queries each read the fraction `density` of them, without overlap."""
    return _feature("touched_kv", density)


def near_pairs(reach: int) -> Form:
    """(query, key) pairs at most `reach` positions apart, before or after."""
    return _feature("near_pairs", reach)


def cross_pairs() -> Form:
    """(new token of the decoder, token of the encoder) pairs."""
    return _feature("cross_pairs")


def source_kv() -> Form:
    """Tokens of the encoder that cross-attention reads, if there is a token to decode."""
    return _feature("source_kv")


def source_tokens() -> Form:
    """Tokens of the encoder whose keys and values are cached."""
    return _feature("source_tokens")


def chunk_pairs(chunk: int) -> Form:
    """(query, key) pairs within chunks of `chunk` new tokens."""
    return _feature("chunk_pairs", chunk)


def distinct_experts(experts: int, chosen: int, skew: float = 0) -> Form:
    """Mean number of distinct experts that a pass uses; popularity falls with rank as rank^-skew."""
    return _feature("distinct_experts", experts, chosen, *((skew,) if skew else ()))


def busiest_experts(experts: int, chosen: int, ranks: int) -> Form:
    """Mean number of distinct experts that a pass uses on the busiest of `ranks`; all experts are equally popular."""
    return _feature("busiest_experts", experts, chosen, ranks)


def any_of(share: float) -> Form:
    """Probability that at least one token uses a weight that each uses with probability `share`."""
    return _feature("distinct_experts", 1, share)


def table_rows(rows: int) -> Form:
    """Distinct rows of a table of `rows` rows read for one look-up per token, at most."""
    return _feature("table_rows", rows)


def history_fft() -> Form:
    """Sum of n log2 n over sequences, with n points of a Fourier transform, two per token of the whole context."""
    return _feature("history_fft")


def longest_context() -> Form:
    """Tokens of the longest sequence."""
    return _feature("longest_context")


def fft() -> Form:
    """Sum of n log2 n over sequences, with n points of a Fourier transform, two per new token."""
    return _feature("fft")
