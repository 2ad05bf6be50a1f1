"""`Request`: a batch of equal requests."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Final, Self, Unpack
from warnings import warn

from .documents import MAX_EXACT_INTEGER
from .errors import InputError
from .model import Model
from .options import LengthOptions, RequestOptions, only
from .records import frozen
from .setting import check_images, whole_number

_DEFAULT_GEN: Final = 128  # tokens generated, if their number is not given


class Inputs(dict[str, Any]):
    """Arguments by name, as in JSON documents; attributes, as in the last release, still work with a warning."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        warn(f"inputs.{name} is now inputs[{name!r}]", DeprecationWarning, stacklevel=2)
        return self[name]


@frozen(kw_only=True)
class Request:
    """A batch of equal requests.

    batch    sequences processed together, on all devices
    prompt   prompt tokens per sequence, those of images included
    gen      generated tokens per sequence; None: 128, or the steps of one inference of a model for robots
    kv_len   tokens that the decode step shown attends to, its own included; None: those of the first step
    images   images per prompt
    largest  whether `batch` is the largest that fits, and meets `tpot_s` if given
    tpot_s   limit on the time per output token that `batch` meets [s]
    """

    batch: int = 1
    prompt: int = 1024
    gen: int | None = None
    kv_len: int | None = None
    images: int = 0
    largest: bool = False
    tpot_s: float | None = None

    @classmethod
    def of(cls, **options: Unpack[RequestOptions]) -> Self:
        """The request of options, whose values of None are as if they were not given."""
        numbers: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        return cls(**numbers)

    def of_model(self, model: Model) -> Request:
        """The request with all numbers; gen and kv_len are None if the model does not generate.

        Raises InputError if a number is invalid, or impossible for the model.
        """
        default = model.actions.steps if model.actions else _DEFAULT_GEN
        prompt, gen = (
            whole_number("prompt", self.prompt),
            default if self.gen is None else whole_number("gen", self.gen),
        )
        images = whole_number("images", self.images, least=0)
        check_images(model, prompt=prompt, images=images)
        kv_len = _kv_len_of(model, prompt=prompt, kv_len=self.kv_len)
        batch = whole_number("batch", self.batch)
        return replace(self, batch=batch, prompt=prompt, gen=gen if kv_len else None, kv_len=kv_len, images=images)

    @property
    def longest(self) -> int:
        """Tokens of the sequences whose memory is counted: the whole generation, or a longer context that was given."""
        return max(self.prompt + (self.gen or 0), self.kv_len or 0)

    def check_countable(self) -> None:
        """Raises InputError if the tokens of all sequences cannot be counted exactly."""
        if self.batch * self.longest > MAX_EXACT_INTEGER:
            must = (
                f"batch x tokens of a sequence must be at most {MAX_EXACT_INTEGER}, the largest that is counted exactly"
            )
            raise InputError(f"{must}; got {self.batch} x {self.longest}")

    def inputs(self) -> dict[str, Any]:
        """The numbers of the request, as in JSON documents."""
        numbers = asdict(self)
        return {name: numbers[name] for name in ("batch", "prompt", "gen", "kv_len", "images")}


def lengths_of(options: LengthOptions, request: Request | None = None, *, gen: int = _DEFAULT_GEN) -> tuple[int, int]:
    """Prompt and generated tokens of each sequence: of `request`, else of options; `gen` if neither has their number.

    Raises InputError for a number that is not valid.
    """
    lengths = request or Request.of(**only(options, LengthOptions))
    return whole_number("prompt", lengths.prompt), whole_number("gen", gen if lengths.gen is None else lengths.gen)


def _kv_len_of(model: Model, *, prompt: int, kv_len: int | None) -> int | None:
    """Tokens that the decode step shown attends to; None if the model does not generate."""
    checked_kv_len = None if kv_len is None else whole_number("kv_len", kv_len)
    if not model.generates:
        if checked_kv_len:
            raise InputError(f"kv_len is for decode steps, and {model.name} does not generate; leave it out")
        return None
    if checked_kv_len and model.is_encoder_decoder and checked_kv_len <= prompt:
        must = f"kv_len must be more than the {prompt} tokens of the prompt, which the encoder of {model.name} reads"
        raise InputError(f"{must}; got {checked_kv_len}")
    return checked_kv_len or prompt + 1
