"""Commands that start a server of an engine as a setting describes it, each option with its reason.

Options are data, engines/commands/: those that a command may have, by the engine's documentation, and the techniques
that an engine runs with theirs.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from .._layout import data_dir
from ..documents import read_yaml
from ..errors import InputError, suggest
from ..expectation.engines import Engine, find_engine
from ..model import Model
from ..records import frozen
from ..setting import Setting
from ..techniques import Technique
from ..transforms.host import is_second_gpu
from ..transforms.offload import ON_DEVICE
from .policy import parse_policy

SHELL, COMPOSE, KUBERNETES = "shell", "compose", "kubernetes"
FORMS: Final = (SHELL, COMPOSE, KUBERNETES)
_HEAD: Final = "EAGLE_HEAD"  # of placeholders in commands
_GGUF: Final = "GGUF_REPOSITORY"
_FILE: Final = "config.yaml"
_EAGLE_3: Final = 3
_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {"integer": int, "number": float, "json": json.loads}
_LENGTHS: Final = frozenset({"max_model_len", "all_tokens"})  # quantities of options that set the longest request
_NUMBERS: Final = frozenset({"max_num_seqs", "all_seqs"})  # and the running sequences
_CACHE: Final = "kv_cache"  # the format of the cache
_WEIGHTS: Final = "weights"  # the quantity that is a property of a checkpoint where no option sets it


@frozen(kw_only=True)
class ServerFlag:
    """An option that a command may have.

    kind     "integer", "number", "text", "json" or "flag", which has no value
    fact     quantity of the setting that it takes; "" if a technique sets it
    unless   value with which it is left out
    choices  values that the engine accepts; empty: any of its kind
    values   the engine's names of values
    reason   what it does, in words
    """

    name: str
    kind: str
    fact: str = ""
    unless: Any = None
    choices: tuple[str, ...] = ()
    values: Mapping[str, str]
    reason: str

    def accepts(self, value: str) -> bool:
        """Whether the engine's parser accepts a value."""
        if self.choices:
            return value in self.choices
        try:
            _PARSERS.get(self.kind, str)(value)
        except ValueError:
            return False
        return (self.kind == "flag") == (not value)


@frozen(kw_only=True)
class ServerProgram:
    """The server of an engine: its program and the options that its documentation has.

    versions    versions with these options
    image       container image; "": none
    entrypoint  words of the program that the image runs by itself
    config      option that takes a file of the options whose names have no dashes; "": none
    techniques  options of each technique that the engine runs, by name; values name parameters of the technique
    """

    engine: str
    versions: str
    sources: tuple[str, ...]
    image: str
    port: int
    program: tuple[str, ...]
    entrypoint: int
    config: str
    flags: Mapping[str, ServerFlag]
    techniques: Mapping[str, Mapping[str, Any]]


@frozen(kw_only=True)
class LaunchOption:
    """An option of a command: its value ("" for a flag) and the reason for it."""

    name: str
    value: str
    reason: str


