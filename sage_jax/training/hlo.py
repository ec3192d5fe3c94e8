"""Reads a compiled program's text: its multiplications, what its devices send each other, what they read and write.

XLA's own cost analysis counts the body of a loop once; here a body counts as often as its loop runs, which for a
model with scanned layers and micro-batches is nearly everything. All numbers are of one device.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Sequence

_BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8, "c64": 8, "c128": 16}
_SHAPE = re.compile(r"\b(pred|[subf]f?\d+|c64|c128)\[([\d,]*)\](\{[^}]*\})?")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*->.*\{$")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional", "call", "iota"}
_VIEWS = {"dynamic-slice", "slice", "gather"}


@dataclasses.dataclass(frozen=True)
class Shape:
    """One array of a program."""

    dtype: str
    sizes: tuple[int, ...]
    on_chip: bool = False

    @property
    def bytes(self) -> int:
        """Bytes without padding."""
        width = _BYTES.get(self.dtype) or int(re.sub(r"\D", "", self.dtype)) / 8
        return math.ceil(math.prod(self.sizes) * width)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a program."""

    name: str
    op: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    text: str

    @property
    def bytes(self) -> int:
        """Bytes of the result in main memory."""
        return sum(shape.bytes for shape in self.shapes if not shape.on_chip)


@dataclasses.dataclass(frozen=True)
class Collective:
    """All collectives of one kind over groups of one size.

    Attributes:
      kind: one of `COLLECTIVES`.
      group: devices that take part together.
      count: how often they run.
      sent: bytes one device sends in all, by the ring algorithm.
    """

    kind: str
    group: int
    count: int
    sent: int


@dataclasses.dataclass(frozen=True)
class Costs:
    """What one device does in one run of a program.

    Attributes:
      flops: of matrix products and convolutions; a multiplication and an addition are two.
      traffic: bytes read from and written to main memory, each array once per instruction.
      collectives: communication.
      unknown_loops: loops whose number of rounds the text does not tell.
      opaque: calls of kernels that the text does not show, by target; they count nothing.
    """

    flops: int
    traffic: int
    collectives: tuple[Collective, ...]
    unknown_loops: int
    opaque: tuple[str, ...]


def read_costs(text: str, *, unknown_rounds: Sequence[int] = (1,)) -> Costs:
    """Adds up a compiled program (`jax.stages.Compiled.as_text()`).

    Args:
      text: the program.
      unknown_rounds: how often loops count whose end depends on values: the outer ones, those inside them, and so on;
        the last number holds for all that lie deeper.
    """
    program = _Program(text, unknown_rounds)
    flops = traffic = 0
    groups: dict[tuple[str, int], list[int]] = collections.defaultdict(lambda: [0, 0])
    opaque: set[str] = set()
    for name, (times, fused) in program.runs.items():
        for instruction in program.computations[name].values():
            flops += times * program.flops(name, instruction)
            traffic += 0 if fused else times * program.traffic(name, instruction)
            kind = instruction.op.removesuffix("-start")
            if kind in COLLECTIVES:
                if kind == "all-reduce" and name.startswith("all-reduce-scatter"):
                    kind = "reduce-scatter"
                size = _group_size(instruction.text, program.devices)
                total = groups[kind, size]
                total[0] += times
                total[1] += times * _sent(kind, size, _payload(kind, instruction, program.computations[name]))
            elif instruction.op == "custom-call":
                target = re.search(r'custom_call_target="([^"]+)"', instruction.text)
                if target and target[1] in ("tpu_custom_call", "Mosaic", "__cudnn$fmhaSoftmax"):
                    opaque.add(target[1])
    collectives = tuple(Collective(*key, *total) for key, total in sorted(groups.items()) if key[1] > 1)
    return Costs(flops, traffic, collectives, program.unknown_loops, tuple(sorted(opaque)))


