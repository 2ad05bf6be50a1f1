"""Exceptions as the lines that users of the page see."""

from __future__ import annotations

import logging
from typing import Final

from llmviewer.errors import InputError

from .words import page_text

_LOG: Final = logging.getLogger(__name__)


def error_line(error: Exception, operation: str = "") -> str:
    """The line that users see of an error: a mistake of theirs in the words of the page; others are logged.

    operation  what failed, for the log
    """
    if isinstance(error, InputError):
        return page_text(str(error))
    _LOG.error(operation, exc_info=error)
    return "internal error of llmviewer; details are in the server log"
