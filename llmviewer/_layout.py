"""The one file that knows a checkout from an installed wheel: where the data files and the sibling packages are."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
IN_CHECKOUT = (ROOT / "pyproject.toml").is_file() and (ROOT / "hardware").is_dir()


def data_dir(kind: str) -> Path:
    """Folder of the YAML files of `kind`: "hardware" or "models"."""
    return ROOT / kind if IN_CHECKOUT else PACKAGE / "data" / kind
