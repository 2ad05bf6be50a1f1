"""Quantization methods of checkpoints, each with the fields of its quantization_config.

Routers and prediction heads are not quantized unless a config names them, as in serving engines, and encoders of images
and audio only where transformers itself quantizes, as with bitsandbytes: makers of checkpoints leave them out, and not
all say so (Kimi K2.5). Not counted, because negligible: the column order of GPTQ (desc_act), and scales of whole
tensors, rows and channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from ..documents import Section
from ..precision import NAMED, Format, Scheme
from .formats import Rule, Stored
from .module_names import Matching, ModuleNames

_FP8: Final = NAMED["fp8_e4m3"]
_NVFP4: Final = NAMED["nvfp4"]
_SKIPPED: Final = ("modules_to_not_convert",)


def scheme(weight: Format, activation: Format | None = None, text: str = "") -> Scheme:
    """A scheme with a description."""
    words = f"{weight} weights and activations" if activation == weight else f"{weight} weights"
    if activation and activation != weight:
        words += f", {activation} activations"
    return Scheme(text=text or words, weight=weight, activation=activation)


def integer(bits: float, *, group: int = 0, zero: bool = False, scale_bits: float = 16) -> Format:
    """Integers with a 16-bit scale, and a zero point of their own width if they have one, per `group`."""
    compute = "int4" if bits <= 4 else "int8"
    if group <= 0:
        return Format(f"int{bits:g}", bits, compute)
    return Format(f"int{bits:g}", bits, compute, group=group, scale_bits=scale_bits, zero_bits=bits if zero else 0)


def _excluding(q: Section, *rules: Rule, keys: Iterable[str], matching: Matching) -> tuple[Rule, ...]:
    names = [name for key in keys for name in q.texts(key)]
    return (*rules, Rule(None, ModuleNames.of(names, matching))) if names else rules


def _bits(q: Section, *keys: str) -> int:
    key = q.first(*keys)
    bits = q.integer(key)
    if bits > 8:
        raise q.error(key, f"must be at most 8; got {bits}")
    return bits


def _group(q: Section, *keys: str) -> int:
    """Elements that share a scale; 0: a whole column, -1 in config files."""
    return max(q.integer(q.first(*keys), 0, least=-1), 0)


def _gptq(q: Section, _: Section) -> Stored:
    bits, group = _bits(q, "bits"), _group(q, "group_size")
    sym = q.flag("sym", default=True)
    main_scheme = _gptq_scheme(bits, group, sym=sym)
    rules = [Rule(main_scheme)]
    if q.get("modules_in_block_to_quantize"):
        rules = [Rule(main_scheme, ModuleNames.of(_flat(q, "modules_in_block_to_quantize")))]
    if q.flag("lm_head", default=False):
        rules.append(Rule(main_scheme, ModuleNames.of(("lm_head",))))
    for pattern, part in reversed(list(_parts(q, "dynamic"))):  # in engines the first match applies
        own_group = group if part.get("group_size") is None else _group(part, "group_size")
        module_scheme = _gptq_scheme(part.integer("bits", bits), own_group, sym=part.flag("sym", default=sym))
        names = ModuleNames.of((pattern.removeprefix("-:").removeprefix("+:"),), Matching.REGEX)
        rules.append(Rule(None if pattern.startswith("-:") else module_scheme, names))
    return Stored(rules=_excluding(q, *rules, keys=_SKIPPED, matching=Matching.SKIPPED))


def _gptq_scheme(bits: int, group: int, *, sym: bool) -> Scheme:
    fmt = integer(bits, group=group, zero=not sym)
    return scheme(fmt, text=f"GPTQ {fmt} weights")


def _flat(q: Section, key: str) -> list[str]:
    """The texts in a list, or in a list of lists."""
    value = q.get(key)
    lists = value if isinstance(value, list) and all(isinstance(item, list) for item in value) else [value]
    names = [name for part in lists if isinstance(part, list) for name in part]
    if not names or not all(isinstance(name, str) for name in names):
        raise q.error(key, f"must be a list of texts, or of lists of texts; got {value!r}")
    return names


def _parts(q: Section, key: str) -> Iterator[tuple[str, Section]]:
    """The sections of a mapping by key; none if it is absent."""
    if q.get(key):
        section = q.section(key)
        yield from ((name, section.section(name)) for name in section)


def _awq(q: Section, _: Section) -> Stored:
    zero = q.flag("zero_point", default=True)
    fmt = integer(_bits(q, "bits", "w_bit"), group=_group(q, "group_size", "q_group_size"), zero=zero)
    return Stored(
        rules=_excluding(q, Rule(scheme(fmt, text=f"AWQ {fmt} weights")), keys=_SKIPPED, matching=Matching.INSIDE),
    )


def _auto_round(q: Section, _: Section) -> Stored:
    fmt = integer(_bits(q, "bits"), group=_group(q, "group_size"), zero=not q.flag("sym", default=True))
    rules = [Rule(scheme(fmt, text=f"AutoRound {fmt} weights"))]
    for name, part in _parts(q, "extra_config"):
        bits = part.integer("bits", int(fmt.bits))
        module_scheme = scheme(integer(bits, group=fmt.group, zero=fmt.zero_bits > 0))
        rules.append(Rule(None if bits >= 16 else module_scheme, ModuleNames.of((name,), Matching.SKIPPED)))
    return Stored(rules=_excluding(q, *rules, keys=_SKIPPED, matching=Matching.SKIPPED))


def _fp8(q: Section, config: Section) -> Stored:
    base = NAMED["fp8_e5m2"] if "e5m2" in q.text("fmt", "e4m3") else _FP8
    block = q.get("weight_block_size")
    q.choice("activation_scheme", ("dynamic", "static"), "dynamic")
    main_scheme = scheme(base, base, "fp8 per tensor")
    if block is not None:
        rows, columns = _block(q, "weight_block_size", block)
        main_scheme = _blocks(base, rows, columns)
    rules = [Rule(main_scheme)]
    if config.get("expert_dtype") == "fp4":  # DeepSeek-V4
        names = ModuleNames.of(("experts",))
        rules.append(Rule(scheme(NAMED["mxfp4"], main_scheme.activation), names))
    excluded = _excluding(q, *rules, keys=(*_SKIPPED, "ignored_layers"), matching=Matching.SKIPPED)
    if q.get("quantized_layers") is None:
        return Stored(rules=excluded, kv_cache=kv_cache(q))
    q.ignore("config_groups", "ignore", "quant_algo", "group_size")  # copies of quantized_layers
    return Stored(rules=(*excluded, *_listed(q)), kv_cache=kv_cache(q))


def _blocks(base: Format, rows: int, columns: int, *, activations: bool = True) -> Scheme:
    """fp8 with an fp32 scale per block of weights, and per `columns` activations of a token."""
    weight = replace(base, group=rows * columns, scale_bits=32)
    activation = replace(base, group=columns, scale_bits=32) if activations else None
    return scheme(weight, activation, f"fp8 blocks of {rows}x{columns}")


def _block(q: Section, key: str, value: Any) -> tuple[int, int]:
    good = isinstance(value, list) and len(value) == 2 and all(type(n) is int and n > 0 for n in value)
    if not good:
        raise q.error(key, f"must be two whole numbers, rows and columns; got {value!r}")
    return value[0], value[1]


def _fbgemm(q: Section, _: Section) -> Stored:
    rule = Rule(scheme(_FP8, _FP8, "fp8 per channel"))
    return Stored(rules=_excluding(q, rule, keys=_SKIPPED, matching=Matching.SKIPPED))


def _mxfp4(q: Section, _: Section) -> Stored:
    """MXFP4 of experts only, as in gpt-oss: modules that are not excluded are experts."""
    rule = Rule(scheme(NAMED["mxfp4"]))
    return Stored(rules=_excluding(q, rule, keys=_SKIPPED, matching=Matching.SKIPPED))


def _bitsandbytes(q: Section, _: Section) -> Stored:
    """A scale per 64 weights; with double quantization 8 bits, and 32 bits per 256 scales (arXiv:2305.14314)."""
    q.ignore("_load_in_4bit", "_load_in_8bit")
    if q.flag("load_in_8bit", default=False):
        rule = Rule(scheme(NAMED["int8"], NAMED["int8"], "LLM.int8() weights and activations"), towers=True)
    elif q.flag("load_in_4bit", default=False):
        kind = q.choice("bnb_4bit_quant_type", ("nf4", "fp4"), "fp4")
        twice = q.flag("bnb_4bit_use_double_quant", default=False)
        fmt = Format(kind, 4, "table", group=64, scale_bits=8 if twice else 32, scale_group=256 if twice else 0)
        text = f"bitsandbytes {kind} weights" + (", quantized twice" if twice else "")
        rule = Rule(scheme(fmt, text=text), towers=True)
    else:
        return Stored(
            notes=(f"{q.file}: {q.prefix}load_in_4bit: neither it nor load_in_8bit is true: nothing is quantized",)
        )
    return Stored(rules=_excluding(q, rule, keys=("llm_int8_skip_modules",), matching=Matching.SKIPPED))


_ALGORITHMS: Final[Mapping[str, Callable[[int], Scheme]]] = {  # by modelopt's names; arguments are group sizes
    "FP8": lambda _: scheme(_FP8, _FP8, "fp8 per tensor"),
    "FP8_PER_CHANNEL_PER_TOKEN": lambda _: scheme(_FP8, _FP8, "fp8 per channel and token"),
    "FP8_PB_WO": lambda _: _blocks(_FP8, 128, 128, activations=False),
    "FP8_PB_REAL": lambda _: _blocks(_FP8, 128, 128),
    "MXFP8": lambda _: scheme(NAMED["mxfp8"], NAMED["mxfp8"]),
    "NVFP4": lambda _: scheme(_NVFP4, _NVFP4),
    "NVFP4_AWQ": lambda _: scheme(_NVFP4, _NVFP4),
    "W4A16_NVFP4": lambda _: scheme(_NVFP4),
    "W4A8_NVFP4_FP8": lambda _: scheme(_NVFP4, _FP8),
    "W4A8_MXFP4_FP8": lambda _: scheme(NAMED["mxfp4"], _FP8),
    "W4A16_AWQ": lambda group: scheme(integer(4, group=group or 128)),
    "W4A8_AWQ": lambda group: scheme(integer(4, group=group or 128), _FP8),
    "W8A16": lambda _: scheme(NAMED["int8"]),
    "INT8_SQ": lambda _: scheme(NAMED["int8"], NAMED["int8"]),
    "W8A8_SQ_PER_CHANNEL": lambda _: scheme(NAMED["int8"], NAMED["int8"]),
}


def _modelopt(q: Section, _: Section) -> Stored:
    algorithm = q.text("quant_algo", "NONE").upper()
    q.ignore("config_groups", "quantized_layers")  # copies, if there is one algorithm
    cache = kv_cache(q)
    if algorithm == "MIXED_PRECISION":
        q.ignore("ignore", "exclude_modules")  # unlisted modules are not quantized
        return Stored(rules=_listed(q), kv_cache=cache)
    if algorithm not in _ALGORITHMS:
        fault = f"{q.prefix}quant_algo {algorithm!r} is not supported ({', '.join(sorted(_ALGORITHMS))})"
        return Stored(unknown=f"{q.file}: {fault}", kv_cache=cache)
    rule = Rule(_ALGORITHMS[algorithm](_group(q, "group_size")))
    return Stored(rules=_excluding(q, rule, keys=("ignore", "exclude_modules"), matching=Matching.GLOB), kv_cache=cache)


def _listed(q: Section) -> tuple[Rule, ...]:
    """The rules of quantized_layers, one per module."""
    modules: dict[tuple[str, int], list[str]] = {}
    for name, layer in _parts(q, "quantized_layers"):
        algorithm = layer.choice("quant_algo", _ALGORITHMS)
        modules.setdefault((algorithm, _group(layer, "group_size")), []).append(name)
    return tuple(
        Rule(_ALGORITHMS[name](group), ModuleNames.of(module_names)) for (name, group), module_names in modules.items()
    )


def kv_cache(q: Section) -> Format | None:
    """The cache format: of a name such as "FP8", or of bits and a type."""
    value = q.get(q.first("kv_cache_scheme", "kv_cache_quant_algo"))
    q.ignore("kv_cache_scheme", "kv_cache_quant_algo")
    if isinstance(value, Mapping):
        return _tensor(Section(value, q.file, f"{q.prefix}kv_cache_scheme."))
    names = {"fp8": _FP8, "int8": NAMED["int8"], "nvfp4": _NVFP4}
    return names.get(str(value).lower())


def _tensor(part: Section) -> Format | None:
    """A format of compressed-tensors; None if unknown."""
    bits, group = part.integer("num_bits", 8), _group(part, "group_size")
    if part.choice("type", ("int", "float"), "int") == "int":
        return integer(bits, group=group, zero=not part.flag("symmetric", default=True)) if bits <= 8 else None
    if bits == 4:
        return NAMED["mxfp4"] if group == 32 else _NVFP4
    if bits != 8:
        return None
    block = part.get("block_structure")
    if part.get("strategy") == "block" and block is not None:
        rows, columns = _block(part, "block_structure", block)
        return replace(_FP8, group=rows * columns, scale_bits=32)
    return replace(_FP8, group=group, scale_bits=32) if group else _FP8


def _compressed(q: Section, _: Section) -> Stored:
    rules: list[Rule] = []
    unknown = _sparse(q)
    for _name, group in _parts(q, "config_groups"):
        if group.get("weights") is None:
            continue
        weight = _tensor(group.section("weights"))
        activation = _tensor(group.section("input_activations")) if group.get("input_activations") else None
        if weight is None:
            unknown = f"{q.file}: {group.prefix}weights: has an unsupported format"
            continue
        targets = group.texts("targets") or ("Linear",)
        modules = [t for t in targets if not t.endswith("Linear")]
        if len(modules) < len(targets):
            rules.append(Rule(scheme(weight, activation)))
        if modules:
            rules.append(Rule(scheme(weight, activation), ModuleNames.of(modules, Matching.MARKED)))
    return Stored(
        rules=_excluding(q, *rules, keys=("ignore",), matching=Matching.MARKED),
        kv_cache=kv_cache(q) if q.get("kv_cache_scheme") is not None else None,
        unknown=unknown,
    )


def _sparse(q: Section) -> str:
    """Why the size of weights is unknown, if they are stored without zeros; else ""."""
    if q.get("format") == "marlin-24":
        return f"{q.file}: {q.prefix}format: 'marlin-24' omits zeros, which is not supported"
    if not q.get("sparsity_config"):
        return ""
    sparsity = q.section("sparsity_config")
    kind = sparsity.text("format", "dense")
    fault = f"{q.file}: {sparsity.prefix}format: {kind!r} omits zeros, which is not supported"
    return "" if kind == "dense" else fault


_QUARK: Final[Mapping[str, Callable[[int], Format]]] = {  # by Quark's names; arguments are group sizes
    "fp4": lambda _: NAMED["mxfp4"],
    "fp4_e2m1": lambda _: NAMED["mxfp4"],
    "fp8": lambda _: _FP8,
    "fp8_e4m3": lambda _: _FP8,
    "fp8_e5m2": lambda _: NAMED["fp8_e5m2"],
    "int4": lambda group: integer(4, group=group),
    "uint4": lambda group: integer(4, group=group, zero=True),
    "int8": lambda group: integer(8, group=group),
    "uint8": lambda group: integer(8, group=group, zero=True),
}


def _quark(q: Section, _: Section) -> Stored:
    """AMD Quark: one scheme for all modules, and others by pattern."""
    rules: list[Rule] = []
    unknown = ""
    global_section = (("", q.section("global_quant_config")),) if q.get("global_quant_config") else ()
    for pattern, part in (*global_section, *_parts(q, "layer_quant_config")):
        weight, activation = (_quark_format(part, key) for key in ("weight", "input_tensors"))
        if isinstance(weight, str) or isinstance(activation, str):
            unknown = f"{q.file}: {part.prefix}{weight if isinstance(weight, str) else activation}"
        elif weight:
            rules.append(Rule(scheme(weight, activation), ModuleNames.of((pattern,)) if pattern else None))
    return Stored(
        rules=_excluding(q, *rules, keys=("exclude",), matching=Matching.GLOB),
        kv_cache=_quark_cache(q),
        unknown=unknown,
    )


def _quark_format(part: Section, key: str) -> Format | str | None:
    """The format of weights or activations, of the last of several steps; a text: what is unknown of it."""
    value = part.get(key)
    steps = value if isinstance(value, list) else [value]
    if not isinstance(steps[-1], Mapping):
        return None
    step = Section(steps[-1], part.file, f"{part.prefix}{key}.")
    kind, group = step.text("dtype", "none").lower(), _group(step, "group_size")
    format_of_group = _QUARK.get(kind)
    if format_of_group is None or (kind.startswith("fp4") and group not in (0, 32)):
        return f"{key}: {kind} in groups of {group} is not supported"
    return format_of_group(group)


def _quark_cache(q: Section) -> Format | None:
    for _name, part in _parts(q, "kv_cache_quant_config"):
        fmt = _quark_format(part, "output_tensors")
        if isinstance(fmt, Format):
            return fmt
    return None


def _mlx(q: Section, _: Section) -> Stored:
    """Apple MLX: a 16-bit scale and bias per group, or a microscaling format; heads, routers and tables too."""

    def read_scheme(part: Section) -> Scheme:
        kind = part.choice("mode", ("affine", "mxfp4", "mxfp8", "nvfp4"), "affine")
        if kind != "affine":
            return scheme(NAMED[kind])
        return scheme(replace(integer(_bits(part, "bits"), group=_group(part, "group_size") or 64), zero_bits=16))

    main_scheme = read_scheme(q)
    rules = [Rule(main_scheme, ModuleNames.of(("*",)))]
    for name in q:
        if isinstance(q.get(name), Mapping):
            rules.append(Rule(read_scheme(q.section(name)), ModuleNames.of((name,))))
        elif q.get(name) is False:
            rules.append(Rule(None, ModuleNames.of((name,))))
    return Stored(rules=tuple(rules), tables=True)


def _hqq(q: Section, _: Section) -> Stored:
    """Half-quadratic quantization: a 16-bit scale and a 16-bit zero per group."""
    part = q.section("quant_config").section("weight_quant_params")
    fmt = replace(integer(_bits(part, "nbits"), group=_group(part, "group_size") or 64), zero_bits=16)
    rule = Rule(scheme(fmt, text=f"HQQ {fmt} weights"), towers=True)
    return Stored(rules=_excluding(q, rule, keys=("skip_modules", *_SKIPPED), matching=Matching.SKIPPED))


def _quanto(q: Section, _: Section) -> Stored:
    """Optimum Quanto: eight bits per row, fewer per group of 128 with a 16-bit scale and shift."""
    formats = {
        "int8": NAMED["int8"],
        "float8": _FP8,
        **{f"int{bits}": replace(integer(bits, group=128), zero_bits=16) for bits in (2, 4)},
    }
    fmt = formats[q.choice("weights", formats, "int8")]
    kind = q.choice("activations", ("int8", "float8"), "") if q.get("activations") else ""
    rule = Rule(scheme(fmt, formats[kind] if kind else None, text=f"Quanto {fmt} weights"), towers=True)
    return Stored(rules=_excluding(q, rule, keys=_SKIPPED, matching=Matching.SKIPPED))


def _eetq(q: Section, _: Section) -> Stored:
    q.choice("weights", ("int8",), "int8")
    rule = Rule(scheme(NAMED["int8"], text="EETQ int8 weights"), towers=True)
    return Stored(rules=_excluding(q, rule, keys=_SKIPPED, matching=Matching.SKIPPED))


def _aqlm(q: Section, _: Section) -> Stored:
    """Additive quantization (arXiv:2401.06118): codes of groups of weights; code books and scales are negligible."""
    group = q.integer("in_group_size", 8) * q.integer("out_group_size", 1)
    bits = q.integer("num_codebooks", 1) * q.integer("nbits_per_codebook", 16) / group
    rule = Rule(scheme(Format("aqlm", bits, "table"), text=f"AQLM weights of {bits:g} bits"))
    names = ("linear_weights_not_to_quantize",)
    return Stored(rules=_excluding(q, rule, keys=names, matching=Matching.MARKED))


def _torchao_int4(part: Section, group: int) -> Format:
    """A 16-bit scale and a 16-bit zero per group."""
    return replace(integer(4, group=part.integer("group_size", group)), zero_bits=16)


def _torchao_int8(part: Section) -> Format:
    return integer(8, group=part.integer("group_size", 0, least=0))


def _torchao_fp8(part: Section) -> Format:
    kinds = {"float8_e4m3fn": _FP8, "float8_e5m2": NAMED["fp8_e5m2"]}
    if part.get("weight_dtype") is None:
        return _FP8
    return kinds[part.section("weight_dtype").choice("_data", kinds)]


_TORCHAO: Final[Mapping[str, Callable[[Section], Scheme]]] = {  # by the names of its config classes
    "Int4WeightOnlyConfig": lambda part: scheme(_torchao_int4(part, 128)),
    "Int8WeightOnlyConfig": lambda part: scheme(_torchao_int8(part)),
    "Int8DynamicActivationInt8WeightConfig": lambda _: scheme(NAMED["int8"], NAMED["int8"]),
    "Int8DynamicActivationInt4WeightConfig": lambda part: scheme(
        integer(4, group=part.integer("group_size", 32)), NAMED["int8"]
    ),
    "Float8WeightOnlyConfig": lambda part: scheme(_torchao_fp8(part)),
    "Float8DynamicActivationFloat8WeightConfig": lambda part: scheme(_torchao_fp8(part), _FP8),
    "Float8DynamicActivationInt4WeightConfig": lambda part: scheme(_torchao_int4(part, 128), _FP8),
}
_TORCHAO_OLDER: Final = {  # texts of quant_type before transformers 5
    "int4_weight_only": "Int4WeightOnlyConfig",
    "int8_weight_only": "Int8WeightOnlyConfig",
    "int8_dynamic_activation_int8_weight": "Int8DynamicActivationInt8WeightConfig",
    "int8_dynamic_activation_int4_weight": "Int8DynamicActivationInt4WeightConfig",
    "float8_weight_only": "Float8WeightOnlyConfig",
    "float8_dynamic_activation_float8_weight": "Float8DynamicActivationFloat8WeightConfig",
}
_TORCHAO_BY_MODULE: Final = {"ModuleFqnToConfig": "module_fqn_to_config", "FqnToConfig": "fqn_to_config"}


def _torchao(q: Section, _: Section) -> Stored:
    """PyTorch's torchao: a config for all modules, or one for each name or expression, of which the name wins."""
    q.ignore("untie_embedding_weights")
    if isinstance(q.get("quant_type"), str):
        older = q.text("quant_type")
        kind, where = _TORCHAO_OLDER.get(older, older), f"{q.prefix}quant_type"
        part = _or_empty(q, "quant_type_kwargs")
    else:
        default = q.section("quant_type").section("default")
        kind, where = default.text("_type"), f"{default.prefix}_type"
        part = _or_empty(default, "_data")
    if kind in _TORCHAO_BY_MODULE:
        return _torchao_by_module(q, part.section(_TORCHAO_BY_MODULE[kind]))
    if kind not in _TORCHAO:
        return _torchao_unknown(q, where, kind)
    main_scheme = _TORCHAO[kind](part)
    rules = [Rule(main_scheme, towers=True)]
    if q.flag("include_input_output_embeddings", default=q.flag("include_embedding", default=False)):
        rules.append(Rule(main_scheme, ModuleNames.of(("lm_head",))))
    return Stored(rules=_excluding(q, *rules, keys=_SKIPPED, matching=Matching.SKIPPED))


