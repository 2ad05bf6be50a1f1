"""Names of devices as tables of measurements write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ..documents import normalized

_WORDS: Final = re.compile(r"[\s_/-]+")
_MOST_WORDS: Final = 12  # of a name in a table
# What tables call by less than a whole name, and mean.
_USUAL: Final = {
    "a100": "a100-sxm-80gb", "a100sxm": "a100-sxm-80gb", "a100pcie": "a100-pcie-80gb", "a800": "a800-sxm-80gb",
    "a10080g": "a100-sxm-80gb", "a10040g": "a100-sxm-40gb", "v100": "v100-sxm2-16gb",
}  # fmt: skip
# What names another device where it follows a known one: parts of it, and those of notebooks.
_OTHERS: Final = frozenset(
    {"laptop", "mobile", "mig", "vgpu", "ti", "super", "d", "xt", "xtx", "lite", "mini", "ultra", "max", "pro"}
)


def in_tables(name: str) -> Iterator[str]:
    """What a table of measurements may mean by a device's `name`, the likeliest first.

    Form factors and sizes, which tables add, are left out word by word from the end, but not a word that makes it
    another device, such as Laptop.
    """
    words = _WORDS.split(name.strip().lower())[:_MOST_WORDS]
    for count in range(len(words), 0, -1):
        if not _OTHERS & {*words[count:]}:
            written = "-".join(words[:count])
            yield _USUAL.get(normalized(written).removeprefix("nvidia"), written)
