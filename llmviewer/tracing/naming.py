"""Names within a block: of its launches by module, of its tensors by the launch that writes them."""

from __future__ import annotations

from collections import Counter
from typing import Final

from ..records import frozen
from .program import Program, TracedLaunch
from .segments import Segment

HIDDEN: Final = "hidden"  # what a block reads of the one before it
MODULE_INPUT: Final = "input"  # what it reads of what the module takes
SHARED: Final = "shared"  # what several blocks read that is made of parameters alone


@frozen
class SegmentNames:
    """The names in a segment.

    input     the tensor that it reads of the segment before it, or of what the module takes; "" where it reads neither
    output    the tensor that it leaves to the next
    internal  values that it makes and nothing else reads
    """

    of_launch: dict[TracedLaunch, str]
    of_value: dict[int, str]
    input: str
    output: str
    internal: frozenset[int]

    @classmethod
    def of(cls, program: Program, segment: Segment, shared: int) -> SegmentNames:
        """Shared  the value that several segments read, or -1

        Raises InputError where the segment leaves nothing, or more than one tensor.
        """
        name_counts: Counter[str] = Counter()
        of_launch: dict[TracedLaunch, str] = {}
        of_value: dict[int, str] = {}
        for launch in segment.launches:
            name = _launch_name(program, segment.layer, launch)
            name_counts[name] += 1
            of_launch[launch] = name if name_counts[name] == 1 else f"{name}.{name_counts[name]}"
            of_value |= _tensor_names(program, launch, of_launch[launch])
        of_value |= {v: SHARED for v in (shared, segment.shared) if v >= 0}
        inside = {index for launch in segment.launches for index in launch.calls}
        outliving_values = program.outlives
        internal = (v for v in of_value if v not in outliving_values and set(program.readers.get(v, ())) <= inside)
        interface = _input_name(program, segment, of_value), _output_name(program, inside, of_value)
        return cls(of_launch, of_value, *interface, frozenset(internal))

    def tensor(self, value: int) -> str:
        return self.of_value.get(value, self.input)


def _launch_name(program: Program, layer: str, launch: TracedLaunch) -> str:
    """A launch by its module; a fused one also by "softmax" if it has one, else by its last call."""
    *_, last = launch.calls
    module_name = program.calls[last].path[len(layer) :].strip(".") or "layer"
    if program.is_product(last):
        return module_name
    names = [program.calls[index].name.strip("_") for index in launch.calls]
    return f"{module_name}.softmax" if any(name.endswith("softmax") for name in names) else f"{module_name}.{names[-1]}"


def _tensor_names(program: Program, launch: TracedLaunch, name: str) -> dict[int, str]:
    """Names of the states that a launch reads or writes, and of what else it writes."""
    outputs = program.outputs_of(launch)
    states = [v for v in (*program.inputs_of(launch), *outputs) if v in program.states]
    places = sorted({program.states[v] for v in states})
    names = {v: f"{name}.state{places.index(program.states[v]) + 1}" for v in states}
    others = [v for v in outputs if v not in program.states]
    for n, value in enumerate(others, start=1):
        suffix = ".cache" if value in program.cached else ""
        names[value] = name + suffix + (f".out{n}" if len(others) > 1 else "")
    return names


def _input_name(program: Program, segment: Segment, names: dict[int, str]) -> str:
    read = {v for launch in segment.launches for v in program.inputs_of(launch) if program.values[v].moves}
    before = read - names.keys()
    if any(program.values[v].source == "input" for v in before):
        return MODULE_INPUT
    return HIDDEN if before else ""


def _output_name(program: Program, inside: set[int], names: dict[int, str]) -> str:
    def leaves(value: int) -> bool:
        if program.writer.get(value) not in inside or value in program.states:
            return False
        outer_readers = set(program.readers.get(value, ())) - inside and value not in program.cached
        return value == program.logits or bool(outer_readers)

    outputs = [name for value, name in names.items() if leaves(value)]
    if len(outputs) != 1:
        raise program.error(
            program.calls[min(inside)], f"begins a part that leaves {len(outputs)} tensors; must be one"
        )
    return outputs[0]
