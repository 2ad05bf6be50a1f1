"""The calls that a module's passes have in common, with counts fitted over shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from ..errors import InputError
from ..forms import ONE, SEQUENCES, TOKENS, Form, cells, total
from ..records import frozen
from .alignment import check_aligned, problem_at
from .caches import Cache, SlotUse, state_calls
from .fitting import UNCACHED, Basis, PassShape, per_cached_token, per_sequence
from .recording import Call, Recording, Use, Value

_NO_CACHE: Final = (ONE + TOKENS + SEQUENCES).features()  # of what does not grow with the cache


@frozen
class TracedLaunch:
    """Indices of the calls that one kernel makes: one matmul-like call, or element-wise calls that are fused."""

    calls: tuple[int, ...]


@frozen
class Chunks:
    """Work of a module's scan per prompt token. [OP]

    products  products within chunks
    others    all else
    steps     the part of `others` that decode steps do too
    """

    products: float
    others: float
    steps: float

    @property
    def more(self) -> float:
        """Work of prompts that is neither products nor done by decode steps. [OP]"""
        return self.others - self.steps


class Program:
    """Aligned recordings of the shapes of `basis`: their calls, without those that nothing reads, and the dataflow.

    states, slots     as in Cache
    cached            values that are the cache after the pass
    slot_calls        calls on all slots of a preallocated cache, with the number of slots
    state_calls       calls on a state
    scan_products     the matmul-like ones of them, which are part of a scan

    Passes that have no part in the fit add:

    windows  the most keys that a matmul-like call sees, where that is not all
    bands    keys before and after its own that a query of a matmul-like call sees; -1 is all
    chunks   what scans do with prompts, by the state that they keep
    """

    def __init__(
        self, name: str, basis: Basis, recordings: Sequence[Recording], preallocated: Iterable[int] = ()
    ) -> None:
        """Preallocated  indices of the tensors of the cache into which passes write their tokens

        Raises InputError where recordings cannot be aligned, or use the cache in a way that cannot be traced.
        """
        check_aligned(name, basis, recordings)
        first = recordings[0]
        cache = Cache.of(name, basis, recordings, frozenset(preallocated))
        appended = {index: cache.appended(name, first, call) for index, call in enumerate(first.calls)}
        read = _live_calls(first, {index for index, values in appended.items() if values}, set(cache.states))
        self.name, self.basis = name, basis
        self.recordings = [replace(r, calls=[r.calls[index] for index in read]) for r in recordings]
        first = self.recordings[0]
        self.calls, self.values, self.writer, self.readers = first.calls, first.values, first.writer, first.readers
        self.logits, self.results = first.logits, first.results
        self.states, self.slots = cache.states, cache.slots
        self.cached = {value for index in read for value in appended[index]}
        slot_use = SlotUse.of(basis, self.recordings, self.slots, self.cached)
        self.slot_calls, self._slot_values = slot_use.calls, slot_use.values
        self.state_calls = state_calls(first, self.states, self.cached)
        self.scan_products = {index for index in self.state_calls if self.calls[index].matmul}
        self.windows: dict[int, int] = {}
        self.bands: dict[int, tuple[int, int]] = {}
        self.chunks: dict[int, Chunks] = {}

    def error(self, call: Call, problem: str) -> InputError:
        return problem_at(self.name, call, problem)

    # Counts

    def form(self, call: Call, quantity: str, count: Callable[[Recording], int]) -> Form:
        """Fits `count` of all passes to features of a workload.

        Raises InputError, which says that `call` has `what`, where no whole multiples of features give it.
        """
        return self.basis.form(self._solve(call, quantity, count))

    def _solve(self, call: Call, quantity: str, count: Callable[[Recording], int]) -> tuple[int, ...]:
        counts = [count(recording) for recording in self.recordings]
        coefficients = self.basis.solve(counts)
        if coefficients is None:
            raise self.error(
                call,
                f"has {quantity} that are no sum of whole multiples of {self.basis.told}: "
                f"{', '.join(map(str, counts[:4]))}, ...",
            )
        return coefficients

    def elements(self, value: int) -> Form:
        """Elements of a whole value."""
        call = self.calls[self.writer[value]]
        form = self._per_token(value, self.form(call, "results", lambda r: r.values[value].numel))
        return per_sequence(form) if value in self.states else form

    def elements_read(self, launch: TracedLaunch, value: int) -> Form:
        """Elements of a value that a launch reads, each once."""
        call = self.calls[launch.calls[0]]
        form = self.form(call, "operands", lambda r: _distinct_elements(_uses(r, launch, value), r.values[value]))
        form = self._per_token(value, form) if form.features() <= _NO_CACHE else form
        return per_sequence(form) if value in self.states or value in self.cached else form

    def elements_of_operand(self, call: int, place: int) -> Form:
        return self.form(self.calls[call], "operands", lambda r: r.calls[call].uses[place].elements)

    def _per_token(self, value: int, form: Form) -> Form:
        """Elements for each slot of a preallocated cache, as those of the tokens in it."""
        slots = self.slots.get(value, 0) or self._slot_values.get(value, 0)
        return per_cached_token(form, slots) if slots else form

    def ops(self, launch: TracedLaunch) -> Form:
        return total(self._ops(launch, slots) for slots in {self.slot_calls.get(index, 0) for index in launch.calls})

    def _ops(self, launch: TracedLaunch, slots: int) -> Form:
        """OPs of those calls of a launch that work on all `slots` of a cache; of those that do not where 0."""
        calls = [index for index in launch.calls if self.slot_calls.get(index, 0) == slots]
        form = self.form(self.calls[calls[-1]], "OPs", lambda r: sum(self._call_ops(r, index) for index in calls))
        return per_cached_token(form, slots) if slots else form

    def _call_ops(self, recording: Recording, index: int) -> int:
        """The OPs of a call; of a filter over the end of a state only those of results that are read."""
        call = recording.calls[index]
        if index not in self.scan_products or call.name != "convolution":
            return call.ops
        result = call.made[0]
        read = max(
            (u.elements for r in self.readers.get(result, ()) for u in recording.calls[r].uses if u.value == result),
            default=0,
        )
        return call.ops * read // recording.values[result].numel

    def ops_for(self, index: int, shape: PassShape) -> int:
        """The OPs that the fit gives a matmul-like call in a pass of `shape`."""
        past = min(shape.past, self.windows.get(index, shape.past + 1) - 1)
        coefficients = self._solve(self.calls[index], "OPs", lambda r: r.calls[index].ops)
        return self.basis.amount(coefficients, PassShape(shape.batch, shape.q_len, past))

    # Dataflow

    def is_product(self, index: int) -> bool:
        """Whether a call is matmul-like and no part of a scan, so that it is a launch of its own."""
        return self.calls[index].matmul and index not in self.scan_products

    def inputs_of(self, launch: TracedLaunch) -> list[int]:
        """Values that a launch reads and does not make; without the cache that it appends to, which stays in place."""
        written = {v for index in launch.calls for v in self.calls[index].made}
        uses = [use.value for index in launch.calls for use in self.calls[index].uses]
        inputs = (v for v in dict.fromkeys(uses) if v not in written)
        return [v for v in inputs if self.values[v].source != "cache" or v in self.states]

    def outputs_of(self, launch: TracedLaunch) -> list[int]:
        """Values that a launch makes for other launches, the caller or the cache."""
        launch_calls = set(launch.calls)
        written = (v for index in launch.calls for v in self.calls[index].made)
        return [v for v in written if v in self.outlives or set(self.readers.get(v, ())) - launch_calls]

    @property
    def outlives(self) -> set[int]:
        """Values that are still there when the pass has ended."""
        return self.cached | self.states.keys() | self.results | {self.logits}

    def parts(self, value: int) -> tuple[tuple[int, int], ...]:
        """Uses, by call and operand, of the parts of a value that products read one by one, such as queries, keys and
        values of one projection; none where they are not all of it, or it is read otherwise.
        """
        uses_by_range: dict[tuple[int, int], tuple[int, int]] = {}
        elements = 0
        for index in dict.fromkeys(self.readers.get(value, ())):
            for place, use in enumerate(self.calls[index].uses):
                if use.value != value:
                    continue
                if not self.calls[index].matmul or use.elements == self.values[value].numel:
                    return ()
                elements += use.elements if (use.low, use.high) not in uses_by_range else 0
                uses_by_range.setdefault((use.low, use.high), (index, place))
        is_covered = elements == self.values[value].numel
        return tuple(uses_by_range[key] for key in sorted(uses_by_range)) if is_covered else ()

    # What further passes add

    def add_chunks(self, path: str, products: float, others: float) -> bool:
        """Records what the scan of the module at `path` does with a prompt per token [OP], under the largest state
        that it reads; False where it reads none.
        """
        module_calls = [index for index, call in enumerate(self.calls) if call.path == path]
        steps = [
            index for index in module_calls if not self.is_product(index) and self.calls[index].name != "convolution"
        ]
        read = (use.value for index in self.state_calls & set(module_calls) for use in self.calls[index].uses)
        states = [value for value in read if value in self.states and self.values[value].source == "cache"]
        solved = self._solve(self.calls[module_calls[0]], "OPs", lambda r: sum(r.calls[index].ops for index in steps))
        chunks = Chunks(products, others, self.basis.per_token(solved))
        self.chunks |= dict.fromkeys(sorted(states, key=lambda value: self.values[value].numel)[-1:], chunks)
        return bool(states)

    def add_bands(self, recording: Recording) -> list[str]:
        """Records the bands of keys that masks leave in a long pass where those of the fitted passes are the same.

        Returns the modules of products where they are not.
        """
        products = [index for index, call in enumerate(self.calls) if call.matmul]
        fitted_bands = [(shape, r.bands()) for shape, r in zip(self.basis.shapes, self.recordings, strict=True)]
        unmatched_paths = set()
        for place, (index, band) in enumerate(zip(products, recording.bands(), strict=True)):
            # a single token at the end of what is cached attends to all of it under a causal mask
            expected_band = (-1, 0) if band is None and self.basis is not UNCACHED else band
            band_pairs = [
                (bands[place], shape.clipped(expected_band))
                for shape, bands in fitted_bands
                if bands[place] or expected_band is band
            ]
            if all(one == other for one, other in band_pairs):
                self.bands |= {index: band} if band else {}
            elif index not in self.windows:
                unmatched_paths.add(self.calls[index].path)
        return sorted(unmatched_paths)

    def add_window(self, index: int, shape: PassShape, ops: int) -> bool:
        """Records the window of a call whose `ops` in a pass of `shape` are those of fewer keys than there are; False
        where they are not.
        """
        form, fitted = self.ops(TracedLaunch((index,))), self.ops_for(index, shape)
        keys, rest = divmod(ops * (shape.past + shape.q_len), fitted)
        if [feature for feature, _ in form.terms] != [cells().terms[0][0]] or rest or not 0 < ops < fitted:
            return False
        self.windows[index] = keys
        return True


def _live_calls(recording: Recording, appending: set[int], states: set[int]) -> list[int]:
    """Indices of calls without element-wise ones whose results nobody reads, which compilers leave out, too."""
    used_values = {recording.logits, *recording.results, *recording.deciding, *states}
    read = []
    for index, call in reversed(list(enumerate(recording.calls))):
        if call.matmul or used_values & set(call.made) or index in appending:
            used_values |= {use.value for use in call.uses}
            read.append(index)
    return read[::-1]


def _uses(recording: Recording, launch: TracedLaunch, value: int) -> set[Use]:
    return {use for index in launch.calls for use in recording.calls[index].uses if use.value == value}


def _distinct_elements(uses: set[Use], value: Value) -> int:
    """Elements in the union of some parts of a value; parts within parts count once."""
    parts = {(use.low, use.high): use.elements for use in sorted(uses, key=lambda u: u.elements)}
    outer_ranges = [
        n
        for (low, high), n in parts.items()
        if not any(a <= low and high <= b and (a, b) != (low, high) for a, b in parts)
    ]
    return min(sum(outer_ranges), value.numel)