class _Program:
    """A parsed program."""

    def __init__(self, text: str, unknown_rounds: Sequence[int]):
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.unknown_loops, self._unknown_rounds = 0, unknown_rounds
        entry, current = "", {}
        for line in text.splitlines():
            if match := _COMPUTATION.match(line):
                current = self.computations[match[2]] = {}
                entry = match[2] if match[1] else entry
            elif match := _INSTRUCTION.match(line):
                current[match[1]] = _instruction(match)
        partitions = re.search(r"num_partitions=(\d+)", text)
        self.devices = int(partitions[1]) if partitions else 1
        # How often each computation runs, and whether as a part of one fused instruction.
        self.runs: dict[str, tuple[int, bool]] = {}
        self._count(entry, 1, False, 0)

    def _count(self, name: str, times: int, fused: bool, depth: int) -> None:
        earlier = self.runs.get(name, (0, True))
        self.runs[name] = earlier[0] + times, earlier[1] and fused
        for instruction in self.computations[name].values():
            rounds, below = times, depth
            if instruction.op == "while":
                known = self._rounds(instruction)
                if known is None:
                    self.unknown_loops += 1
                    known, below = self._unknown_rounds[min(depth, len(self._unknown_rounds) - 1)], depth + 1
                rounds *= known
            inner = fused or instruction.op not in ("while", "conditional", "call", "async-start")
            for called in _called(instruction.text):
                if called in self.computations:
                    self._count(called, rounds, inner, below)

    def _rounds(self, loop: Instruction) -> int | None:
        """Returns how often a loop runs: told by XLA, or by the constant that its counter is compared with."""
        if match := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.text):
            return int(match[1])
        condition = re.search(r"condition=%?([\w.\-]+)", loop.text)
        for name, instruction in self._reachable(condition[1] if condition else ""):
            if instruction.op == "compare" and "direction=LT" in instruction.text:
                for operand in instruction.operands:
                    known = self.computations[name].get(operand)
                    if known and known.op == "constant" and (value := re.match(r".*constant\((\d+)\)", known.text)):
                        return int(value[1])
        return None

    def _reachable(self, name: str) -> Iterator[tuple[str, Instruction]]:
        for instruction in self.computations.get(name, {}).values():
            yield name, instruction
            for called in _called(instruction.text):
                yield from self._reachable(called)

    def flops(self, name: str, instruction: Instruction) -> int:
        """Returns the multiplications and additions of a matrix product or convolution; 0 for all else."""
        if instruction.op not in ("dot", "convolution"):
            return 0
        operands = [self.computations[name][operand].shapes[0].sizes for operand in instruction.operands[:2]]
        out = instruction.shapes[0].sizes
        if instruction.op == "dot":
            match = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.text)
            inner = [operands[0][int(axis)] for axis in match[1].split(",")] if match and match[1] else []
            return 2 * math.prod(out) * math.prod(inner)
        return _convolution_flops(instruction.text, operands, out)

    def traffic(self, name: str, instruction: Instruction) -> int:
        """Returns the bytes an instruction reads and writes; a slice of an array counts as the slice."""
        if instruction.op in _FREE or instruction.op.endswith("-done"):
            return 0
        known = self.computations[name]
        if instruction.op in _VIEWS:
            return 2 * instruction.bytes
        if instruction.op == "dynamic-update-slice":
            return 2 * known[instruction.operands[1]].bytes
        read = [known[operand].bytes for operand in instruction.operands if operand in known]
        written = instruction.bytes
        if instruction.op == "fusion":
            inner = self.computations.get(next(iter(_called(instruction.text)), ""), {})
            limits = _read_by(inner)
            read = [min(size, limits.get(place, size)) for place, size in enumerate(read)]
            updates = [
                inner[part.operands[1]].bytes
                for part in inner.values()
                if part.op == "dynamic-update-slice" and part.operands[1] in inner
            ]
            if updates:
                # Written in place: the rest of the array is not touched.
                written = min(written, 2 * sum(updates))
        return sum(read) + written


def _instruction(match: re.Match) -> Instruction:
    name, result, op, rest = match.groups()
    depth, end = 1, len(rest)
    for place, letter in enumerate(rest):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            end = place
            break
    operands = tuple(re.findall(r"%([\w.\-]+)", rest[:end]))
    return Instruction(name, op, _shapes(result), operands, match[0])


@functools.lru_cache(maxsize=4096)
def _shapes(text: str) -> tuple[Shape, ...]:
    return tuple(
        Shape(dtype, tuple(int(size) for size in sizes.split(",") if size), "S(1)" in layout)
        for dtype, sizes, layout in _SHAPE.findall(text)
    )


