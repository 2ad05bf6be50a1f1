"""Operators of recurrent models besides scans: token shifts, short and long convolutions."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

from ..forms import TOKENS, Form, fft, history_fft, kv_tokens
from ..precision import product
from ..records import frozen
from ..resource import Resource, matrix, vector
from .base import Operator, Sharding, Tensor
from .state_space import CausalConv


@frozen(kw_only=True)
class TokenShift(Operator):
    """x[t] + w (x[t-1] - x[t]) with learned weights w, for each of `mixtures` (arXiv:2305.13048).

    The last token is kept for the next pass. OPs per element: a subtraction, and a multiply-add per mixture.
    """

    mixtures: int

    kind: str = CausalConv.kind

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): (1 + 2 * self.mixtures) * self.inputs[0].elements}


class ShortConv(CausalConv):
    """A CausalConv without an activation: a multiply-add per tap."""

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): 2 * self.taps * self.outputs[0].elements}


@frozen(kw_only=True)
class LongConv(Operator):
    """y[t] = gate[t] (sum over s of h[t - s] u[s] + d u[t]) with u = x v, per channel; h sums powers of `states` modes.

    Sources: arXiv:2302.10866; arXiv:2310.18780, section 3. A pass over several tokens transforms u and back by real
    FFTs of 2.5 n log2 n OPs each. Per token and mode, m = pole m + u takes 7 OPs and Re(residue m) 4: a single token
    is computed that way, and longer passes need it for the state that they read and write. Four more OPs per channel
    are u, d u, its addition and the gate. Not counted: a few OPs per point for spectra and their products.
    """

    sharding: ClassVar[Sharding] = Sharding.ELEMENTS

    channels: float
    states: int

    kind: str = CausalConv.kind

    def arithmetic(self) -> dict[Resource, Form]:
        modes = (11 * self.states + 4) * TOKENS
        return {vector("fp32"): self.channels * (5 * fft() + modes)}

    @property
    def filters(self) -> int:
        """Independent filters: channels, or groups of channels that share one."""
        return min(w.shape[0] for w in self.weights)

    def units(self, t: Tensor) -> int:  # noqa: ARG002
        return self.filters

    def cut(self, part: int, width: int) -> Self:
        return replace(self, channels=self.channels * part // width)


@frozen(kw_only=True)
class ImplicitConv(Operator):
    """y[t] = gate[t] (sum over s of h[t - s] u[s] + d u[t]), per channel, with a filter h as long as the context.

    A function of the position makes h, so no state sums up the past: every pass, of a single token too, transforms the
    whole u and its product with the spectrum of h back, by real FFTs of 2.5 n log2 n OPs each (arXiv:2302.10866,
    section 3.3). Four more OPs per channel and token are d u, its addition, the gate and its product. Not counted: a
    few OPs per point for spectra and their products.
    """

    sharding: ClassVar[Sharding] = Sharding.ELEMENTS

    kind: str = CausalConv.kind

    def arithmetic(self) -> dict[Resource, Form]:
        return {vector("fp32"): self.outputs[0].width * (5 * history_fft() + 4 * TOKENS)}


@frozen(kw_only=True)
class MixedConv(Operator):
    """y[t, n] = sum over s and k of h[t - s, n, k] u[s, k] + b[n], with a filter h as long as the context.

    Each output channel sums over all input channels (arXiv:2102.02611, section 4.2). As for an ImplicitConv, every pass
    transforms the whole u, and its product with the spectrum of h back: real FFTs of 2.5 n log2 n OPs for a channel,
    and a complex multiply-add of 8 OPs for each pair of channels and each of n / 2 points. Not counted: spectra of h.
    """

    sharding: ClassVar[Sharding] = Sharding.REPLICATED

    kind: str = CausalConv.kind

    def arithmetic(self) -> dict[Resource, Form]:
        (history,), (out,) = self.inputs, self.outputs
        ffts = 2.5 * (history.width + out.width) * history_fft()
        products = 8 * history.width * out.width * kv_tokens()
        unit = matrix(product(history.format, history.format))
        return {vector("fp32"): ffts + out.width * TOKENS, unit: products}
