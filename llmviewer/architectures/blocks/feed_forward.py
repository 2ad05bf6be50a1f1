"""Feed-forward networks: MLPs and mixtures of experts."""

from __future__ import annotations

from dataclasses import replace

from ...forms import TOKENS, distinct_experts
from ...operators.base import Operator, Tensor
from ...operators.elementwise import Combine, Permute, Route
from ...operators.linear import ChosenLinear, ExpertsLinear, Linear, Router
from ...operators.routing import UNGROUPED, Groups
from ...records import frozen
from .parts import Parts, result


@frozen(kw_only=True)
class Mlp:
    """down(act(gate(x)) * up(x)), or down(act(up(x))); the result is "down_proj".

    inner  width between the projections
    act    activation function
    gated  whether the activation of a gate scales the up projection
    bias   whether the projections have biases
    fused  whether one projection computes gate and up
    """

    inner: int
    act: str
    gated: bool = False
    bias: bool = False
    fused: bool = False

    def operators(self, parts: Parts, x: Tensor, prefix: str = "", act_name: str = "mlp_act") -> tuple[Operator, ...]:
        up_proj, gate = parts.tensor(f"{prefix}up_proj", self.inner), parts.tensor(f"{prefix}gate_proj", self.inner)
        first: tuple[Linear, ...] = (parts.linear(f"{prefix}up_proj", x, up_proj, bias=self.bias),)
        if self.gated and self.fused:
            first = (parts.linear(f"{prefix}gate_up_proj", x, gate, up_proj, bias=self.bias),)
        elif self.gated:
            first = (parts.linear(f"{prefix}gate_proj", x, gate, bias=self.bias), *first)
        mid = parts.activate(act_name, self.act, *((gate, up_proj) if self.gated else (up_proj,)))
        down = parts.project(f"{prefix}down_proj", mid.result, x.width, bias=self.bias)
        return (*first, mid, down)


