"""What assertions say, into a module and back from its symbols."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mlir import ir

from tests.targets.amdgpu.by_hand import POINTER, compiled
from tiledsl.targets.amdgpu.assertions import messages, said_at
from tiledsl.targets.amdgpu.emulator.sections import parse_module
from tiledsl.targets.amdgpu.lower import AmdMachine
from tiledsl.targets.gpu.source_lines import Source

_SAID = ['/a b/kernel.py:6: x > 0; "größer" $ {1|2} 100%', "kernel.py:16: y"]


def test_messages_come_back_from_the_assembly() -> None:
    def body(machine: AmdMachine, arguments: Sequence[ir.Value]) -> None:
        del arguments
        for message in (*_SAID, _SAID[0]):
            machine.stop(message)

    artifact = compiled("gfx942", [POINTER], body)
    text = artifact.texts["amdgcn"]
    assert isinstance(text, str)
    data = parse_module(text).data
    assert sorted(messages((one.name, bytes(one.content)) for one in data)) == sorted(_SAID)
    assert len(re.findall("s_trap 2", text)) >= 1


def test_a_trap_says_what_the_assertions_of_its_line_say() -> None:
    found = [*_SAID, "/a b/kernel.py:6: second"]
    first = '/a b/kernel.py:6: x > 0; "größer" $ {1|2} 100%'.removeprefix("/a b/kernel.py:6: ")
    assert said_at(Source("/a b/kernel.py", 6, 3), found) == f"{first} or second"
    assert said_at(Source("kernel.py", 16, 3), found) == "y"
    assert said_at(Source("kernel.py", 1, 3), found) == ""
    assert said_at(None, found) == ""
