"""Calls of the functions that the driver links into a kernel: vprintf and __assertfail.

`vprintf(format, arguments)` prints as C's printf does, its arguments lying one after the other in
the thread's memory, each of its natural alignment. `__assertfail(message, file, line, function,
size)` ends the thread with a finding. A thread's text appears at once; threads print in ascending
order.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import numpy as np

from tiledsl.targets.gpu.emulator.program import End, Instruction, InstructionClass, Step
from tiledsl.targets.nvptx.emulator.machine import Machine
from tiledsl.targets.nvptx.emulator.memory import load_words
from tiledsl.targets.nvptx.emulator.opcodes import Ending, Opcode, Options, Place, Table, unknown
from tiledsl.targets.nvptx.emulator.operands import Context
from tiledsl.targets.nvptx.emulator.text import Parsed, Symbol, Vector

_LONGEST = 1 << 16
"""Bytes after which a string without an end is cut."""


class _Thread:
    """What one thread passes to a call: its parameters, and the memory they point to."""

    def __init__(self, machine: Machine, who: Instruction, thread: int) -> None:
        self._machine = machine
        self._who = who
        self._lanes = np.array([thread], np.intp)

    def read(self, address: int, size: int, space: str = "generic") -> int:
        """Return an integer of the thread's memory."""
        load = load_words(space, size, 1)
        place = np.array([address], np.uint64)
        return int(load(self._machine, self._who, self._lanes, place)[0])

    def string(self, address: int) -> str:
        """Return a string that ends with a zero byte."""
        found = bytearray()
        while len(found) < _LONGEST and (byte := self.read(address + len(found), 1)):
            found.append(byte)
        return found.decode(errors="replace")


_SPECIFICATION = re.compile(
    r"%(?:%|(?P<flags>[-+ #0]*)(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d+))?"
    r"(?P<length>hh|h|ll|l|j|z|t|L)?(?P<kind>[diouxXeEfFgGaAcsp]))"
)


class _Arguments:
    """The packed variadic arguments of one print."""

    def __init__(self, thread: _Thread, address: int) -> None:
        self._thread = thread
        self._address = address
        self._offset = 0

    def _next(self, size: int) -> int:
        self._offset = -(-self._offset // size) * size
        found = self._thread.read(self._address + self._offset, size)
        self._offset += size
        return found

    def integer(self, size: int, signed: bool) -> int:
        """Return the next integer."""
        value = self._next(size)
        return value - (1 << 8 * size) if signed and value >> (8 * size - 1) else value

    def real(self) -> float:
        """Return the next double."""
        (value,) = struct.unpack("<d", self._next(8).to_bytes(8, "little"))
        return float(value)

    def string(self) -> str:
        """Return the string that the next pointer points to."""
        return self._thread.string(self._next(8))


def format_print(text: str, arguments: _Arguments) -> str:
    """Return what printf prints."""

    def one(match: re.Match[str]) -> str:
        kind = match["kind"]
        if kind is None:
            return "%"
        width = str(arguments.integer(4, True)) if match["width"] == "*" else match["width"] or ""
        digits = match["precision"]
        if digits == "*":
            digits = str(arguments.integer(4, True))
        dotted = f".{digits}" if digits is not None else ""
        template = f"%{match['flags']}{width}{dotted}"
        size = 8 if match["length"] in ("l", "ll", "j", "z", "t") else 4
        if kind in "eEfFgG":
            return (template + kind) % arguments.real()
        if kind in "aA":
            value = arguments.real().hex()
            return value if kind == "a" else value.upper()
        if kind == "c":
            return (template + "c") % chr(arguments.integer(4, False) & 255)
        if kind == "s":
            return (template + "s") % arguments.string()
        if kind == "p":
            return f"%{width}s" % hex(arguments.integer(8, False))
        spelled = "d" if kind in "diu" else kind
        return (template + spelled) % arguments.integer(size, kind in "di")

    return _SPECIFICATION.sub(one, text)


def _parameters(
    instruction: Parsed, context: Context, vector: Vector, sizes: tuple[int, ...]
) -> Callable[[_Thread], list[int]]:
    """Return what reads the parameters that a call passes, given their sizes."""
    names = [item for item in vector.items if isinstance(item, Symbol)]
    if len(names) != len(sizes):
        raise unknown(instruction, f"expected {len(sizes)} parameters")
    places = [context.variable(name).address for name in names]
    return lambda thread: [
        thread.read(place, size, "local") for place, size in zip(places, sizes, strict=True)
    ]


def _call(instruction: Parsed, context: Context) -> Step | Ending:
    options = Options(instruction)
    options.ignore("uni")
    options.done()
    functions = [one for one in instruction.operands if isinstance(one, Symbol)]
    vectors = [one for one in instruction.operands if isinstance(one, Vector)]
    name = functions[0].name if functions else ""
    if name == "vprintf" and len(vectors) == 2:
        return _print(instruction, context, *vectors)
    if name == "__assertfail" and vectors:
        return _fail(instruction, context, vectors[-1])
    raise unknown(instruction, "only vprintf and __assertfail can be called")


def _print(instruction: Parsed, context: Context, results: Vector, given: Vector) -> Step:
    who = context.instruction
    context.atomic = True  # what several processes print would mix
    parameters = _parameters(instruction, context, given, (8, 8))
    result = context.variable(results.items[0]) if isinstance(results.items[0], Symbol) else None

    def step(machine: Machine) -> None:
        texts: dict[int, str] = {}
        for number in machine.lanes:
            thread = _Thread(machine, who, int(number))
            format, packed = parameters(thread)
            text = format_print(thread.string(format), _Arguments(thread, packed))
            texts[int(number)] = text
        machine.print(texts)
        if result is not None:
            lanes = machine.lanes
            place = np.full(len(lanes), result.address, np.uint64)
            ones = np.ones(len(lanes), np.uint32)
            machine.local.store(machine.access(who, lanes), place, ones, 4)

    return step


def _fail(instruction: Parsed, context: Context, given: Vector) -> Ending:
    """Decode a call of __assertfail, from which no thread returns."""
    who = context.instruction
    parameters = _parameters(instruction, context, given, (8, 8, 4, 8, 8))

    def build(place: Place) -> End:
        def end(machine: Machine) -> None:
            thread = _Thread(machine, who, int(machine.lanes[0]))
            message, file, line, function, _ = parameters(thread)
            where = f"{thread.string(file)}:{line}: {thread.string(function)}"
            machine.cohort.report_trap(who, f"{where}: {thread.string(message)}", machine.lanes)
            machine.end(machine.active)

        return end

    return Ending(build)


TABLE: Table = {"call": Opcode(_call, InstructionClass.CONTROL)}
