"""Calls: binding, keys, options, messages; and that a cached kernel is used exactly when it may be."""

# Kernels are traced, not typed.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiledsl as tile
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.jit import JITFunction, constant_key

FACTOR = 2


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TILEDSL_CACHE", raising=False)


@tile.jit
def scale(x, out, n, s, BLOCK: tile.constexpr = 64):  # pyright: ignore[reportArgumentType]
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    tile.store(out + i, tile.load(x + i, mask=i < n) * s, mask=i < n)


@tile.jit
def scale_by_global(x, out):
    tile.store(out, tile.load(x) * FACTOR)


def make(k: int) -> JITFunction:
    @tile.jit
    def plus(x, out):
        tile.store(out, tile.load(x) + k)

    return plus


def arrays(n: int = 100) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.arange(n, dtype=np.float32), np.full(n, np.nan, np.float32)


def test_positional_keyword_and_default_arguments_bind() -> None:
    x, out = arrays()
    scale[(2,)](x, out, 100, s=3.0)
    np.testing.assert_array_equal(out, x * 3)
    scale[lambda meta: (tile.cdiv(meta["n"], meta["BLOCK"]),)](x, out, n=100, s=2.0, BLOCK=32)
    np.testing.assert_array_equal(out, x * 2)
    scale[2](x, out, 100, 4.0, 64, num_warps=1)
    np.testing.assert_array_equal(out, x * 4)


def test_an_empty_grid_launches_nothing() -> None:
    x, out = arrays()
    assert scale[(0,)](x, out, 100, 2.0) is None
    assert np.isnan(out).all()


def test_a_launch_returns_the_compiled_kernel_and_reuses_it() -> None:
    x, out = arrays()
    first = scale[(2,)](x, out, 100, 2.0)
    assert scale[(2,)](x, out, 100, 5.0) is first
    assert scale[(2,)](x, out, 100, 2) is not first


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, o: scale[1](x, o, 1), "kernel `scale`: argument `s` is missing"),
        (lambda x, o: scale[1](x, o, 1, 1.0, 64, 7), "kernel `scale`: expected at most 5 arguments, found 6"),
        (lambda x, o: scale[1](x, o, 1, 1.0, n=3), "kernel `scale`: argument `n` is given twice"),
        (
            lambda x, o: scale[1](x, o, 1, 1.0, warps=3),
            "kernel `scale`: no parameter or option is called `warps`\n  hint: parameters: x, out, n, s, BLOCK; "
            "options: num_warps, num_stages, num_ctas, fp_contract, fast_math, ptxas_options, max_registers, debug",
        ),
        (
            lambda x, o: scale[1]([1.0], o, 1, 1.0),
            "kernel `scale`: argument `x`: expected an array, a number, a bool, None, a "
            "TensorDescriptor, or a tuple, named tuple or dataclass of these, found list ([1.0])\n"
            "  hint: annotate it `x: tile.constexpr` if the kernel depends on it",
        ),
        (
            lambda x, o: scale[1](x.astype(complex), o, 1, 1.0),
            "kernel `scale`: argument `x`: expected an array of bools, integers or floats in this "
            "machine's byte order, found numpy.ndarray of complex128\n  hint: the element types are "
            "bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, "
            "float32, float64, float8e4m3fn, float8e5m2",
        ),
        (
            lambda x, o: scale[1](x.astype(">f4"), o, 1, 1.0),
            "kernel `scale`: argument `x`: expected an array of bools, integers or floats in this "
            "machine's byte order, found numpy.ndarray of >f4\n  hint: the element types are "
            "bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, "
            "float32, float64, float8e4m3fn, float8e5m2",
        ),
        (
            lambda x, o: scale[1](x, o, 2**70, 1.0),
            "kernel `scale`: argument `n`: expected an integer of 64 bits, "
            "found int (1180591620717411303424)\n"
            "  hint: annotate it `n: tile.constexpr` if the kernel depends on it",
        ),
        (
            lambda x, o: scale[1](x, o, 1, 1.0, BLOCK=x),
            "kernel `scale`: argument `BLOCK` is a constexpr, expected a value known at compile time, "
            "found numpy.ndarray of float32",
        ),
        (lambda x, o: scale[1](x, o, 1, 1.0, num_warps=3), "num_warps: expected a power of two from 1 to 32, found 3"),
        (lambda x, o: scale[1](x, o, 1, 1.0, num_stages=0), "num_stages: expected an integer from 1 to 16, found 0"),
        (lambda x, o: scale[1](x, o, 1, 1.0, num_ctas=3), "num_ctas: expected a power of two from 1 to 8, found 3"),
        (lambda x, o: scale[1](x, o, 1, 1.0, num_ctas=16), "num_ctas: expected a power of two from 1 to 8, found 16"),
        (lambda x, o: scale[(-1,)](x, o, 1, 1.0), "grid: expected 0 to 2147483647 programs on axis 0, found -1"),
    ],
)  # fmt: skip
def test_a_wrong_call_says_what_is_wrong(call: Callable[..., object], message: str) -> None:
    with pytest.raises(KernelError) as raised:
        call(*arrays())
    assert str(raised.value) == message


