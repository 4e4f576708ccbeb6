from __future__ import annotations

import re
from typing import Any

import pytest

from tests.targets.gpu.running import to_machine
from tests.transforms.tile_kernels import Kernel
from tiledsl.dialects import tile
from tiledsl.dialects.types import tile_type


def printed(element: str, shape: tuple[int, ...], **flags: Any) -> str:
    k = Kernel(f"*{element}")
    value = k.load(k.pointers(k.args[0], *shape)) if shape else k.load(k.args[0])
    with k.here():
        tile.PrintOp.build(value, prefix="x = 5%:", **flags)
    return str(to_machine(k.finish()))


@pytest.mark.parametrize(
    ("element", "flags", "specifier"),
    [
        ("i32", {}, "%d"),
        ("i32", {"signed": False}, "%u"),
        ("i64", {"hex": True}, "0x%llx"),
        ("f16", {}, "%f"),
    ],
)
def test_a_tile_prints_a_line_an_element(
    element: str, flags: dict[str, Any], specifier: str
) -> None:
    text = printed(element, (4, 64), **flags)
    line = f"pid (%d, %d, %d) idx (%d, %d) x = 5%%: {specifier}\\0A\\00"
    assert line in text
    assert text.count("llvm.call @vprintf") == 2


def test_a_scalar_prints_once_and_without_index() -> None:
    text = printed("i32", ())
    assert "pid (%d, %d, %d) x = 5%%: %d" in text
    assert text.count("scf.if") == 1


def test_nothing_prints_its_prefix() -> None:
    k = Kernel()
    with k.here():
        tile.PrintOp.build(None, prefix="here")
    assert "pid (%d, %d, %d) here" in str(to_machine(k.finish()))


@pytest.mark.parametrize("masked", [False, True])
def test_an_assertion_stops_under_a_condition_with_its_message(masked: bool) -> None:
    k = Kernel("*i32")
    value = k.load(k.pointers(k.args[0], 64))
    with k.here():
        type_ = tile_type((64,), k.type("i32"))
    condition = k.cmp(value, k.constant(9, type_))
    with k.here():
        mask = condition if masked else None
        tile.AssertOp.build(condition, mask, message="kernel.py:3: value < 9")
    text = str(to_machine(k.finish()))
    assert "kernel.py:3: value < 9" in text
    assert re.search(r"scf\.if .*\{[^}]*llvm\.intr\.trap", text, re.DOTALL)