@frozen(kw_only=True)
class LaunchCommand:
    """The command that starts a server, with the reason for each option.

    placeholders  words of the command that must be replaced, with their meaning
    unsupported   parts of the setting for which there is no option
    """

    server: ServerProgram
    devices: int
    program: tuple[str, ...]
    options: tuple[LaunchOption, ...]
    placeholders: Mapping[str, str]
    unsupported: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """Words of the command."""
        typed = [option for option in self.options if option.name.startswith("-")]
        return (*self.program, *(word for option in typed for word in (option.name, option.value) if word))

    @property
    def config(self) -> str:
        """The configuration file that the command names, as YAML; "" if it needs none."""
        import yaml

        document: dict[str, Any] = {}
        for option in self.options:
            if not option.name.startswith("-"):
                *path, key = option.name.split(".")
                section = document
                for name in path:
                    section = section.setdefault(name, {})
                section[key] = _typed_value(self.server.flags[option.name].kind, option.value)
        return yaml.safe_dump(document, sort_keys=False) if document else ""

    @property
    def shell(self) -> str:
        """The command for a shell, an option a line."""
        head = f"cat > {_FILE} <<'END'\n{self.config}END\n" if self.config else ""
        lines = [shlex.join(self.program)]
        lines += [shlex.join(filter(None, (o.name, o.value))) for o in self.options if o.name.startswith("-")]
        return head + " \\\n  ".join(lines) + "\n"

    def written(self, form: str) -> str:
        """The command in one of FORMS, with remarks as comments.

        Raises InputError if the engine has no container image.
        """
        import yaml

        notes = [f"{self.server.engine} {self.server.versions}, {self.server.sources[0]}"]
        notes += [f"{f'{one.name} {one.value}'.strip()}: {one.reason}" for one in self.options]
        notes += [f"{name}: {meaning}" for name, meaning in self.placeholders.items()]
        notes += [f"No option for {part}." for part in self.unsupported]
        comments = "".join(f"# {note}\n" for note in notes)
        if form == SHELL:
            return comments + self.shell
        if not self.server.image:
            raise InputError(f"emit: {self.server.engine} has no container image; use {self.server.engine}")
        document = self._compose() if form == COMPOSE else self._kubernetes()
        return comments + yaml.safe_dump_all(document, sort_keys=False, width=120)

    def _compose(self) -> list[dict[str, Any]]:
        server = self.server
        service: dict[str, Any] = {
            "image": server.image, **self._container_command("entrypoint", "command"),
            "ports": [f"{server.port}:{server.port}"], "ipc": "host",
            "volumes": ["~/.cache/huggingface:/root/.cache/huggingface"],
            "environment": {"HF_TOKEN": "${HF_TOKEN:-}"},
            "deploy": {"resources": {"reservations": {"devices": [
                {"driver": "nvidia", "count": self.devices, "capabilities": ["gpu"]}
            ]}}},
        }  # fmt: skip
        return [{"services": {server.engine.replace(".", "-"): service}}]

    def _kubernetes(self) -> list[dict[str, Any]]:
        server, name = self.server, self.server.engine.replace(".", "-")
        container: dict[str, Any] = {
            "name": name, "image": server.image, **self._container_command("command", "args"),
            "ports": [{"containerPort": server.port}],
            "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {
                "name": "hf-token", "key": "token", "optional": True,
            }}}],
            "resources": {"limits": {"nvidia.com/gpu": self.devices}},
            "readinessProbe": {"httpGet": {"path": "/health", "port": server.port}, "failureThreshold": 120},
            "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108
        }  # fmt: skip
        pod = {"containers": [container], "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]}
        deployment = {
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}},
                     "template": {"metadata": {"labels": {"app": name}}, "spec": pod}},
        }  # fmt: skip
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"selector": {"app": name}, "ports": [{"port": server.port, "targetPort": server.port}]},
        }
        return [deployment, service]

    def _container_command(self, program: str, arguments: str) -> dict[str, Any]:
        """Program and arguments of a container that listens on all interfaces."""
        words = [*self.words, "--host", "0.0.0.0"]  # noqa: S104  # of a container
        if self.config:
            script = f"cat > {_FILE} <<'END'\n{self.config}END\nexec {shlex.join(words)}\n"
            return {program: ["sh", "-c"], arguments: [script]}
        if self.server.entrypoint:
            return {arguments: words[self.server.entrypoint :]}
        return {program: words[:1], arguments: words[1:]}