class Unshared:
    """An array by DLPack whose owner does not share it."""

    def __dlpack__(self, **options: Any) -> object:
        raise BufferError("not contiguous")


def test_an_array_that_cannot_be_read_is_named() -> None:
    out = np.zeros(64, np.float32)
    with pytest.raises(KernelError) as raised:
        scale[1](out, Unshared(), 64, 2.0)
    assert str(raised.value) == (
        "kernel `scale`: argument `out`: expected an array that shares its memory, found a "
        "Unshared that raises BufferError: not contiguous"
    )
    with pytest.raises(KernelError, match="kernel `scale`: argument `x`: expected an array that"):
        scale[1]((Unshared(),), out, 64, 2.0)


def test_memory_shared_as_read_only_is_read_and_not_written() -> None:
    class ThroughDLPack:
        def __init__(self, array: Any) -> None:
            self._array = array

        def __dlpack__(self, **options: Any) -> object:
            return self._array.__dlpack__(**options)

    x, out = np.ones(64, np.float32), np.zeros(64, np.float32)
    x.flags.writeable = False
    scale[1](ThroughDLPack(x), ThroughDLPack(out), 64, 2.0)
    assert (out == 2).all()
    with pytest.raises(KernelError, match="argument `out`: expected an array that may be written"):
        scale[1](ThroughDLPack(out), ThroughDLPack(x), 64, 2.0)


def test_one_array_as_two_arguments_is_known_where_it_is_written() -> None:
    @tile.jit
    def dot(x, y, out):
        i = tile.arange(0, 64)
        tile.store(out, tile.sum(tile.load(x + i) * tile.load(y + i)))

    x, out = arrays(64)
    together = scale[1](x, x, 64, 2.0)
    assert together is not None
    assert str(together.request.signature["out"]) == "*fp32:16=x"
    apart = scale[1](x, out, 64, 2.0)
    assert apart is not None
    assert apart is not together
    assert scale[1](out, out, 64, 2.0) is together
    assert dot[1](x, x, out) is dot[1](x, arrays(64)[0], out)


def test_a_view_that_may_not_be_written_stays_an_argument_of_its_own() -> None:
    x, _ = arrays(64)
    view = x.view()
    view.flags.writeable = False
    scale[1](view, x, 64, 2.0)
    np.testing.assert_array_equal(x, arrays(64)[0] * 2)
    with pytest.raises(KernelError, match="argument `out`: expected an array that may be written"):
        scale[1](x, view, 64, 2.0)


@pytest.mark.parametrize("other", ["n", "out", "y"])
def test_a_pointer_is_the_same_as_one_before_it(other: str) -> None:
    signature = {"x": "*fp32", "out": "*fp32=x", "n": "i32", "s": "fp32"}
    assert "*fp32=x" in repr(tile.compile(scale, signature))
    with pytest.raises(KernelError) as raised:
        tile.compile(scale, {**signature, "out": f"*fp32={other}"})
    assert str(raised.value) == (
        "kernel `scale`: signature of `out`: expected a pointer before it to be the same as, "
        f"found `{other}`"
    )


def test_compiling_takes_the_options_of_jit() -> None:
    kernel = tile.jit(num_warps=2, num_stages=1)(scale.fn)
    signature = {"x": "*fp32", "out": "*fp32", "n": "i32", "s": "fp32"}
    made = [
        tile.compile(kernel, signature=signature, constexprs={"BLOCK": 64}, target="sm_80", **more)
        for more in ({}, {"num_warps": 1})
    ]
    assert [".reqntid 64" in str(made[0].asm["ptx"]), ".reqntid 32" in str(made[1].asm["ptx"])] == [
        True,
        True,
    ]


def test_what_is_not_specialized_has_one_kernel() -> None:
    plain = tile.jit(do_not_specialize=["n", 1])(scale.fn)
    x, out = arrays(100)
    first = plain[(2,)](x, out, 1, 3.0)
    assert first is not None
    assert str(first.request.signature["n"]) == "i32"
    assert str(first.request.signature["out"]) == "*fp32"
    for n in (32, 100):
        assert plain[(2,)](x, out, n, 3.0) is first
        np.testing.assert_array_equal(out[:n], x[:n] * 3)
    with pytest.raises(KernelError) as raised:
        tile.jit(do_not_specialize=["m"])(scale.fn)
    assert str(raised.value) == (
        "kernel `scale`: expected parameters as `do_not_specialize`, found 'm'\n"
        "  hint: parameters: x, out, n, s, BLOCK"
    )


