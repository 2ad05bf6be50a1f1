"""Declaration of a parameter, and the named values that parameters of the interface take.

Imports nothing heavy: the command line declares its options with it before anything is computed.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, Final

from .records import frozen

DEGREES: Final = ("tp", "pp", "ep", "dp", "cp")
MAX_DEGREE: Final = 1 << 20  # of parallelism; no machine has as many devices
MAX_SEQUENCES: Final = 10**9  # of a server at once, and of tokens; no memory holds as many
_MAX_LISTED_NAMES: Final = 8  # names that fit into one line


class AttentionMode(StrEnum):
    """Attention kernels. eager: three launches with scores in memory; flash: one launch with scores on the chip."""

    EAGER = "eager"
    FLASH = "flash"


class Mla(StrEnum):
    """Kernels of latent attention.

    naive: the cache is expanded. absorbed: queries are projected into the latent space. auto: naive in prefill,
    absorbed in decode and with indexers that choose keys per query, as in serving engines.
    """

    AUTO = "auto"
    NAIVE = "naive"
    ABSORBED = "absorbed"


class Accounting(StrEnum):
    """Accounting of work. faithful: of kernels; survey: as in "LLM Inference Unveiled" (arXiv:2402.16363)."""

    FAITHFUL = "faithful"
    SURVEY = "survey"


class Algorithm(StrEnum):
    """Algorithm of a collective."""

    AUTO = "auto"
    RING = "ring"
    TREE = "tree"
    ONE_SHOT = "one-shot"
    TWO_SHOT = "two-shot"


class KvTransfer(StrEnum):
    """Time of the KV-cache transfer. after: after the prefill; overlapped: layer by layer during the prefill."""

    AFTER = "after"
    OVERLAPPED = "overlapped"


class KvLink(StrEnum):
    """Links of the KV-cache transfer. scale-out: between nodes, or host links if the device's file has no scale-out
    links; scale-up: within a domain.
    """

    SCALE_OUT = "scale-out"
    SCALE_UP = "scale-up"


@frozen(kw_only=True)
class Parameter:
    """Declaration of one parameter.

    about        one line: tooltip of the page, first sentence of the command line's help
    more         further sentences of the help and of the reference page
    default      value if the parameter is not given; None: another one is chosen, as `more` says
    unit         such as "s"; "": none
    least, most  limits of a number, which are allowed values unless `open`
    choices      allowed names; (): any
    flag         option of the command line, and others of the same meaning; "": the name, with dashes
    metavar      placeholder of the value in the help; "": the type, or the choices
    link         key in links to the page, and name of its field there; "": the name
    label        label of the control on the page; "": there is none
    term         entry of the glossary that the label leads to
    page_most    largest number on the page, which answers at once; inf: `most`
    """

    about: str
    more: str = ""
    default: Any = None
    unit: str = ""
    least: float = -math.inf
    most: float = math.inf
    open: bool = False
    choices: tuple[str, ...] = ()
    flag: str = ""
    metavar: str = ""
    link: str = ""
    label: str = ""
    term: str = ""
    page_most: float = math.inf

    @property
    def help(self) -> str:
        """The whole description."""
        return f"{self.about} {self.more}".rstrip()

    @property
    def limits(self) -> str:
        """The limits in words, such as "from 0 to 1" or "at least 1"; "" if there are none."""
        if self.choices:
            named = (
                self.choices
                if len(self.choices) <= _MAX_LISTED_NAMES
                else (*self.choices[:2], f"... ({len(self.choices)} names)")
            )
            return f"one of {', '.join(named)}"
        if self.most < math.inf:
            return f"{'between' if self.open else 'from'} {self.least:g} {'and' if self.open else 'to'} {self.most:g}"
        if self.least == -math.inf:
            return ""
        return f"{'above' if self.open else 'at least'} {self.least:g}"

    def holds(self, value: object) -> bool:
        """Whether `value` is within the limits."""
        if self.choices:
            return value in self.choices
        if not isinstance(value, int | float):
            return True
        inside = self.least < value < self.most if self.open else self.least <= value <= self.most
        return math.isfinite(value) and inside


def declared(options: type) -> dict[str, Parameter]:
    """The parameters of a TypedDict whose annotations carry their declarations, by name."""
    return {name: hint.__metadata__[0] for name, hint in options.__annotations__.items()}


def kind_of(hint: Any) -> Any:
    """The type in an annotation that carries a declaration, as text where it is quoted."""
    return getattr(hint.__origin__, "__forward_arg__", hint.__origin__)
