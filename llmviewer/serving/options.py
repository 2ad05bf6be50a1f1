"""Options to make a model faster on a device: techniques, precisions, layouts, larger batches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..analyzing.cures import fitting
from ..errors import InputError
from ..memory import memory
from ..model import Model
from ..model_files import load_model, model_names
from ..parameters import Attention
from ..setting import Setting
from ..techniques import Technique, Touches, parse_technique, techniques
from ..techniques._drafting import vocabulary

_PRECISIONS: Final = ("fp8", "W8A8", "W4A16g128", "W4A8g128", "nvfp4")
_CACHES: Final = ("KV8", "KV4")
_DEGREES: Final = (2, 4, 8, 16, 32, 64)
_BATCHES: Final = (2, 4, 8, 16)
_DRAFT: Final = 5  # times smaller than the model, at least, is one that drafts for it
TAU: Final = 1.9  # tokens of a pass that it verifies: the middle of what was measured (arXiv:2404.14294, table 5)
_FAMILY: Final = re.compile(r"[a-z]+")
_GENERATION: Final = re.compile(r"[a-z]+-?\d+")  # qwen3 of qwen3-32b, llama-3 of llama-3.1-70b


@dataclass(frozen=True, kw_only=True)
class Option:
    """One thing that can be done: `group` is what it is one of, of which one can be had at a time."""

    name: str
    group: str
    change: tuple[str, Any]  # an argument of analyze()
    touches: Touches = Touches.NOTHING

    @classmethod
    def of(cls, kind: type[Technique], name: str = "", text: str = "") -> Option:
        """A technique, with its usual parameters if no `text` says others."""
        change = ("techniques", text or kind.name)
        return cls(name=name or kind.name, group=str(kind.kind), change=change, touches=kind.touches)


def options_of(setting: Setting, asked: Mapping[str, Any], *, most: int, larger: bool) -> Iterator[Option]:
    """All that could be done, but what is done already.

    asked   the arguments of analyze()
    most    devices up to which tensor parallelism is tried
    larger  whether larger batches are tried
    """
    for text in _PRECISIONS:
        yield Option(name=text, group="precision", change=("quant", text), touches=Touches.ANSWERS)
    for text in _CACHES:
        yield Option(name=text, group="cache", change=("cache", text), touches=Touches.ANSWERS)
    size = {name: asked[name] for name in ("batch", "prompt", "gen")}
    held = memory(setting.footprint, setting.hardware.capacity, **size)
    if setting.attention is Attention.EAGER:
        yield Option(name="flash attention", group="attention", change=("attention", "flash"))
    if setting.layout.devices == 1:
        for degree in (degree for degree in _DEGREES if degree <= most):
            yield Option(name=f"tp={degree}", group="layout", change=("layout", f"tp={degree}"))
    if larger:
        more = {asked["batch"] * factor for factor in _BATCHES} | {held.max_batch or 0}
        for batch in sorted(number for number in more if number > asked["batch"]):
            yield Option(name=f"batch {batch}", group="batch", change=("batch", batch))
    if offloaded := fitting(setting, held, **size, images=0):
        text = str(offloaded.offload)
        yield Option(name=f"offload {text}", group="offload", change=("offload", text))
    taken = {parse_technique(text).name for text in asked["techniques"]}
    for name, kind in techniques().items():
        if name not in taken and _usual(name):
            yield Option.of(kind)
    draft = _draft(setting.model)
    if "speculative" not in taken and draft:
        text = f"speculative:draft={draft},tau={TAU}"
        yield Option.of(techniques()["speculative"], f"draft {draft}", text)


def _usual(name: str) -> bool:
    """Whether a technique can be asked for by its name alone."""
    try:
        return not parse_technique(name).quant
    except InputError:
        return False


def without_usual(given: Sequence[Technique]) -> Iterator[tuple[Option, str]]:
    """Techniques that cannot, with what they need, but for those that others here stand for."""
    done = {"quantized", "speculative", *(one.name for one in given)}
    for name, kind in techniques().items():
        if name not in done:
            try:
                parse_technique(name)
            except InputError as error:
                yield Option.of(kind), str(error)


def _draft(model: Model) -> str:
    """The smallest shipped model of the same family and vocabulary, of the same generation if there is one, if it is
    small enough to draft; else "".
    """
    family = _FAMILY.match(model.name)
    names = (name for name in model_names() if family and name.startswith(family[0]))
    small = (other for other in map(load_model, names) if other.generates and not other.encodes)
    alike = (other for other in small if vocabulary(other) == vocabulary(model))
    able = [other for other in alike if other.parameters * _DRAFT <= model.parameters]

    def worth(other: Model) -> tuple[bool, int, bool]:
        mine, own = _GENERATION.match(model.name), _GENERATION.match(other.name)
        apart = not (mine and own and mine[0] == own[0])
        return apart, other.parameters, not other.name.startswith(model.name.rpartition("-")[0])

    return min(able, key=worth).name if able else ""


def with_options(asked: Mapping[str, Any], options: Sequence[Option]) -> dict[str, Any]:
    """The arguments of analyze() with some options."""
    changed = dict(asked)
    cache = ""
    for option in options:
        name, value = option.change
        if name == "techniques":
            changed[name] = (*changed[name], value)
        elif name == "cache":
            cache = value
        else:
            changed[name] = value
    if cache:
        changed["quant"] = f"{changed['quant']},*={cache}" if changed["quant"] else cache
    return changed
