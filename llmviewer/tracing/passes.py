"""Passes of a module for a trace: with a cache, or once over its whole input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from inspect import Parameter, signature
from typing import Any, Final

from ..errors import InputError
from ..records import frozen
from .fitting import CACHED, FIXED, STEPS, UNCACHED, Basis, PassShape
from .numbers import ShapeValues
from .recorder import record, tensors_of
from .recording import Recording

SEQUENCES: Final = "sequences"
TOKENS: Final = "tokens"
_CACHES: Final = ("past_key_values", "cache", "cache_params", "state")  # names of caches and states in transformers
_PAST_TOKENS: Final = 11  # tokens; an unlikely size of a module
_INPUTS_HINT: Final = "let the callable return (module, inputs)"
_TOKEN_DIMS: Final = ((0, SEQUENCES), (1, TOKENS))


@frozen(kw_only=True)
class TracedPasses(ABC):
    """Passes of a module, with counts that are sums over `basis`.

    why  why a basis with more features was not possible
    """

    module: Any
    name: str

    basis: Basis = CACHED
    why: str = ""
    numbers: ShapeValues | None = None  # known values of buffers
    places: frozenset[int] = frozenset()  # tensors of the cache that passes write tokens into

    @abstractmethod
    def record(self, shape: PassShape) -> Recording:
        """The calls of a pass of `shape`."""

    @property
    @abstractmethod
    def notes(self) -> tuple[str, ...]:
        """Notes on the counts."""


@frozen(kw_only=True)
class DecoderPasses(TracedPasses):
    """Passes of a language model with a KV cache or a state.

    cache  its argument of forward
    """

    cache: str = _CACHES[0]

    @property
    def notes(self) -> tuple[str, ...]:
        if self.basis is CACHED:
            return ()
        return ("keeps a state: every token counts as one of a step that writes token by token",)

    def record(self, shape: PassShape) -> Recording:
        """The calls of a pass of `shape`, after a prompt that fills the cache."""
        if not shape.past:
            return self._run(shape.q_len, shape.batch, None)[0]
        past, numbers = self._prompt(shape)
        if not tensors_of(past):
            raise InputError(
                f"{self.name}: forward must return a cache or a state, as .{self.cache} or as its second result; got "
                "none (what a module keeps within itself is not traced; describe the model in a YAML file)"
            )
        return self._run(shape.q_len, shape.batch, past, numbers)[0]

    def keeps(self) -> bool:
        """Whether a pass leaves a cache."""
        return bool(tensors_of(self._prompt(CACHED.shapes[0])[0]))

    def recurs(self) -> bool:
        """Whether a tensor that passes leave has no dimension of tokens: a state."""
        cache_tensors = tensors_of(self._prompt(PassShape(2, 1, _PAST_TOKENS))[0])
        return any(_PAST_TOKENS not in t.shape for t in cache_tensors if t.is_floating_point())

    def in_place(self) -> DecoderPasses:
        """The passes, with the tensors of a static cache that passes write tokens into.

        If other tensors do not grow either, they are a state.
        """
        write_counts = []
        for shape in (PassShape(2, 3, _PAST_TOKENS), PassShape(2, 5, _PAST_TOKENS)):
            try:
                recording = self.record(shape)
            except InputError:  # a state that only takes single tokens
                return replace(self, basis=STEPS)
            cache_values = [v for v, value in enumerate(recording.values) if value.source == "cache"]
            written = {
                cache_values.index(value): sum(recording.placed(recording.calls[index]) for index in calls)
                / shape.q_len
                for value, calls in recording.written().items()
            }
            write_counts.append(written.items())
        places = frozenset(place for place, _ in write_counts[0] & write_counts[1])
        floating = (place for place, v in enumerate(cache_values) if recording.values[v].floats)
        ungrown = (p for p in floating if _PAST_TOKENS not in recording.values[cache_values[p]].shape)
        return replace(self, basis=CACHED if places >= set(ungrown) else STEPS, places=places)

    def _prompt(self, shape: PassShape) -> tuple[Any, ShapeValues]:
        """The cache before a pass of `shape`, and its known values."""
        _, out, numbers = self._run(shape.past, shape.batch, None)
        return self._left(out), numbers

    def _run(
        self, length: int, batch: int, past: Any, numbers: ShapeValues | None = None
    ) -> tuple[Recording, Any, ShapeValues]:
        torch = import_module("torch")
        ids = torch.zeros(batch, length, dtype=torch.long, device="meta")
        kwargs = {"input_ids": ids, "use_cache": True}
        if past is not None:
            kwargs[self.cache] = past
        recorder, out = record(
            self.module,
            lambda: self.module(**kwargs),
            name=self.name,
            called=f"forward(input_ids, {self.cache}=..., use_cache=True)",
            cached=tensors_of(past),
            given=[ids],
            numbers=numbers or self.numbers,
        )
        return recorder.with_logits(out, self._left(out)), out, recorder.numbers

    def _left(self, out: Any) -> Any:
        past = getattr(out, self.cache, None)
        return out[1] if past is None and isinstance(out, tuple) and len(out) > 1 else past


@frozen(kw_only=True)
class SinglePass(TracedPasses):
    """The single pass of a module without a cache.

    inputs   arguments of forward, by name or position
    guessed  whether they were not given by the caller
    varying  dimensions that are sequences or tokens; the others are fixed
    """

    inputs: Mapping[int | str, Any]
    varying: Mapping[int | str, Mapping[int, str]]
    guessed: bool = False

    def record(self, shape: PassShape) -> Recording:
        arguments = {key: self._of(shape, key, value) for key, value in self.inputs.items()}
        args = [value for key, value in arguments.items() if isinstance(key, int)]
        kwargs = {key: value for key, value in arguments.items() if isinstance(key, str)}
        recorder, out = record(
            self.module,
            lambda: self.module(*args, **kwargs),
            name=self.name,
            called=f"forward({', '.join(map(_input_text, self.inputs))})",
            hint=f"; for another input {_INPUTS_HINT}" if self.guessed else "",
            given=[value for value in arguments.values() if _is_tensor(value)],
            numbers=self.numbers,
        )
        return recorder.with_results(out)

    @property
    def notes(self) -> tuple[str, ...]:
        summary = "runs once over its input, without a cache"
        pairs = "; attention counts all pairs but where it says is_causal, or a mask that depends on lengths alone"
        if self.basis is UNCACHED:
            return (summary + pairs,)
        tensors = ((key, v.shape[1:]) for key, v in self.inputs.items() if _is_tensor(v))
        shapes = (f"{_input_text(key)} of {' x '.join(map(str, shape)) or 1}" for key, shape in tensors)
        tried = f" (lengths cannot vary: {self.why})" if self.why else ""
        sized = f"of one size for each sequence: {', '.join(shapes)}{tried}"
        return (
            f"{summary}, {sized}; --prompt changes no count, and with --prompt 1 its tokens/s are inputs per second",
        )

    def _of(self, shape: PassShape, key: int | str, example: Any) -> Any:
        if not _is_tensor(example):
            return example
        sizes = {SEQUENCES: shape.batch, TOKENS: shape.q_len}
        varying = self.varying.get(key, {})
        sizes_now = [sizes[varying[n]] if n in varying else size for n, size in enumerate(example.shape)]
        return import_module("torch").empty(sizes_now, dtype=example.dtype, device="meta")


def passes_of(module: Any, name: str, inputs: Any, dims: Any) -> tuple[TracedPasses, ...]:
    """Ways to run a module, the most likely first.

    inputs  example arguments of forward: a tensor, a tuple by position or a dict by name. None: token ids, or images as
            in the module's config
    dims    dimensions that vary, such as {"x": {0: "sequences", 1: "tokens"}}; None: found by their sizes

    Raises InputError if there is none.
    """
    if inputs is not None:
        return _passes_over(module, name, _inputs_by_name(name, inputs), dims)
    parameters = signature(module.forward).parameters
    if parameters.keys() & {*_CACHES[:2], "use_cache"}:
        steps = DecoderPasses(
            module=module, name=name, cache=next((key for key in _CACHES if key in parameters), _CACHES[0])
        )
        if _generates(module) or steps.keeps():
            return (steps.in_place() if steps.recurs() else steps,)
    return (_default_pass(module, name, parameters),)


def _generates(module: Any) -> bool:
    """Whether transformers would generate with it."""
    can_generate = getattr(module, "can_generate", None)
    return bool(can_generate and can_generate())


def _default_pass(module: Any, name: str, parameters: Mapping[str, Parameter]) -> SinglePass:
    """Default passes over token ids or images, without a cache."""
    torch = import_module("torch")
    named = [key for key, p in parameters.items() if p.kind is not p.VAR_KEYWORD]
    main_input = getattr(module, "main_input_name", None)  # of transformers
    main = main_input if main_input in named else next(iter(named), None)
    if main is None:
        raise InputError(f"{name}: forward must take an input; it takes none")
    if main == "pixel_values":
        pixels = torch.empty(1, *_image_size(module, name), device="meta")
        dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), pixels.dtype)
        sized = {main: pixels.to(dtype)}
        return SinglePass(
            module=module, name=name, inputs=sized, varying={main: {0: SEQUENCES}}, basis=FIXED, guessed=True
        )
    if main.startswith("input_") and main != "input_ids":  # audio, whose sizes no config has
        raise InputError(f"{name}: reads {main}, and its shape is not known; {_INPUTS_HINT}")
    key = 0 if parameters[main].kind in (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL) else main
    ids = torch.empty(1, 1, dtype=torch.long, device="meta")
    return SinglePass(
        module=module,
        name=name,
        inputs={key: ids},
        varying={key: dict(_TOKEN_DIMS)},
        basis=UNCACHED,
        guessed=True,
    )


def _image_size(module: Any, name: str) -> tuple[int, int, int]:
    """Channels, height and width of images, from a config."""
    config = getattr(module, "config", None)
    size = getattr(config, "image_size", None)
    sides = tuple(size) if isinstance(size, list | tuple) else (size, size)
    if len(sides) != 2 or not all(isinstance(side, int) for side in sides):
        raise InputError(f"{name}: reads images, and its config has no image_size; {_INPUTS_HINT}")
    return getattr(config, "num_channels", None) or 3, *sides


def _inputs_by_name(name: str, inputs: Any) -> dict[int | str, Any]:
    """Inputs by name or position.

    Raises InputError if they are no arguments of forward, or not on the meta device.
    """
    if isinstance(inputs, Mapping):
        named = {**inputs}
    else:
        named = dict(enumerate(inputs if isinstance(inputs, list | tuple) else [inputs]))
    tensors = {key: value for key, value in named.items() if _is_tensor(value)}
    if not tensors or not all(isinstance(key, int | str) for key in named):
        kind = type(inputs).__name__
        raise InputError(f"{name}: inputs must be a tensor, or a tuple or dict with tensors; got {kind}")
    for key, tensor in tensors.items():
        if tensor.device.type != "meta":
            raise InputError(f"{name}: inputs must be on the meta device; {_input_text(key)} is on {tensor.device}")
    kinds = sorted({_dtype(t) for t in tensors.values() if t.is_floating_point() or t.is_complex()})
    if len(kinds) > 1:
        raise InputError(f"{name}: inputs must have one floating-point type; got {', '.join(kinds)}")
    return named


def _passes_over(module: Any, name: str, inputs: dict[int | str, Any], dims: Any) -> tuple[SinglePass, ...]:
    """Passes over inputs like these, with varying sequences and tokens, or only sequences."""
    if dims is not None:
        varying = _checked_dims(name, inputs, dims)
        basis = UNCACHED if any(TOKENS in kinds.values() for kinds in varying.values()) else FIXED
        return (SinglePass(module=module, name=name, inputs=inputs, varying=varying, basis=basis),)
    tensors = {key: value for key, value in inputs.items() if _is_tensor(value) and value.dim()}
    if not tensors:
        raise InputError(
            f"{name}: inputs must have a dimension that varies, the first for sequences; got numbers alone"
        )
    ids = [value for value in tensors.values() if not value.is_floating_point() and value.dim() > 1]
    features = [value for value in tensors.values() if value.is_floating_point() and value.dim() == 3]
    batch, *length = next(iter((*ids, *features, *tensors.values()))).shape[:2]
    fixed = {key: {0: SEQUENCES} for key, value in tensors.items() if value.shape[0] == batch}
    sized = SinglePass(module=module, name=name, inputs=inputs, varying=fixed, basis=FIXED)
    if not ids and not features:
        return (sized,)
    if [batch] == length:
        raise InputError(
            f"{name}: inputs must have other numbers of sequences than of tokens, to tell them apart; got "
            f"{batch} x {batch}: say which is which, as in (module, inputs, {{0: {{0: 'sequences', 1: 'tokens'}}}})"
        )
    varying_dims = {
        key: {**fixed.get(key, {}), **{n: TOKENS for n, size in enumerate(value.shape) if [size] == length}}
        for key, value in tensors.items()
    }
    return (SinglePass(module=module, name=name, inputs=inputs, varying=varying_dims, basis=UNCACHED), sized)


def _checked_dims(name: str, inputs: Mapping[int | str, Any], dims: Any) -> dict[int | str, dict[int, str]]:
    """Varying dimensions from `dims` of the user.

    Raises InputError if a name, an input or a dimension does not exist, or if no dimension is sequences.
    """
    example = "{0: {0: 'sequences', 1: 'tokens'}}"
    if not isinstance(dims, Mapping) or not all(isinstance(kinds, Mapping) for kinds in dims.values()):
        raise InputError(f"{name}: dims must say which dimensions of which input vary, as {example}; got {dims!r}")
    for key, kinds in dims.items():
        if not _is_tensor(inputs.get(key)):
            input_names = ", ".join(_input_text(k) for k, v in inputs.items() if _is_tensor(v))
            raise InputError(f"{name}: dims must name an input ({input_names}); got {key!r}")
        for n, kind in kinds.items():
            if kind not in (SEQUENCES, TOKENS):
                raise InputError(f"{name}: dimensions must be {SEQUENCES!r} or {TOKENS!r}; got {kind!r}")
            if not isinstance(n, int) or not 0 <= n < inputs[key].dim():
                raise InputError(f"{name}: {_input_text(key)} has {inputs[key].dim()} dimensions, from 0; got {n!r}")
    if not any(SEQUENCES in kinds.values() for kinds in dims.values()):
        raise InputError(f"{name}: dims must say which dimension is {SEQUENCES!r}; got {dims!r}")
    return {key: dict(kinds) for key, kinds in dims.items()}


def _input_text(key: int | str) -> str:
    return key if isinstance(key, str) else f"input {key}"


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _is_tensor(value: Any) -> bool:
    return isinstance(value, import_module("torch").Tensor)
