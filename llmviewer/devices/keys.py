"""Keys of hardware files and the units of their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..precision import WIDER

PLAIN: Final = (  # of the device as a whole
    "name", "title", "vendor", "kind", "architecture", "compute_capability", "released", "status", "aliases",
    "sources", "notes",
)  # fmt: skip
COUNT, TEXT, TOPOLOGY = "count", "text", "topology"  # values without a unit
KINDS: Final = ("gpu", "cpu", "accelerator")
STATUSES: Final = ("shipping", "discontinued", "announced")
TOPOLOGIES: Final = ("switch", "mesh", "cube", "ring", "torus2d", "torus3d", "pair")
_RATES: Final = dict.fromkeys((*WIDER.keys() - {"table"}, "int1", "int32"), "OP/s")
_CACHE: Final = {"capacity": "B", "bandwidth": "B/s"}
SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    # boost: of the datasheet's rates; matrix: of those of matrix units, if not boost; max: the highest that the driver
    # or the maker gives for cards as sold, on which bounds rest, if not boost
    "clock": dict.fromkeys(("base", "boost", "matrix", "max", "memory"), "Hz"),
    "matrix": _RATES,
    "sparse": _RATES,
    "vector": _RATES,
    "memory": {
        "type": TEXT, "capacity": "B", "usable": "B", "bandwidth": "B/s", "bus_width": COUNT, "data_rate": "bit/s",
    },
    "registers": _CACHE,
    "shared_memory": _CACHE,
    "l2": _CACHE,
    "l3": _CACHE,
    "cores": dict.fromkeys(
        ("count", "matrix_fp16_per_clock", "vector_fp32_per_clock", "exponentials_per_clock"), COUNT  # per core
    ),
    "scale_up": {
        "type": TEXT, "bandwidth": "B/s", "latency": "s", "devices": COUNT, "topology": TOPOLOGY,
        "in_network": TEXT,  # the reducing switches, if any
    },
    "scale_out": {"type": TEXT, "bandwidth": "B/s", "latency": "s", "topology": TOPOLOGY},
    "host": {"type": TEXT, "bandwidth": "B/s", "latency": "s"},
    "storage": {"type": TEXT, "bandwidth": "B/s"},  # behind the host link: a device's share of it
    "power": {"tdp": "W", "idle": "W", "shared": TEXT},  # shared: other consumers, such as a CPU on the same module
    "price": {"purchase": "USD", "cloud": "USD/h", "date": TEXT},
}  # fmt: skip
ON_CHIP: Final = ("registers", "shared_memory", "l2", "l3")  # memory levels, innermost first
