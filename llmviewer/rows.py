"""`Rows`: results that are a table, for CSV and pandas."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


class Rows(ABC):
    """A result of several rows with the same keys, in SI units."""

    @abstractmethod
    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows, as in the CSV file."""

    def to_frame(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(list(self.rows()))
