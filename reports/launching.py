"""The command that starts a server, for reports."""

from __future__ import annotations

import shlex

from llmviewer.errors import InputError
from llmviewer.server_memory import Capacity, capacity
from llmviewer.serving.launch_commands import (
    LaunchCommand,
    launch_command,
    launched_setting,
    parse_emit,
    server_engines,
)
from llmviewer.setting import Setting

from .parts import Command


def server_commands(setting: Setting, *, sequences: int, tokens: int, changes: str = "") -> list[Command]:
    """The launch command of the engine of a setting, which has `changes`; none without such an engine."""
    if setting.engine is None or setting.engine.name not in server_engines():
        return []
    command = launch_command(setting, sequences=sequences, tokens=tokens)
    return [_shown(command, f"with {changes}: {setting.engine.title}" if changes else setting.engine.title)]


def launched_capacity(setting: Setting, *, sequences: int, tokens: int) -> Capacity | None:
    """Capacity of the server that the command of server_commands() starts; None if there is none."""
    if setting.engine is None or setting.engine.name not in server_engines():
        return None
    return capacity(launched_setting(setting, sequences=sequences, tokens=tokens), tokens)


def _shown(command: LaunchCommand, title: str) -> Command:
    server = command.server
    options = [shlex.join(filter(None, (one.name, one.value))) for one in command.options if one.name.startswith("-")]
    notes = [*(f"{name}: {about}" for name, about in command.placeholders.items())]
    notes += [f"no option for {part}" for part in command.unsupported]
    notes += [f"with its file: --emit {server.engine}"] if command.config else []
    details = f" ({'; '.join(notes)})" if notes else ""
    purpose = f"Server ({title} {server.versions}){details}; --emit {server.engine} gives the reason for each option:"
    return Command(purpose=purpose, words=[shlex.join(command.program), *options])


def emitted(setting: Setting, emit: str, *, sequences: int, tokens: int) -> str:
    """The launch command that `emit` names, ENGINE or ENGINE:FORM.

    Raises InputError if the engine is not that of the setting, or has no such command.
    """
    engine, form = parse_emit(emit)
    if setting.engine and setting.engine.name != engine:
        raise InputError(f"emit must be a command of the engine, {setting.engine.name}; got {emit!r}")
    return launch_command(setting, sequences=sequences, tokens=tokens, engine=engine).written(form)
