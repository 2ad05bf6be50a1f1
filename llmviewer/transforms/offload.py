"""Offloading: parts of the weights and of the KV cache in host memory or on storage (arXiv:2303.06865).

A launch fetches the offloaded bytes that it reads over the host link, and stores the offloaded bytes of the cache that
it writes. The prefill fetches no cache, which it has just computed. A link carries both directions at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ..devices.hardware import Hardware
from ..errors import InputError
from ..forms import Form, Num, total
from ..graph import Block, Graph, Transform
from ..operators.base import Operator, Role, Tensor, Weight
from ..operators.collectives import Collective
from ..operators.transfer import Transfer
from ..records import frozen
from ..resource import Resource, link

HOST: Final = "host"
STORAGE: Final = "storage"  # behind the host link
_TIERS: Final = (HOST, STORAGE)
_PATHS: Final = {HOST: (HOST,), STORAGE: _TIERS}  # links on the way to each place
_PARTS: Final = ("weights", "kv")
_SYNC: Final = "sync"


@frozen(kw_only=True)
class Offload:
    """The fractions of all weights and of the KV cache outside device memory, and their places.

    synchronous  whether transfers are separate launches; else they overlap the launch that needs them
    """

    weights: float = 0.0
    kv: float = 0.0
    weights_in: str = HOST
    kv_in: str = HOST
    synchronous: bool = False

    def __str__(self) -> str:
        parts = ((name, getattr(self, name), getattr(self, f"{name}_in")) for name in _PARTS)
        settings = [f"{name}={part:g}" + (f"@{place}" if place != HOST else "") for name, part, place in parts if part]
        return " ".join([*settings, *([_SYNC] if settings and self.synchronous else [])])

    def offloaded_bytes(self, place: str, *, weights: Num, kv: Num) -> Num:
        """The part in `place` of `weights` and `kv` offloaded in total, in their unit."""
        return weights * (self.weights_in == place) + kv * (self.kv_in == place)

    def linked(self, hardware: Hardware) -> Hardware:
        """The device with the rates of the links to the offloaded data.

        Raises InputError if the bandwidth of a link is unknown.
        """
        places = [place for place in _PATHS if self.offloaded_bytes(place, weights=self.weights, kv=self.kv)]
        tiers = [tier for tier in _TIERS if any(tier in _PATHS[place] for place in places)]
        rates = {link(way): hardware.fact(f"{tier}.bandwidth") for tier in tiers for way in (tier, _outward(tier))}
        return replace(hardware, rates={**hardware.rates, **rates})


ON_DEVICE: Final = Offload()


def parse_offload(text: str) -> Offload:
    """The Offload of a text such as "weights=0.5,kv=0.2" or "weights=1@storage sync" (`synchronous`).

    Raises InputError if it does not parse.
    """
    fields: dict[str, float | str | bool] = {}
    for setting in text.replace(",", " ").split():
        name, _, value = setting.partition("=")
        number, separator, place = value.partition("@")
        if setting == _SYNC:
            fields["synchronous"] = True
            continue
        must = (
            "must be weights=PART or kv=PART with a part from 0 to 1, such as weights=0.5,kv=0.2 or weights=0.3@storage"
        )
        if name not in _PARTS or name in fields or (separator and place not in _PATHS):
            raise InputError(f"offload {text!r}: {must}; got {setting!r}")
        fields |= {name: _part(number, f"offload {text!r}: {must}; got {setting!r}"), f"{name}_in": place or HOST}
    if list(fields) == ["synchronous"]:
        raise InputError("offload: sync needs something to transfer; give weights=PART or kv=PART too")
    return replace(ON_DEVICE, **fields)  # type: ignore[arg-type]


def _part(text: str, otherwise: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(otherwise) from None
    if not 0 <= value <= 1:
        raise InputError(otherwise)
    return value


def offload(settings: Offload, *, decode: bool) -> Transform:
    """A transform that places weights and cache as `settings` say, for a prefill or a decode step.

    Raises InputError if a cache is offloaded and the model has none.
    """

    def one(block: Block) -> Block:
        return replace(block, operators=tuple(_fetching(block, settings, decode=decode)))

    def transform(graph: Graph) -> Graph:
        if settings.kv and not any(t.role is Role.KV_CACHE for _, op in graph for t in op.state()):
            raise InputError(f"offload {str(settings)!r}: the model has no KV cache; leave kv out")
        return graph.map_blocks(one)

    return transform


def _fetching(block: Block, settings: Offload, *, decode: bool) -> Iterator[Operator]:
    def weight(w: Weight) -> Weight:
        return replace(w, offloaded=settings.weights)

    def tensor(t: Tensor) -> Tensor:
        return replace(t, offloaded=settings.kv) if t.role is Role.KV_CACHE else t

    fetched_caches: set[str] = set()  # fetched by an earlier launch of the layer
    for op in block.operators:
        if isinstance(op, Collective):
            yield op
            continue
        cached = [t for t in op.reads() if decode and t.role is Role.KV_CACHE and t.name not in fetched_caches]
        fetched_caches |= {t.name for t in cached}
        fetched_bytes = _bytes_by_link(settings.weights_in, settings.weights * total(w.nbytes for w in op.weights))
        for resource, form in _bytes_by_link(settings.kv_in, settings.kv * total(t.nbytes for t in cached)).items():
            fetched_bytes[resource] = fetched_bytes.get(resource, Form()) + form
        written = settings.kv * total(t.nbytes for t in op.writes() if t.role is Role.KV_CACHE)
        stored_bytes = {link(_outward(r.dtype)): form for r, form in _bytes_by_link(settings.kv_in, written).items()}
        placed = op.with_weights(weight).with_tensors(tensor)
        if not settings.synchronous:
            yield replace(placed, transfers=tuple({**fetched_bytes, **stored_bytes}.items()))
            continue
        if fetched_bytes:
            yield _transfer(f"{op.name}_fetch", fetched_bytes)
        yield placed
        if stored_bytes:
            yield _transfer(f"{op.name}_store", stored_bytes)


def _bytes_by_link(place: str, nbytes: Form) -> dict[Resource, Form]:
    return {link(tier): nbytes for tier in _PATHS[place]} if nbytes else {}


def _outward(tier: str) -> str:
    """The link in the direction away from the device."""
    return f"to {tier}"


def _transfer(name: str, amounts: dict[Resource, Form]) -> Transfer:
    return Transfer(name=name, inputs=(), outputs=(), transfers=tuple(amounts.items()))