@pytest.mark.parametrize("signature", ["*fp32, i32", {0: "*fp32"}, ["*fp32"]])
def test_a_signature_names_its_parameters(signature: Any) -> None:
    with pytest.raises(KernelError, match="expected a type for each parameter by its name, found"):
        tile.compile(scale, signature)


def test_unknown_options_of_jit_are_refused() -> None:
    with pytest.raises(KernelError, match="jit: expected options among num_warps"):
        tile.jit(warps=3)
    with pytest.raises(KernelError, match=r"kernel `f`: expected named parameters, found `\*args`"):

        @tile.jit
        def f(*args):
            pass


def test_a_changed_global_gives_a_new_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    x, out = arrays(1)
    x[0] = 5
    scale_by_global[1](x, out)
    assert out[0] == 10
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", 3)
    scale_by_global[1](x, out)
    assert out[0] == 15


class Settings:
    rate = 2


def test_a_changed_attribute_gives_a_new_kernel() -> None:
    settings = Settings()

    @tile.jit
    def by_settings(x, out):
        tile.store(out, tile.load(x) * settings.rate)

    @tile.jit
    def by_constant(x, out, given: tile.constexpr):
        tile.store(out, tile.load(x) * given.rate)

    x, out = arrays(1)
    x[0] = 3
    for rate in (2, 3, 3, 5):
        settings.rate = rate
        first = by_settings[(1,)](x, out)
        assert out[0] == 3 * rate
        assert by_settings[(1,)](x, out) is first
        out[0] = np.nan
        by_constant[(1,)](x, out, given=settings)
        assert out[0] == 3 * rate


def test_closures_are_part_of_the_key_in_one_process_and_on_disk() -> None:
    x, out = arrays(1)
    for k in (2, 3, 2):
        make(k)[1](x, out)
        assert out[0] == k


def test_constants_that_compare_equal_but_compute_differently_have_different_keys() -> None:
    for left, right in (
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ((1,), (True,)),
        ({"a": 0.0}, {"a": -0.0}),
    ):
        assert constant_key(left) != constant_key(right)
    assert constant_key([1, 2.5, None]) == constant_key([1, 2.5, None])
    assert constant_key(tile.constexpr(3)) == constant_key(3)
    assert constant_key(float("nan")) == constant_key(float("nan"))


def test_threads_share_one_compilation() -> None:
    kernels: list[object] = []

    def run() -> None:
        x, out = arrays()
        kernels.append(scale[(2,)](x, out, 100, 7.0, num_stages=5))
        np.testing.assert_array_equal(out, x * 7)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(kernel) for kernel in kernels}) == 1
    assert len(kernels) == 8


PROGRAM = """
import sys; sys.path.insert(0, sys.argv[1])
import numpy as np, tiledsl as tile, helper
@tile.jit
def kernel(x, y, out):
    tile.store(out, helper.combine(tile.load(x), tile.load(y)))
x, y, out = np.float32([2]), np.float32([3]), np.float32([0])
compiled = kernel[1](x, y, out)
print(out[0], "cached" if not compiled.seconds else "compiled")
"""


def run_program(folder: Path, body: str) -> list[str]:
    (folder / "helper.py").write_text(f"def combine(x, y):\n    return {body}\n")
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-B", str(folder / "program.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    return done.stdout.split()


def test_the_disk_cache_serves_new_processes_until_a_helper_changes(tmp_path: Path) -> None:
    assert run_program(tmp_path, "x * y") == ["6.0", "compiled"]
    assert run_program(tmp_path, "x * y") == ["6.0", "cached"]
    assert run_program(tmp_path, "x + y") == ["5.0", "compiled"]


@pytest.mark.parametrize(
    ("given", "found"),
    [(3, "int (3)"), (len, "builtin_function_or_method (<built-in function len>)")],
)
def test_only_python_functions_become_kernels(given: Any, found: str) -> None:
    with pytest.raises(KernelError) as raised:
        tile.jit(given)
    assert str(raised.value) == f"jit: expected a Python function, found {found}"


def test_starred_parameters_are_refused_as_they_are_spelled() -> None:
    for function, spelled in ((lambda *xs: None, "*xs"), (lambda **ys: None, "**ys")):
        with pytest.raises(KernelError, match=re.escape(f"found `{spelled}`")):
            tile.jit(function)


def test_an_argument_that_cannot_be_hashed_is_described() -> None:
    _, out = arrays()
    with pytest.raises(KernelError, match=r"argument `x`: expected an array, .* found memoryview"):
        scale_by_global[(1,)](memoryview(bytearray(8)), out)
