"""What recurrences need beside scans: mixtures with the token before, and long convolutions."""

from __future__ import annotations

from dataclasses import dataclass

from ..forms import TOKENS, Form, fft
from ..resource import Resource, vector
from .base import Operator
from .state_space import CausalConv


@dataclass(frozen=True, kw_only=True)
class TokenShift(Operator):
    """x + w (x before - x), with learned weights w for each of `mixtures`; the last token is kept (arXiv:2305.13048).

    A subtraction for each element, and a multiply-add for each mixture of it.
    """

    mixtures: int

    kind: str = "conv"

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): (1 + 2 * self.mixtures) * self.inputs[0].elements}


@dataclass(frozen=True, kw_only=True)
class ShortConv(CausalConv):
    """A CausalConv without an activation: a multiply-add for each tap."""

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): 2 * self.taps * self.outputs[0].elements}


@dataclass(frozen=True, kw_only=True)
class LongConv(Operator):
    """y[t] = gate[t] (sum over s of h[t - s] u[s] + d u[t]), u = x v, by channel; h sums powers of `states` modes.

    Several tokens are convolved by Fourier transforms, of u and back, of 2.5 n log2 n OPs each as they are real. That
    of h has a closed form in its modes, which a token by itself takes one after the other: m = pole m + u and
    Re(residue m), of 7 and 4 OPs. Longer passes need them too, for the state they leave and the one they start from.
    Four more OPs a channel are u, d u added, and the gate. Left out are a few OPs a point: spectra and their products
    (arXiv:2302.10866; arXiv:2310.18780, section 3).
    """

    channels: float
    states: int

    kind: str = "conv"

    def arithmetic(self) -> dict[Resource, Form]:
        modes = (11 * self.states + 4) * TOKENS
        return {vector("fp32"): self.channels * (5 * fft() + modes)}

    @property
    def filters(self) -> int:
        """Channels that need nothing of each other, or groups of them that share a filter."""
        return min(w.shape[0] for w in self.weights)
