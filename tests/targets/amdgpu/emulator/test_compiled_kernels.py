"""Kernels that our compiler makes, on every AMD chip, whenever asynchronous operations take effect.

`tests/kernels` has the whole suite, on two chips; this is what each chip does its own way: matrix
instructions, waits, atomics, exchanges of lanes. A few lines of good kernels are deleted, too, to see
that what the emulator finds in them is nothing by merit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tiledsl as tile
from examples import ex04_matmul, ex05_attention
from tests.kernels.oracle import check, poisoned, whole
from tests.kernels.test_atomics import update
from tests.kernels.test_dot import check_product
from tests.kernels.test_shapes import (
    check_transform,  # pyright: ignore[reportUnknownVariableType]  # kernels are not typed
)
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.dtypes import DType
from tiledsl.targets.amdgpu.chips import CHIPS
from tiledsl.targets.amdgpu.emulator import load
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.findings import Findings
from tiledsl.targets.gpu.emulator.grid import run
from tiledsl.targets.gpu.emulator.launch import Launch
from tiledsl.targets.gpu.emulator.memory import GlobalMemory

Array = NDArray[Any]


@pytest.fixture(autouse=True)
def no_disk_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_CACHE", "0")


_ALWAYS = ("gfx942", "gfx1100", "gfx1201")
"""One chip of each generation; the others join in nightly."""


@pytest.fixture(
    params=[
        pytest.param(name, marks=() if name in _ALWAYS else pytest.mark.nightly) for name in CHIPS
    ]
)
def chip(request: pytest.FixtureRequest) -> str:
    """The chip to emulate."""
    return request.param


def _in_both_modes(chip: str, act: Callable[[], None]) -> None:
    for mode in ("eager", "lazy"):
        with tile.device(f"emulate:{chip}", mode=mode):
            act()


@pytest.mark.parametrize("chip", list(CHIPS))
def test_a_product_of_many_blocks(chip: str) -> None:
    random = np.random.default_rng(0)
    a, b = (random.normal(size=shape).astype(np.float16) for shape in ((100, 72), (72, 130)))

    def act() -> None:
        c = ex04_matmul.multiply(a, b, block=(64, 64, 32), num_warps=4)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        assert np.abs(c - exact).max() < 0.03

    _in_both_modes(chip, act)


_TYPES = {
    "gfx90a": (tile.bfloat16, tile.int8, tile.float64, tile.float32),
    "gfx942": (tile.bfloat16, tile.int8, tile.float8e4m3fn, tile.float64),
    "gfx950": (tile.bfloat16, tile.int8, tile.float8e4m3fn, tile.float8e5m2),
    "gfx1100": (tile.bfloat16, tile.int8, tile.uint8),
    "gfx1151": (tile.bfloat16, tile.float8e5m2),
    "gfx1200": (tile.bfloat16, tile.int8, tile.float8e4m3fn),
    "gfx1201": (tile.float8e5m2, tile.uint8, tile.float32),
}
"""Types whose products each chip makes with instructions of its own, or without any."""


def test_products_of_its_types(chip: str) -> None:
    for dtype in _TYPES[chip]:
        _in_both_modes(chip, lambda dtype=dtype: check_product((32, 32, 64), dtype, 2))


def test_tf32_products_on_gfx942() -> None:
    _in_both_modes("gfx942", lambda: check_product((32, 32, 16), tile.float32, 1, precision="tf32"))


def test_attention(chip: str) -> None:
    random = np.random.default_rng(1)
    q, k, v = random.normal(size=(3, 1, 70, 32)).astype(np.float16)
    exact = ex05_attention.reference(q, k, v, causal=True)

    def act() -> None:
        assert np.abs(ex05_attention.attention(q, k, v, causal=True) - exact).max() < 0.01

    _in_both_modes(chip, act)


@tile.jit
def _negated(x: Any, out: Any, N: tile.constexpr) -> None:
    i = tile.arange(0, N)
    value = tile.load(x + i)
    tile.device_assert(value >= 0, "not negative")
    tile.store(out + i, -value)


@pytest.mark.parametrize("chip", list(CHIPS))
def test_assertions_hold_or_stop_the_kernel(chip: str) -> None:
    """Each chip has instructions of its own to stop, whether they are reached or not."""
    x = np.arange(64, dtype=np.int32)
    out = poisoned(64, tile.int32)
    with tile.device(f"emulate:{chip}"):
        _negated[1,](x, out, N=64, debug=True)
        check(out, -x, chip)
        with pytest.raises(KernelError, match="not negative"):
            _negated[1,](-x, out, N=64, debug=True)


def _transposed(x: Any) -> Any:
    return tile.trans(x)


def _permuted(x: Any) -> Any:
    return tile.permute(x, (2, 0, 1))


def _permuted_array(x: Array) -> Array:
    return np.transpose(x, (2, 0, 1))


def test_transposes_and_permutations(chip: str) -> None:
    def act() -> None:
        check_transform((32, 64), _transposed, np.transpose, 4)
        check_transform((16, 8, 4), _permuted, _permuted_array, 2, tile.float16)

    _in_both_modes(chip, act)


@pytest.mark.parametrize("dtype", [tile.int32, tile.float32, tile.int64], ids=str)
def test_atomic_additions(chip: str, dtype: DType) -> None:
    def act() -> None:
        memory, value = whole(dtype, 300, 1), whole(dtype, 300, 2)
        expected, before = memory + value, memory.copy()
        old = poisoned(300, dtype)
        update[3,](memory, value, old, 300, OP=tile.atomic_add, BLOCK=128)
        check(memory, expected, "sums")
        check(old, before, "what was there")

    _in_both_modes(chip, act)


# --- what is found in a broken kernel ------------------------------------------------------------

_SIZE = 64
_CHANGED = re.compile(r"\ts_(?:waitcnt|wait_(?:load|ds|km)cnt|barrier(?:_signal|_wait)?)\b")


def _matmul_text(chip: str) -> str:
    """Return the assembly of a product of 64 x 64 x 64, one block of which is a quarter."""
    types = {
        **dict.fromkeys(("a", "b", "c", "bias"), "*fp16:16"),
        **dict.fromkeys(("M", "N", "K", "stride_am", "stride_bk", "stride_cm"), "i32:16"),
        **dict.fromkeys(("stride_ak", "stride_bn", "stride_cn"), "1"),
    }
    constants = {"FUSED": False, "BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32}
    kernel = tile.compile(ex04_matmul.matmul, types, constants, target=chip, num_warps=4)
    text = kernel.asm["amdgcn"]
    assert isinstance(text, str)
    return text


def _multiply(text: str, chip: str, mode: Mode) -> tuple[Array, int]:
    """Run a product; returns it and the number of findings."""
    random = np.random.default_rng(2)
    memory, findings = GlobalMemory(), Findings()
    size = 2 * _SIZE * _SIZE
    places = [memory.allocate(size, written=i != 2) for i in range(4)]
    for place in places[:2]:
        values = random.normal(size=(_SIZE, _SIZE)).astype(np.float16)
        memory.bytes_at(place, size)[:] = values.view(np.uint8).ravel()
    program = load(text, "matmul", chip, memory)
    numbers = np.array([_SIZE] * 3 + [_SIZE, 1] * 3, np.int32)
    arguments = np.array(places, np.uint64).tobytes() + numbers.tobytes()
    run(program, Launch((2, 2, 1), 4 * program.warp_size, arguments, 0, memory, mode), findings)
    return memory.bytes_at(places[2], size).copy(), len(findings)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("chip", ["gfx942", "gfx1100", "gfx1201"])
def test_deleting_a_wait_or_a_barrier_shows(chip: str, mode: Mode) -> None:
    text = _matmul_text(chip)
    good, none = _multiply(text, chip, mode)
    assert none == 0
    lines = text.splitlines()
    places = [i for i, line in enumerate(lines) if _CHANGED.match(line)]
    assert len(places) > 8
    missed: list[str] = []
    for place in places:
        product, found = _multiply("\n".join([*lines[:place], *lines[place + 1 :]]), chip, mode)
        if not found and np.array_equal(product, good):
            missed.append(lines[place])
    assert len(missed) <= len(places) // 20 + 1, missed