@frozen(kw_only=True)
class Experts:
    """A mixture of `experts` MLPs, of which each token uses `chosen` (arXiv:2101.03961).

    The result is "combine"; with a latent space, "shared_add", or "fc2_latent_proj" without a shared expert.

    experts      routed experts
    chosen       experts per token
    inner        width between the projections of an expert
    act          activation function
    gated        whether the activation of a gate scales the up projection
    bias         whether the projections of experts have biases
    latent       width that tokens are projected to before the experts, and back from after them; 0: not projected
    latent_bias  whether the projections to it and back have biases
    latent_norm  whether a norm precedes the projection back
    shared       shared expert, which every token uses, at the hidden width; its result is added
    shared_gate  whether the result of the shared expert is scaled by a sigmoid of x
    zero         zero-computation experts, which return their input (arXiv:2509.01322, section 2.1); tokens choose them
                 as often as others
    groups       groups of experts that the router chooses first
    router_bias  whether the router's logits have a bias (or a separately learned correction)
    """

    experts: int
    chosen: int
    inner: int
    act: str = "silu"
    gated: bool = True
    bias: bool = False
    zero: int = 0
    groups: Groups = UNGROUPED
    router_bias: bool = False
    latent: int = 0
    latent_bias: bool = False
    latent_norm: bool = False
    shared: Mlp | None = None
    shared_gate: bool = False

    @property
    def computed(self) -> int:
        """Mean number of a token's experts with matrices."""
        return self.chosen * self.experts // (self.experts + self.zero)

    def operators(self, parts: Parts, x: Tensor, router_input: Tensor | None = None) -> tuple[Operator, ...]:
        """`router_input`: the input of the router, if it is not x."""
        routing = self.routing(parts, router_input or x)
        weights = result(routing)
        down = self._entering(parts, x)
        expert_input = result(down) if down else x
        copies = replace(parts.tensor("permute", expert_input.width), rows=self.computed * TOKENS)
        permute = Permute(name="permute", inputs=(expert_input, weights), outputs=(copies,))
        experts = self._experts(parts, copies)
        shared = self._shared(parts, x)
        gate = tuple(op.result for op in shared if op.name == "shared_gate")
        combine_extras = (*(op.result for op in shared[-1:]), *gate, *((x,) if self.zero else ()))
        mixed = self._mixed(parts, (result(experts), weights), combine_extras, x, latent=expert_input.width)
        return (*routing, *down, permute, *experts, *shared, *mixed)

    def _entering(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        """Brings tokens to the latent space; none where there is none."""
        return (parts.project("fc1_latent_proj", x, self.latent, bias=self.latent_bias),) if self.latent else ()

    def routing(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        """The router; its result is "route"."""
        router = parts.project("router", x, self.experts + self.zero, bias=self.router_bias, kind=Router)
        weights = parts.tensor("route", self.chosen)
        route = Route(
            name="route", inputs=router.outputs, outputs=(weights,), top_k=self.chosen, groups=self.groups
        )  # fmt: skip
        return (router, route)

    def _mixed(
        self, parts: Parts, chosen: tuple[Tensor, ...], combine_extras: tuple[Tensor, ...], x: Tensor, *, latent: int
    ) -> tuple[Operator, ...]:
        """The weighted sum of the experts' results, projected back from the latent space, plus the shared expert."""
        out, summed = parts.tensor("combine", latent), self.computed + bool(self.zero)
        if not self.latent:
            return (Combine(name="combine", inputs=(*chosen, *combine_extras), outputs=(out,), top_k=summed),)
        operators: tuple[Operator, ...] = (
            Combine(name="combine", inputs=chosen, outputs=(out,), top_k=summed),
            *((parts.norm("latent_norm", out),) if self.latent_norm else ()),
        )
        operators = (*operators, parts.project("fc2_latent_proj", result(operators), x.width, bias=self.latent_bias))
        return (
            (*operators, parts.add("shared_add", result(operators), *combine_extras)) if combine_extras else operators
        )

    def _experts(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        def project(name: str, x: Tensor, width: int) -> Linear:
            return experts_linear(parts, name, x, width, experts=self.experts, chosen=self.computed, bias=self.bias)

        up_proj = project("expert_up_proj", x, self.inner)
        first = (project("expert_gate_proj", x, self.inner), up_proj) if self.gated else (up_proj,)
        mid = parts.activate("expert_act", self.act, *(op.result for op in first))
        return (*first, mid, project("expert_down_proj", mid.result, x.width))

    def _shared(self, parts: Parts, x: Tensor) -> tuple[Operator, ...]:
        if not self.shared:
            return ()
        gate = (parts.project("shared_gate", x, 1, kind=Router),) if self.shared_gate else ()
        return (*gate, *self.shared.operators(parts, x, prefix="shared_", act_name="shared_act"))


class BiasedExperts(Experts):
    """Experts with a bias that is added to their weighted sum."""

    def operators(self, parts: Parts, x: Tensor, router_input: Tensor | None = None) -> tuple[Operator, ...]:
        *launches, combine = super().operators(parts, x, router_input)
        return (*launches, replace(combine, weights=(parts.weight(f"{combine.name}.bias", x.width),)))


def experts_linear(
    parts: Parts,
    name: str,
    x: Tensor,
    width: int,
    *,
    experts: int,
    chosen: int,
    bias: bool = False,
    kind: type[ChosenLinear] = ExpertsLinear,
) -> ChosenLinear:
    """A projection of each row of x by its expert, of `experts`; a token uses `chosen` of them."""
    shapes = {f"{name}.weight": (width, x.width), **({f"{name}.bias": (width,)} if bias else {})}
    expert_weights = tuple(
        replace(parts.weight(weight, experts, *shape), rows=distinct_experts(experts, chosen), active=chosen / experts)
        for weight, shape in shapes.items()
    )
    out = replace(parts.tensor(name, width), rows=x.rows)
    return kind(name=name, inputs=(x,), outputs=(out,), weights=expert_weights)