def _or_empty(part: Section, key: str) -> Section:
    """The section of a key, empty where it is absent."""
    return part.section(key) if part.get(key) else part.empty(key)


def _torchao_by_module(q: Section, listed: Section) -> Stored:
    rules: list[Rule] = []
    for name in sorted(listed, key=lambda name: (name != "_default", not name.startswith("re:"))):
        names = None if name == "_default" else ModuleNames.of((name,), Matching.MARKED)
        if listed.get(name) is None and not isinstance(listed.data[name], Mapping):
            rules.append(Rule(None, names))
            continue
        entry = listed.section(name)
        kind = entry.text("_type")
        if kind not in _TORCHAO:
            return _torchao_unknown(q, f"{entry.prefix}_type", kind)
        rules.append(Rule(_TORCHAO[kind](_or_empty(entry, "_data")), names))
    return Stored(rules=_excluding(q, *rules, keys=_SKIPPED, matching=Matching.SKIPPED))


def _torchao_unknown(q: Section, where: str, kind: str) -> Stored:
    return Stored(unknown=f"{q.file}: {where} {kind!r} is not supported ({', '.join(sorted(_TORCHAO))})")


READERS: Final[Mapping[str, Callable[[Section, Section], Stored]]] = {
    "aqlm": _aqlm,
    "auto-round": _auto_round,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
    "eetq": _eetq,
    "fbgemm_fp8": _fbgemm,
    "fp8": _fp8,
    "gptq": _gptq,
    "hqq": _hqq,
    "mlx": _mlx,
    "modelopt": _modelopt,
    "mxfp4": _mxfp4,
    "quanto": _quanto,
    "quark": _quark,
    "torchao": _torchao,
}
