"""Prints and assertions reach Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import KernelError

from .kernels import Kernel, Tile


def print_(k: Kernel, prefix: str, value: Tile | None = None, **attributes: Any) -> None:
    k.build(tile.PrintOp, value, prefix=prefix, **attributes)


def test_a_line_says_program_place_prefix_and_value(capsys: pytest.CaptureFixture[str]) -> None:
    k = Kernel("i32", "f32", "i8", "bf16")
    n, x, small, half = k.args
    print_(k, "hello")
    print_(k, "n:", n)
    print_(k, "x:", x)
    print_(k, "hex:", n, hex=True)
    print_(k, "unsigned:", small, signed=False)
    print_(k, "half:", half)
    print_(k, "flag:", n < 0)
    k.run((2, 1), -5, 1.5, -1, 0.25)
    lines = capsys.readouterr().out.splitlines()
    wanted = ["hello", "n: -5", "x: 1.5", "hex: 0xfffffffb", "unsigned: 255", "half: 0.25"]
    wanted += ["flag: True"]
    for pid in (0, 1):
        mine = [line for line in lines if line.startswith(f"pid ({pid}, 0, 0) ")]
        assert mine == [f"pid ({pid}, 0, 0) idx () {text}" for text in wanted]


def test_a_tile_prints_a_line_an_element_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    k = Kernel()
    i, j = k.range(2)[:, None], k.range(4)[None, :]
    print_(k, "at", i * 10 + j)
    k.run(1)
    assert capsys.readouterr().out.splitlines() == [
        f"pid (0, 0, 0) idx ({i}, {j}) at {10 * i + j}" for i in range(2) for j in range(4)
    ]


def test_a_failed_assertion_ends_its_program_and_raises() -> None:
    k = Kernel("*i32", "i32")
    x, n = k.args
    i = k.range(64)
    k.store(x + 64, 1)
    k.build(tile.AssertOp, k.broadcast(n, (64,)) > i, None, message="file.py:3: n too small")
    k.store(x + i, 1)
    found = np.zeros(65, np.int32)
    with pytest.raises(KernelError) as caught:
        k.run(1, found, 63)
    assert caught.value.message == "file.py:3: n too small (program (0, 0, 0))"
    assert list(found) == [0] * 64 + [1]
    k.run(1, found, 64)
    assert found.all()


def test_an_assertion_checks_the_lanes_of_its_mask_only() -> None:
    k = Kernel("i32")
    (n,) = k.args
    i = k.range(64)
    k.build(tile.AssertOp, i < n, i < 10, message="no")
    k.run(1, 10)
    with pytest.raises(KernelError, match="no"):
        k.run(1, 9)


def test_no_more_programs_begin_after_a_failure() -> None:
    k = Kernel("*i32")
    (x,) = k.args
    k.build(tile.AssertOp, k.pid() < 10, None, message="ten is too many")
    k.store(x + k.pid(), 1)
    found = np.zeros(100000, np.int32)
    with pytest.raises(KernelError, match="ten is too many"):
        k.run(100000, found)
    assert found.sum() == 10


def test_an_assertion_in_a_loop_leaves_all_loops() -> None:
    k = Kernel("*i32", "i32")
    x, n = k.args

    def body(step: Tile, total: Tile) -> Tile:
        k.build(tile.AssertOp, step < 3, None, message="three")
        return total + 1

    (total,) = k.loop(0, n, 1, [k.constant(0, "i32")], body)
    k.store(x, total)
    found = np.zeros(1, np.int32)
    k.run(1, found, 3)
    assert found[0] == 3
    with pytest.raises(KernelError, match="three"):
        k.run(1, found, 4)
    assert found[0] == 3
