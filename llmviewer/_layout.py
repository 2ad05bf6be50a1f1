"""The one file that knows a checkout from an installed wheel: where the data files and the sibling packages are."""

from pathlib import Path
from typing import Final

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
PATH_VARIABLE: Final = "LLMVIEWER_HARDWARE_PATH"  # of the environment: a folder of the user's hardware files
IN_CHECKOUT = (ROOT / "pyproject.toml").is_file() and (ROOT / "hardware").is_dir()


def data_dir(kind: str) -> Path:
    """Folder of the YAML files of `kind`: "hardware" or "models"."""
    return ROOT / kind if IN_CHECKOUT else PACKAGE / "data" / kind