def _called(text: str) -> list[str]:
    """Names the computations an instruction runs, without the scalar functions of reductions and sorts."""
    if re.search(
        r" (?:all-reduce(?:-start)?|reduce-scatter|reduce|reduce-window|sort|scatter|select-and-scatter)\(", text
    ):
        return []
    names = _CALLED.findall(text)
    for group in _BRANCHES.findall(text):
        names += [name.strip().lstrip("%") for name in group.split(",")]
    return names


def _read_by(inner: dict[str, Instruction]) -> dict[int, int]:
    """Returns the bytes that a fusion reads of each operand it only slices or only updates in place."""
    limits = {}
    for parameter in inner.values():
        if parameter.op != "parameter":
            continue
        place = re.search(r"parameter\((\d+)\)", parameter.text)
        users = [user for user in inner.values() if parameter.name in user.operands]
        if place and users and all(user.op in _VIEWS and user.operands[0] == parameter.name for user in users):
            limits[int(place[1])] = sum(user.bytes or user.shapes[0].bytes for user in users)
        elif (
            place
            and users
            and all(user.op == "dynamic-update-slice" and user.operands[0] == parameter.name for user in users)
        ):
            limits[int(place[1])] = 0
    return limits


def _payload(kind: str, instruction: Instruction, known: dict[str, Instruction]) -> int:
    """Returns the bytes of the larger side: the gathered, or the not yet scattered array."""
    out = [shape.bytes for shape in instruction.shapes]
    if instruction.op.endswith("-start") and kind in ("all-gather", "collective-permute"):
        return max(out)
    given = sum(shape.bytes for operand in instruction.operands if operand in known for shape in known[operand].shapes)
    return max(sum(out), given) if kind in ("all-gather", "reduce-scatter") else sum(out)


def _sent(kind: str, group: int, payload: int) -> int:
    """Returns the bytes one device sends: a ring passes each piece through all others, an all-reduce does so twice."""
    if kind == "collective-permute":
        return payload
    return (2 if kind == "all-reduce" else 1) * payload * (group - 1) // max(group, 1)


def _group_size(text: str, devices: int) -> int:
    """Reads how many devices take part together."""
    if "source_target_pairs=" in text:
        return devices
    if match := re.search(r"replica_groups=\{\{([\d,]*)\}", text):
        return len(match[1].split(","))
    if match := re.search(r"replica_groups=\[\d+,(\d+)\]", text):
        return int(match[1])
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", text):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", match[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", match[2]))
    return devices


def _convolution_flops(text: str, operands: list[tuple[int, ...]], out: tuple[int, ...]) -> int:
    """Counts as XLA's cost analysis does: only kernel places that meet an input that is no padding."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", text)
    if not labels:
        return 0
    lhs, rhs, result = (
        dict(zip(names, sizes, strict=True)) for names, sizes in zip(labels.groups(), [*operands, out], strict=True)
    )
    window = dict(re.findall(r"(size|stride|pad|lhs_dilate|rhs_dilate)=([\dx_\-]+)", text))
    spatial = [axis for axis in labels[1] if axis.isdigit()]
    places = 1
    for axis in spatial:
        number = int(axis)
        take = functools.partial(_window_value, window, number)
        places *= _valid_places(
            lhs[axis],
            rhs[axis],
            result[axis],
            take("stride", 1),
            take("lhs_dilate", 1),
            take("rhs_dilate", 1),
            int(window["pad"].split("x")[number].split("_")[0]) if "pad" in window else 0,
        )
    return 2 * places * rhs["i"] * result["b"] * result["f"]


def _window_value(window: dict[str, str], axis: int, key: str, default: int) -> int:
    return int(window[key].split("x")[axis]) if key in window else default


def _valid_places(size: int, kernel: int, out: int, stride: int, spread: int, dilation: int, pad: int) -> int:
    """Counts pairs of output and kernel places that read an input value and not padding or a hole."""
    if stride == spread == dilation == 1 and not pad and out + kernel - 1 <= size:
        return out * kernel
    found = 0
    for place in range(out):
        for tap in range(kernel):
            at = place * stride + tap * dilation - pad
            found += at % spread == 0 and 0 <= at // spread < size
    return found
