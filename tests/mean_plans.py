"""plan() in closed form, with targets of means: what the closed forms are checked against by hand."""

from __future__ import annotations

from typing import Any

from llmviewer.serving import planning
from llmviewer.serving.service_plan import ServicePlan


def plan(*arguments: Any, **options: Any) -> ServicePlan:
    """planning.plan() without simulations, with numbers as targets of the mean."""
    goals = {name: options[name] for name in ("ttft", "tpot") if name in options}
    means = {name: f"mean={goal}" if isinstance(goal, int | float) else goal for name, goal in goals.items()}
    return planning.plan(*arguments, **{"confirm": False, **options, **means})
