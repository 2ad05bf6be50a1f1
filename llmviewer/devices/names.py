"""Names of devices as tables of measurements write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ..documents import normalized

_WORDS: Final = re.compile(r"[\s_/-]+")
_MAX_WORDS: Final = 12  # of a name in a table
# Short names in tables of measurements, and the devices that they mean.
_SHORT_NAMES: Final = {
    "a100": "a100-sxm-80gb", "a100sxm": "a100-sxm-80gb", "a100pcie": "a100-pcie-80gb", "a800": "a800-sxm-80gb",
    "a10080g": "a100-sxm-80gb", "a10040g": "a100-sxm-40gb", "v100": "v100-sxm2-16gb",
}  # fmt: skip
# Words after a known name that make it another device: a variant, a partition, a notebook's GPU.
_VARIANT_WORDS: Final = frozenset(
    {"laptop", "mobile", "mig", "vgpu", "ti", "super", "d", "xt", "xtx", "lite", "mini", "ultra", "max", "pro"}
)


def name_candidates(name: str) -> Iterator[str]:
    """Yields device names that a table of measurements may mean by `name`, the likeliest first.

    Words are dropped from the end, because tables add form factors and sizes, but not a word that makes it another
    device, such as Laptop.
    """
    words = _WORDS.split(name.strip().lower())[:_MAX_WORDS]
    for count in range(len(words), 0, -1):
        if not _VARIANT_WORDS & {*words[count:]}:
            written = "-".join(words[:count])
            yield _SHORT_NAMES.get(normalized(written).removeprefix("nvidia"), written)
