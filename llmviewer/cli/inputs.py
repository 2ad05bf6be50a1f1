"""Options that say what is asked: the setting, the layout, what lies elsewhere, techniques."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from ..errors import InputError, suggest
from . import options as shared

if TYPE_CHECKING:
    from ..documents import Section

SIDES: Final = {"prefill": "read prompts", "decode": "take decode steps"}
DEGREES: Final = {
    "tp": "Tensor parallelism: weights, heads and experts are cut",
    "pp": "Pipeline parallelism: layers are divided among devices",
    "ep": "Expert parallelism: experts are divided among tp x dp devices",
    "dp": "Data parallelism: sequences are divided among devices",
    "cp": "Context parallelism: tokens of prompt and cache are divided among devices",
}
_LAYOUTS: Final = 64  # degrees of one kind that are compared at once
_WITH: Final = "with"  # what the option is called; `techniques` where it is a name in Python
_UNSET: Final = ("output", "help", "scenario")  # what a scenario does not say

_F = TypeVar("_F", bound=Callable[..., object])


def setting(command: _F, *, required: bool = True) -> _F:
    """The options that every question about a model on a device has."""
    options = (
        click.argument("model", required=required),
        click.argument("hardware", required=required),
        click.option(
            "--quant",
            metavar="SCHEME",
            callback=shared.precision,
            help="Bits or formats of weights, activations and KV cache: W4A16g128, W8A8KV8, fp8, Wnf4A16; for parts of "
            "the model: W4A16g128,down_proj=W8A16,layers.0-3=W16A16. Alone, fp8, int8, mxfp8 and nvfp4 are weights and "
            "activations, int4, nf4, mxfp6 and mxfp4 weights only; fp8KV8 adds the cache. Or a file type of llama.cpp: "
            "Q4_K_M, Q8_0,A8g32. If not given, `published`: as the model was; parts may follow it.",
        ),
        click.option(
            "--attention",
            metavar="eager|flash",
            help="eager: three launches with the scores in memory; flash: one launch. If not given, flash, or "
            "eager in survey accounting.",
        ),
        click.option(
            "--accounting",
            metavar="faithful|survey",
            default="faithful",
            show_default=True,
            help='faithful: what kernels have to do; survey: the conventions of the paper "LLM Inference Unveiled".',
        ),
        click.option(
            "--mla",
            metavar="auto|naive|absorbed",
            default="auto",
            show_default=True,
            help="Latent attention (DeepSeek). naive: expand the cache to keys and values; absorbed: project the "
            "queries to the cache; auto: naive in the prefill, absorbed in decode.",
        ),
        shared.hardware_set,
        shared.hardware_path,
    )
    return shared.all_of(command, *options)


def layout(command: _F, *, several: bool = False) -> _F:
    """Degrees of parallelism, which the command gets as one Layout, or as a list of all combinations of `several`."""

    @functools.wraps(command)
    def with_layout(*arguments: Any, **options: Any) -> object:
        from ..parallel.layout import Layout, layouts
        from ..parameters import Algorithm

        given = {name: options.pop(name) for name in DEGREES}
        algorithm, hierarchical = options.pop("collective"), options.pop("hierarchical_all_to_all")
        overlap, two = options.pop("overlap"), options.pop("two_batch_overlap")
        parts, redundant = options.pop("micro_batches"), options.pop("redundant_experts")
        if algorithm not in list(Algorithm):
            raise InputError(f"--collective must be one of {', '.join(Algorithm)}; got {algorithm!r}")
        ways = {
            "micro_batches": parts, "collective": Algorithm(algorithm),
            "hierarchical_all_to_all": hierarchical,
            "overlap": overlap, "two_batch_overlap": two, "redundant_experts": redundant,
        }  # fmt: skip
        if not several:
            return command(*arguments, layout=Layout(**given, **ways), **options)
        from ..sweeping.axes import parse_numbers

        numbers = [parse_numbers(given[name], where=f"--{name} {given[name]}", most=_LAYOUTS) for name in DEGREES]
        each = (dict(zip(DEGREES, combined, strict=True)) for combined in itertools.product(*numbers))
        return command(*arguments, layout=layouts(each, **ways), **options)

    options = [
        *(
            click.option(f"--{name}", metavar="NUMBERS", default="1", help=f"{text}; several: 1,2,4.")
            if several
            else click.option(f"--{name}", type=shared.WHOLE, default=1, help=f"{text}.")
            for name, text in DEGREES.items()
        ),
        click.option(
            "--micro-batches",
            type=shared.WHOLE,
            default=0,
            help="Parts that the pipeline cuts a batch into; one for each stage if 0.",
        ),
        click.option(
            "--collective",
            metavar="auto|ring|tree|one-shot|two-shot",
            default="auto",
            help="Algorithm of all-reduces and the like; auto: a bound for all of them.",
        ),
        click.option(
            "--hierarchical-all-to-all",
            is_flag=True,
            help="Tokens for devices of another node go to one of them, which passes them on.",
        ),
        click.option("--overlap", is_flag=True, help="Collectives overlap with the launch before them."),
        click.option(
            "--two-batch-overlap",
            is_flag=True,
            help="The batch is cut in two: collectives of one half run while the other computes (SGLang's two-batch, "
            "vLLM's dual-batch overlap, DeepSeek's dual micro-batches).",
        ),
    ]
    return shared.all_of(cast("_F", with_layout), *options, redundant_experts)


def offload(command: _F) -> _F:
    """What lies outside of device memory, which the command gets as one Offload."""

    @functools.wraps(command)
    def with_offload(*arguments: Any, offload: str | None, offload_sync: bool, **options: Any) -> object:
        from ..transforms.offload import parse_offload

        waits = f"{offload or ''} sync" if offload_sync else offload or ""
        return command(*arguments, offload=parse_offload(waits), **options)

    options = (
        click.option(
            "--offload",
            metavar="PARTS",
            callback=shared.given,
            help="Parts of all weights and of the KV cache that lie in host memory, or on storage (@storage), and are "
            "fetched when they are used: weights=0.5,kv=0.2@storage.",
        ),
        click.option("--offload-sync", is_flag=True, help="Nothing is computed while offloaded parts are fetched."),
    )
    return shared.all_of(cast("_F", with_offload), *options)


def two_kinds(command: _F) -> _F:
    """Devices and layouts of prefill and decode apart, which the command gets as `sides`, empty where none is given."""

    @functools.wraps(command)
    def with_sides(*arguments: Any, **options: Any) -> object:
        names = [f"{side}_{what}" for side in SIDES for what in ("hardware", "layout")]
        given = {name: options.pop(name) for name in (*names, "kv_transfer", "kv_link")}
        sides = {name: value for name, value in given.items() if value is not None}
        if sides and not sides.keys() & set(names):
            option = next(iter(sides)).replace("_", "-")
            raise InputError(
                f"--{option} is between two kinds of devices; give --prefill-hardware or --decode-hardware"
            )
        return command(*arguments, sides=sides, **options)

    options = [
        click.option(f"--{side}-{what}", metavar=metavar, help=f"{about} {does}.")
        for side, does in SIDES.items()
        for what, metavar, about in (
            ("hardware", "HARDWARE", "In place of HARDWARE, the devices that"),
            ("layout", "DEGREES", "A layout, such as 'tp=4 pp=2', of the devices that"),
        )
    ]
    options.append(
        click.option(
            "--kv-transfer",
            metavar="after|overlapped",
            help="When the KV cache goes to the devices that decode: after the prefill, or layer by layer during it.",
        )
    )
    options.append(
        click.option(
            "--kv-link",
            metavar="scale-out|scale-up",
            help="Over which links: between nodes (of a host where there are none), or within a domain of both.",
        )
    )
    return shared.all_of(cast("_F", with_sides), *options)


def expert_skew(command: _F) -> _F:
    return click.option(
        "--expert-skew",
        metavar="S",
        type=shared.NUMBER,
        default=0,
        show_default=True,
        help="How unevenly tokens choose experts: their popularity is rank^-S; 0 is uniform.",
    )(command)


def redundant_experts(command: _F) -> _F:
    return click.option(
        "--redundant-experts",
        metavar="N",
        type=shared.WHOLE,
        default=0,
        help="Copies of popular experts in each layer, which even out what ranks have to do (EPLB; SGLang's "
        "--ep-num-redundant-experts, vLLM's num_redundant_experts).",
    )(command)


def mtp(command: _F) -> _F:
    return click.option(
        "--mtp", is_flag=True, help="Also run multi-token prediction layers, where the model has some."
    )(command)


def techniques_alone(command: _F) -> _F:
    """What the command gets as `techniques`."""
    return click.option(
        f"--{_WITH}",
        "techniques",
        type=click.UNPROCESSED,  # a file says them as objects
        metavar="TECHNIQUE",
        multiple=True,
        help="A technique in use, such as sparsity or speculative:draft=llama-68m,gamma=4,alpha=0.7; see `llmviewer "
        "techniques`. May be repeated.",
    )(command)


def with_techniques(command: _F) -> _F:
    """That, and a file that can say it and the rest."""
    options = (
        techniques_alone,
        click.option(
            "--scenario",
            metavar="FILE",
            is_eager=True,
            expose_value=False,
            callback=_scenario,
            help="A YAML file with model, hardware and any of these options by name; the command line overrides it.",
        ),
    )
    return shared.all_of(command, *options)


def _scenario(context: click.Context, _: click.Parameter, value: str | None) -> None:
    """Takes the file's values as the defaults of the command."""
    if value is None:
        return
    from ..documents import read_yaml
    from ..techniques import parse_technique

    file = read_yaml(Path(value))
    known = {option.lstrip("-"): p for p in context.command.params if p.name not in _UNSET for option in p.opts}
    defaults: dict[str, Any] = {}
    for key in file:
        parameter = known.get(str(key).replace("_", "-"))
        if parameter is None:
            raise file.error(str(key), f"unknown key; {suggest(str(key), known)}")
        given, name = file.get(key), parameter.name or ""
        several = getattr(parameter, "multiple", False)
        if name == "techniques":
            defaults[name] = [parse_technique(one) for one in (given if isinstance(given, list) else [given])]
            for technique in defaults[name]:
                _check_no_code(file, str(key), vars(technique).values())
        elif isinstance(given, Mapping) or isinstance(given, list) != several:
            must = "a list" if several else "one value"
            raise file.error(str(key), f"must be {must}; got {json.dumps(given, default=str)}")
        elif given is not None:
            try:
                defaults[name] = [_typed(one, parameter) for one in given] if several else _typed(given, parameter)
                _check_no_code(file, str(key), (given,) if name == "model" else ())
            except click.BadParameter as error:
                raise file.error(str(key), error.message) from None
    context.default_map = {**(context.default_map or {}), **defaults}


def _check_no_code(file: Section, key: str, values: Iterable[object]) -> None:
    """Raises InputError if one of the values names a callable as a model: a file must not run code."""
    from ..model_files import names_code

    for value in values:
        if isinstance(value, str) and names_code(value):
            raise file.error(key, f"must not name code, which a file never runs; got {value!r}; give it as an option")


def _typed(value: object, parameter: click.Parameter) -> object:
    """What a file gives, read as text that is typed: of the number 2.9, click would make a 2."""
    text = f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)
    return parameter.type(text, parameter)
