"""Looking into a running kernel: prints, assertions, and what happens while it is compiled."""

import re

import numpy as np
import pytest

import tiledsl as tile
from tests.kernels.oracle import check, poisoned


def test_prints_say_program_place_and_value(place: str, capfd: pytest.CaptureFixture[str]) -> None:
    @tile.jit
    def kernel(x, N: tile.constexpr):
        value = tile.load(x + tile.arange(0, N))
        if tile.program_id(0) == 1:
            tile.device_print("value", value)
            tile.device_print("count", tile.sum(value, 0).to(tile.int32))

    x = np.array([1.5, -2.5, 3, 4], np.float32)
    if "gfx" in place:
        with pytest.raises(tile.KernelError, match="device_print does not work on AMD GPUs"):
            kernel[2,](x, N=4)
        return
    kernel[2,](x, N=4)
    found = capfd.readouterr().out
    for i, number in enumerate((1.5, -2.5, 3, 4)):
        pattern = rf"pid \(1, 0, 0\) idx \({i},?\) value:? +{number}"
        assert re.search(pattern, found), (pattern, found)
    assert re.search(r"pid \(1, 0, 0\) (idx \(\) )?count:? +6", found)
    assert "pid (0, 0, 0)" not in found


def test_assertions_that_hold_change_nothing(place: str) -> None:
    @tile.jit
    def kernel(x, out, n, N: tile.constexpr):
        i = tile.arange(0, N)
        value = tile.load(x + i, mask=i < n, other=-1)
        tile.device_assert(value >= 0, "not negative", mask=i < n)
        assert n > 0, "a plain assert is one too"
        tile.store(out + i, value, mask=i < n)

    x = np.arange(10, dtype=np.int32)
    for debug in (False, True):
        out = poisoned(10, tile.int32)
        kernel[1,](x, out, 10, N=16, debug=debug)
        check(out, x, f"debug={debug}")


def test_a_failed_assertion_names_itself(place: str) -> None:
    if place.startswith(("cuda", "hip")):
        pytest.skip("a trap on the device ends its context, which all tests share")

    @tile.jit
    def kernel(x, n):
        tile.device_assert(tile.load(x) > n, "larger than n")
        tile.store(x, 100)

    x = np.array([5], np.int32)
    # Code for AMD only traps; what is shown then is the line.
    words = r"test_debug\.py:\d+(:\d+[\s\S]*?\"|: )larger than n"
    with pytest.raises(tile.KernelError, match=words):
        kernel[1,](x, 7, debug=True)
    assert x[0] == 5
    kernel[1,](x, 7)  # without debug it costs and does nothing
    assert x[0] == 100


def test_static_prints_happen_once_a_compilation(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    @tile.jit
    def kernel(out, N: tile.constexpr):
        tile.static_print("tracing", N, tile.arange(0, N))
        tile.store(out + tile.arange(0, N), N)

    out = poisoned(8, tile.int32)
    kernel[1,](out, N=8)
    assert "tracing 8" in capsys.readouterr().out
    kernel[1,](out, N=8)
    assert capsys.readouterr().out == ""


def test_static_assertions_stop_the_compilation(place: str) -> None:
    @tile.jit
    def kernel(out, N: tile.constexpr):
        tile.static_assert(N % 2 == 0, f"N is even, not {N}")
        tile.store(out, N)

    out = poisoned(1, tile.int32)
    kernel[1,](out, N=4)
    check(out, np.array([4], np.int32), "even")
    with pytest.raises(tile.KernelError, match="N is even, not 5"):
        kernel[1,](out, N=5)
