"""Replicas of each model that serves the calls of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..devices.files import changes_by_device, loaded
from ..devices.hardware import Hardware
from ..errors import InputError
from ..options import BoundOptions, EngineOptions, LibraryOptions
from ..records import frozen
from ..setting import Setting, engine_inputs
from .policy import Policy
from .task_files import TaskModel
from .traffic import Traffic

_SHARED_OPTIONS: Final = tuple(
    name for options in (BoundOptions, LibraryOptions, EngineOptions) for name in options.__annotations__
)  # of the command, for all models


@frozen(kw_only=True)
class ModelGroup:
    """Replicas of a model that serves calls of a task.

    usd_per_token  price of an input and an output token, for the cost of calls by tokens; None without [USD]
    """

    name: str
    setting: Setting
    policy: Policy
    replicas: int
    max_batch: int
    block: int
    usd_per_token: tuple[float, float] | None


def other_settings(
    models: Sequence[TaskModel], setting: Setting, hardware: str | Hardware, options: Mapping[str, Any]
) -> list[Setting]:
    """Settings of the models of a task, without the first, which is `setting`.

    hardware  the device of `setting`, for those that name none
    options   of `setting`, of which library, engine and bound hold for all

    Raises InputError, with the name of the model, if one is invalid.
    """
    if not models[1:]:
        return []
    shared: dict[str, Any] = {name: value for name, value in options.items() if name in _SHARED_OPTIONS}
    if not options:  # of a Setting in place of options
        shared = {
            **engine_inputs(setting.engine), "library": "" if setting.engine else setting.library,
            "profiles": setting.profiles, "bound": setting.bound,
        }  # fmt: skip
    devices = [hardware, *(model.hardware or hardware for model in models[1:])]
    changes = changes_by_device(devices, options.get("hardware_set", ()))
    settings = []
    for model, device, device_changes in zip(models[1:], devices[1:], changes[1:], strict=True):
        options_of_model: dict[str, Any] = {
            name: value
            for name in ("quant", "layout", "techniques")
            if (value := getattr(model, name))
        }  # fmt: skip
        try:
            one = Setting.of(model.model, loaded(device, device_changes), **shared, **options_of_model)
        except InputError as error:
            raise InputError(f"model {model.name}: {error}") from None
        settings.append(one)
    return settings


def check_models(traffic: Traffic, models: Sequence[TaskModel], *, changes: bool, padded: bool) -> None:
    """Raises InputError for what several models cannot serve.

    changes  whether replicas fail or are autoscaled
    padded   whether the policy pads batches
    """
    if not models:
        return
    if changes:
        raise InputError("mtbf and autoscale must be left out with tasks of several models, whose replicas are fixed")
    if padded:
        raise InputError("policy must not be static with tasks of several models")
    assert traffic.models is not None
    drawn = set(traffic.models.tolist())
    for number, model in enumerate(models):
        if number not in drawn:
            raise InputError(f"requests must be more: of {len(traffic)} calls, {model.name} serves none")
