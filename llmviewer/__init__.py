"""A roofline analyzer for LLM inference: where the time goes, what bounds it, what would change it, and by how much."""

from ._layout import IN_CHECKOUT as _IN_CHECKOUT
from ._layout import ROOT as _ROOT

if _IN_CHECKOUT:  # reports/ lies beside this folder, not inside it
    __path__.append(str(_ROOT))

__version__ = "0.1.0"
