"""Functions under their names of the last release, with a DeprecationWarning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from warnings import warn

from .serving.advice import Advice, advise


def recommend(*arguments: Any, given: Sequence[str] | str = (), **options: Any) -> Advice:
    """advise(), which calls `given` `techniques`."""
    warn("llmviewer.recommend is now llmviewer.advise, and given is techniques", DeprecationWarning, stacklevel=2)
    techniques = (given,) if isinstance(given, str) else given
    return advise(*arguments, **{"techniques": tuple(techniques), **options})
