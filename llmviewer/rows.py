"""`Rows`: results that are a table, for CSV and pandas; cells of CSV files."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from importlib import import_module
from math import isnan
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    import pandas as pd


# How cells start that a spreadsheet runs as a formula (OWASP, CSV injection); signed quantities do not.
_FORMULA: Final = re.compile(r"(?![+-][\d.,]+[ \w%/]*$)[=+@\t\r-].", re.DOTALL)


def csv_text(lines: Iterable[Iterable[Any]]) -> str:
    """A CSV file of `lines`, the first of which has the heads."""
    import csv
    import io

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(csv_cell, line) for line in lines)
    return text.getvalue()


def csv_cell(value: Any) -> Any:
    """`value` in a CSV file: nan is empty, and text that a spreadsheet would run as a formula follows an apostrophe."""
    if isinstance(value, float) and isnan(value):
        return None
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


class Rows(ABC):
    """A result of several rows with the same keys, in SI units: a few lines as repr(), the text report as str().

    report  module of llmviewer.reports that shows it, without which no result of the package is
    """

    report: ClassVar[str]

    def __repr__(self) -> str:
        return str(self._shown().brief(self))

    def __str__(self) -> str:
        return str(self._shown().text(self))

    def _repr_html_(self) -> str:
        """The summary and the first figure, for notebooks."""
        return str(self._shown().notebook(self))

    def _shown(self) -> Any:
        """The report, which is imported when it is needed."""
        return import_module(f".reports.{self.report}", __package__).REPORT

    @abstractmethod
    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows, as in the CSV file."""

    def to_frame(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(list(self.rows()))