@cache
def server_program(engine: str) -> ServerProgram:
    """The server of an engine.

    Raises InputError if none is known.
    """
    if engine not in server_engines():
        raise InputError(f"no launch command of {engine} is known; {suggest(engine, server_engines())}")
    file = read_yaml(_folder() / f"{engine}.yaml")
    options = file.section("options")
    flags = {}
    for name in options:
        part = options.section(name)
        part.only(("type", "fact", "unless", "choices", "values", "why"))
        values = part.section("values").data if part.has("values") else {}
        flags[name] = ServerFlag(
            name=name, kind=part.choice("type", ("integer", "number", "text", "json", "flag")),
            fact=part.text("fact", ""), unless=part.get("unless"), choices=part.texts("choices"), values=values,
            reason=part.text("why"),
        )  # fmt: skip
    return ServerProgram(
        engine=engine, versions=str(file.get("versions")), sources=file.texts("sources"), image=file.text("image", ""),
        port=file.integer("port"), program=file.texts("program"), entrypoint=file.integer("entrypoint", 0, least=0),
        config=file.text("config", ""), flags=flags, techniques=file.section("techniques").data,
    )  # fmt: skip


@cache
def server_engines() -> tuple[str, ...]:
    """Names of engines whose launch commands are known."""
    return tuple(sorted(path.stem for path in _folder().glob("*.yaml")))


def deployed_techniques(engine: str = "") -> frozenset[str]:
    """Names of techniques that an engine runs; without one, or without its command, those that any engine runs."""
    engines = (engine,) if engine in server_engines() else server_engines()
    return frozenset(name for one in engines for name in server_program(one).techniques)


def parse_emit(text: str) -> tuple[str, str]:
    """Engine and form of "ENGINE" or "ENGINE:FORM".

    Raises InputError if either is unknown.
    """
    engine, _, form = text.partition(":")
    server_program(engine)
    if form and form not in FORMS:
        raise InputError(f"emit must be ENGINE or ENGINE:FORM, with a form of {', '.join(FORMS)}; got {text!r}")
    return engine, form or SHELL


def launch_command(setting: Setting, *, sequences: int, tokens: int, engine: str = "") -> LaunchCommand:
    """The command of a server that runs a setting.

    sequences  running sequences of a replica, on all of its ranks together
    tokens     longest request, prompt and output
    engine     engine whose command it is; "": that of the setting

    Raises InputError if no command of the engine is known.
    """
    server = server_program(engine or (setting.engine.name if setting.engine else ""))
    facts = _CommandFacts.of(setting, server.engine, sequences=sequences, tokens=tokens)
    options, unsupported = [], []
    for flag in server.flags.values():
        value = facts.value(flag.fact)
        if value is None or value is False or value == flag.unless:
            continue
        text = "" if flag.kind == "flag" else flag.values.get(str(value), str(value))
        if flag.accepts(text):
            options.append(LaunchOption(name=flag.name, value=text, reason=flag.reason))
        elif flag.choices and flag.fact != _WEIGHTS:
            unsupported.append(f"{value} ({flag.reason})")
    for technique in setting.techniques:
        if technique.name not in server.techniques:
            unsupported.append(f"--with {technique}")
            continue
        for name, template in server.techniques[technique.name].items():
            filled = _filled(template, facts.of_technique(technique))
            options.append(LaunchOption(name=name, value=filled, reason=server.flags[name].reason))
    if server.config and any(not option.name.startswith("-") for option in options):
        options.append(LaunchOption(name=server.config, value=_FILE, reason=server.flags[server.config].reason))
    program = tuple(word.format_map(facts.names) for word in server.program)
    flag_facts = {flag.fact for flag in server.flags.values()}
    typed_weights = any(server.flags[option.name].fact == _WEIGHTS for option in options)
    if (weights := facts.value(_WEIGHTS)) and not typed_weights:
        unsupported.append(f"weights in {weights}: the model must be a checkpoint in that format")
    if (cache := facts.value(_CACHE)) and _CACHE not in flag_facts:
        unsupported.append(f"a KV cache in {cache}: the server keeps it as the model computes it")
    unsupported += [
        f"{name}={value}" for name in ("pp", "cp") if name not in flag_facts and (value := facts.value(name)) > 1
    ]
    unsupported += [
        f"--{name.replace('_', '-')}"
        for name in ("two_batch_overlap", "batch_sharded_attention")
        if name not in flag_facts and facts.value(name)
    ]
    if setting.offload != ON_DEVICE and "gpu_layers" not in flag_facts:
        unsupported.append(f"--offload {setting.offload}")
    moves_parts = setting.placement.attention or (is_second_gpu(setting.host) and setting.placement.experts)
    if moves_parts or (setting.host and "cpu_moe_layers" not in flag_facts):
        unsupported.append(f"--on-host {setting.placement}")
    text = " ".join((*program, *(option.value for option in options)))
    return LaunchCommand(
        server=server, devices=setting.layout.devices, program=program, options=tuple(options),
        placeholders={name: about for name, about in facts.placeholders.items() if name in text},
        unsupported=tuple(unsupported),
    )  # fmt: skip


