"""Locations of data files and sibling packages, in a checkout and in an installed wheel."""

from pathlib import Path
from typing import Final

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
PATH_VARIABLE: Final = "LLMVIEWER_HARDWARE_PATH"  # environment variable: folder of the user's hardware files
IN_CHECKOUT = (ROOT / "pyproject.toml").is_file() and (ROOT / "hardware").is_dir()


def data_dir(kind: str) -> Path:
    """The folder of the data of `kind`: "docs", "engines", "hardware", "models" or "profiles"."""
    return ROOT / kind if IN_CHECKOUT else PACKAGE / "data" / kind