def launched_setting(setting: Setting, *, sequences: int, tokens: int) -> Setting:
    """A setting whose engine has the server options that launch_command() gives it.

    Raises InputError if no command of the engine is known.
    """
    assert setting.engine
    facts = {flag.fact for flag in server_program(setting.engine.name).flags.values()}
    options = setting.engine.options
    length, running = _request_limits(setting, setting.engine, sequences, tokens)
    options = replace(
        options, max_model_len=length if facts & _LENGTHS else options.max_model_len,
        max_num_seqs=running if facts & _NUMBERS else options.max_num_seqs,
    )  # fmt: skip
    return replace(setting, engine=replace(setting.engine, options=options))


def _request_limits(setting: Setting, engine: Engine, sequences: int, tokens: int) -> tuple[int, int]:
    """(tokens of the longest request, running sequences of a rank) of a command: as given, or as many as needed."""
    options, scheduler = engine.options, engine.default_on(setting.hardware)
    per_rank = -(-sequences // setting.layout.dp)
    running = options.max_num_seqs or min(per_rank, scheduler.max_batch or per_rank)
    return options.max_model_len or tokens, running


@frozen(kw_only=True)
class _CommandFacts:
    """Quantities of a setting by the names that files of commands use."""

    values: Mapping[str, Any]
    names: Mapping[str, str]
    placeholders: Mapping[str, str]

    @classmethod
    def of(cls, setting: Setting, engine: str, *, sequences: int, tokens: int) -> Self:
        layout, quantization = setting.layout, setting.quantization
        runs = setting.engine if setting.engine and setting.engine.name == engine else find_engine(engine)
        options, scheduler = runs.options, runs.default_on(setting.hardware)
        policy = parse_policy(scheduler.policy)
        ranks = layout.tp * layout.dp
        repository = _repository(setting.model)
        cache = quantization.scheme.kv_cache
        mixture = quantization.mixture.name if quantization.mixture else ""
        length, running = _request_limits(setting, runs, sequences, tokens)
        second_gpu = is_second_gpu(setting.host)
        values = {
            "tp": layout.tp, "pp": layout.pp, "dp": layout.dp, "cp": layout.cp, "ep": layout.ep, "ranks": ranks,
            "expert_parallel": layout.ep > 1, "data_parallel": layout.dp > 1,
            "experts_kernel": options.experts_kernel or None,
            "redundant_experts": layout.redundant_experts, "balanced_experts": layout.redundant_experts > 0,
            "two_batch_overlap": layout.two_batch_overlap,
            "batch_sharded_attention": layout.batch_sharded_attention,
            _WEIGHTS: None if mixture else cls._weights_text(setting),
            _CACHE: cache.name if cache else None, "max_model_len": length, "max_num_seqs": running,
            "all_seqs": running * layout.dp, "all_tokens": running * length,
            "max_num_batched_tokens": policy.budget if ":" in scheduler.policy else None,
            "chunked_prefill": policy.cuts or any(one.name == "chunked-prefill" for one in setting.techniques),
            "memory_fraction": options.memory_fraction or (runs.memory.fraction if runs.memory else None),
            "prefix_caching": any(one.name == "prefix-cache" for one in setting.techniques),
            "gpu_layers": cls._gpu_layers(setting),
            "cpu_moe_layers": (not second_gpu and min(setting.placement.experts, setting.model.graph.layers)) or None,
            "split": "row" if layout.tp > 1 else "layer" if layout.pp > 1 or second_gpu else None,
            "layers_by_gpu": cls._layers_by_gpu(setting) if second_gpu else None,
        }  # fmt: skip
        gguf = f"{_GGUF}:{mixture}" if mixture else _GGUF
        return cls(
            values=values, names={"model": repository, "gguf": gguf},
            placeholders={
                _HEAD: f"repository of an EAGLE head for {repository}",
                _GGUF: f"repository with GGUF files of {repository}",
            },
        )  # fmt: skip

    @staticmethod
    def _gpu_layers(setting: Setting) -> str:
        """Layers on the GPU: those that the host does not compute, and the head; "" without a GPU."""
        if setting.hardware.kind == "cpu":
            return ""
        count = setting.model.graph.layers
        if setting.placement.layers and not is_second_gpu(setting.host):
            return str(max(count - setting.placement.layers, 0) + 1)
        return "all" if setting.offload.weights == 0 else "auto"

    @staticmethod
    def _layers_by_gpu(setting: Setting) -> str:
        """Layers of the second GPU, which has the first of them, and of the device, which has the head too."""
        first = min(setting.placement.layers, setting.model.graph.layers)
        return f"{first},{setting.model.graph.layers - first + 1}"

    @staticmethod
    def _weights_text(setting: Setting) -> str | None:
        """The precision of weights and activations if it is not the published one, as engines name it."""
        scheme = setting.quantization.scheme
        if scheme.weight is None:
            return None
        published = setting.model.quantization.scheme.weight
        if published and published.name == scheme.weight.name:
            return None
        operands = {fmt.name if fmt else "" for fmt in (scheme.weight, scheme.activation)}
        return "fp8" if operands == {"fp8_e4m3"} else scheme.weight.name

    def value(self, fact: str) -> Any:
        """The value of a quantity; None if the setting has none."""
        return self.values.get(fact)

    @staticmethod
    def of_technique(technique: Technique) -> dict[str, str]:
        """Parameters of a technique that options name."""
        depth, proposed = getattr(technique, "depth", 0), getattr(technique, "proposed", 0)
        if not depth:
            return {}
        eagle = "eagle3" if getattr(technique, "version", 0) == _EAGLE_3 else "eagle"
        draft = getattr(technique, "model", None)
        return {
            "depth": str(depth), "verified": str(proposed + 1), "topk": str(-(-proposed // depth)), "eagle": eagle,
            "EAGLE": eagle.upper(), "eagle_head": _HEAD, "draft": _repository(draft) if draft else "",
        }  # fmt: skip


def _repository(model: Model) -> str:
    """The repository of a model on the Hugging Face hub, or its name."""
    repository = model.source.partition(" ")[0]
    return repository if "/" in repository else model.name


def _filled(template: Any, names: Mapping[str, str]) -> str:
    """A value of an option of a technique; JSON for a mapping, in which numbers are numbers."""
    if not isinstance(template, Mapping):
        return str(template).format_map(names)
    filled = {key: str(value).format_map(names) for key, value in template.items()}
    return json.dumps({key: int(value) if value.isdecimal() else value for key, value in filled.items()})


def _typed_value(kind: str, value: str) -> Any:
    """A value of a configuration file."""
    if kind == "flag":
        return True
    return int(value) if kind == "integer" else float(value) if kind == "number" else value


def _folder() -> Path:
    return data_dir("engines") / "commands"
