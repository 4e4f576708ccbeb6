"""`tile.TensorDescriptor`: what it takes of an array, how it is passed, signatures."""

# Kernels are traced, not typed.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tiledsl as tile
from tiledsl.descriptor import Boxes, parse_signature
from tiledsl.dialects.diagnostics import KernelError


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


def test_shape_and_strides_are_the_arrays_own() -> None:
    x = array(6, 8)
    assert tile.TensorDescriptor(x, (4, 8)).strides == (8, 1)
    assert tile.TensorDescriptor(x.T, (4, 8)).strides == (1, 8)
    view = tile.TensorDescriptor(x[::-2, 1::3], [2, 2])
    assert (view.shape, view.strides) == ((3, 3), (-16, 3))
    assert tile.TensorDescriptor(np.broadcast_to(x[0], (5, 8)), (4, 8)).strides == (0, 1)
    assert repr(view) == (
        "TensorDescriptor(ndarray of shape (3, 3), strides (-16, 3), boxes of (2, 2), zero outside)"
    )


def test_shape_and_strides_may_be_given() -> None:
    made = tile.TensorDescriptor(array(64), (4, 8), "nan", shape=[4, 10], strides=[16, np.int64(1)])
    assert (made.shape, made.strides) == ((4, 10), (16, 1))
    assert (made.block_shape, made.padding) == ((4, 8), "nan")
    assert tile.TensorDescriptor.from_tensor(array(4, 4), [2, 2]).boxes == Boxes((2, 2))


RAGGED = np.zeros((3, 9), np.uint8)[:, :8].view(np.float32)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tile.TensorDescriptor(3, (4,)), "expected an array, found int (3)"),
        (
            lambda: tile.TensorDescriptor(array(4, 4), (4, 3)),
            "expected powers of two as `block_shape`, found tuple ((4, 3))",
        ),
        (
            lambda: tile.TensorDescriptor(array(4, 4), (4, 2.0)),  # pyright: ignore
            "expected integers as `block_shape`, found tuple ((4, 2.0))",
        ),
        (
            lambda: tile.TensorDescriptor(array(4, 4), 4),  # pyright: ignore
            "expected integers as `block_shape`, found int (4)",
        ),
        (
            lambda: tile.TensorDescriptor(array(2), (2,) * 6),
            "expected 1 to 5 dimensions, found tuple ((2, 2, 2, 2, 2, 2))",
        ),
        (
            lambda: tile.TensorDescriptor(array(4, 4), (4,)),
            "expected 1 dimensions, as `block_shape` has, found an array of 2",
        ),
        (
            lambda: tile.TensorDescriptor(array(4, 4), (4,), "one"),
            'expected "zero" or "nan" as `padding`, found str (\'one\')',
        ),
        (
            lambda: tile.TensorDescriptor(array(4, 4), (4, 4), shape=(4, 4)),
            "expected both `shape` and `strides`, or neither",
        ),
        (
            lambda: tile.TensorDescriptor(array(4, 4), (4, 4), shape=(4, 4), strides=(4,)),
            "expected 2 dimensions, as `block_shape` has, found 2 sizes and 1 strides",
        ),
        (
            lambda: tile.TensorDescriptor(RAGGED, (2, 2)),
            "expected strides of whole elements, 4 bytes each, found tuple ((9, 4))",
        ),
    ],
)
def test_a_wrong_description_says_what_was_expected(make: Any, message: str) -> None:
    with pytest.raises(KernelError) as raised:
        make()
    assert str(raised.value) == f"TensorDescriptor: {message}"


@tile.jit
def scale(x, y, factor):
    i = tile.program_id(0) * x.block_shape[0]
    y.store([i, 0], x.load([i, 0]) * factor)


def scaled(x: Any, y: Any, block: tuple[int, ...] = (16, 32)) -> Any:
    """Write 3 * x to y; returns the compiled kernel."""
    described = [tile.TensorDescriptor(one, block) for one in (x, y)]
    return scale[tile.cdiv(x.shape[0], block[0]),](*described, 3)


@pytest.mark.parametrize("copied", [pickle.loads, copy.copy, copy.deepcopy])
def test_a_descriptor_survives_copying(copied: Any) -> None:
    x, y = np.arange(20 * 30, dtype=np.float32).reshape(20, 30), array(20, 30)
    made = tile.TensorDescriptor(x[:, 3:], (16, 32))
    other = copied(pickle.dumps(made) if copied is pickle.loads else made)
    with tile.device("host"):
        scale[2,](other, tile.TensorDescriptor(y[:, 3:], (16, 32)), 3)
    np.testing.assert_array_equal(y[:, 3:], 3 * x[:, 3:])


def test_a_faulty_argument_is_named() -> None:
    x = array(16, 32)
    fixed = array(16, 32)
    fixed.setflags(write=False)
    with tile.device("host"):
        with pytest.raises(KernelError, match=r"argument `y\.base`: expected an array that may be"):
            scaled(x, fixed)
        with pytest.raises(KernelError, match=r"argument `x\.base`: expected an array of bools"):
            scaled(x.astype(complex), x)

    @tile.jit
    def fixed_by(x: tile.constexpr):
        del x

    with pytest.raises(KernelError, match=r"argument `x` is a constexpr, .*found .*Descriptor"):
        fixed_by[1,](tile.TensorDescriptor(x, (16, 32)))


# --- specialization ------------------------------------------------------------------------------


def uses_tma(made: Any) -> bool:
    """Return whether boxes are loaded by TMA."""
    return re.search(r"cp\.async\.bulk\.tensor\.\dd\.shared", made.asm["ptx"]) is not None


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.float8_e5m2])
def test_rows_of_a_multiple_of_16_bytes_go_by_tma(dtype: Any) -> None:
    size = np.dtype(dtype).itemsize
    with tile.device("emulate:sm_90a"):
        for row_bytes, fits in ((16 * 9, True), (16 * 10, True), (16 * 9 + 8, False)):
            x = (np.arange(20 * row_bytes // size).reshape(20, -1) % 3).astype(dtype)
            y = np.zeros_like(x)
            assert uses_tma(scaled(x, y, (16, 256))) == fits
            np.testing.assert_array_equal(y.astype(np.float32), 3 * x.astype(np.float32))


def test_strides_that_tma_does_not_take_are_read_without() -> None:
    whole = np.arange(32 * 32, dtype=np.float32).reshape(32, 32)
    with tile.device("emulate:sm_90a"):
        for x, fits in (
            (whole, True),
            (whole[::-1], False),
            (np.broadcast_to(whole[3], (32, 32)), False),
            (whole.T, False),
            (whole[:, 1:], False),  # begins at no multiple of 16 bytes
            (whole[:, 4:], True),
            (whole[:0], False),
        ):
            y = np.zeros(x.shape, np.float32)
            made = scaled(x, y)
            np.testing.assert_array_equal(y, 3 * x)
            assert made is None or uses_tma(made) == fits


@tile.jit
def scale_pointer(x, y, rows, columns, step, factor):
    source = tile.make_tensor_descriptor(x, [rows, columns], [step, 1], [16, 32])
    target = tile.make_tensor_descriptor(y, [rows, columns], [columns, 1], [16, 32])
    i = tile.program_id(0) * 16
    target.store([i, 0], source.load([i, 0]) * factor)


def test_strides_of_descriptors_made_in_the_kernel_are_told_apart_as_finely() -> None:
    flat = np.arange(1024, dtype=np.float32)
    with tile.device("emulate:sm_90a"):
        for step, fits in ((36, True), (34, False), (0, False), (32, True), (33, False)):
            y = array(20, 20)
            made = scale_pointer[2,](flat, y, 20, 20, step, 3)
            assert made is not None
            assert uses_tma(made) == fits
            np.testing.assert_array_equal(y, 3 * (np.arange(20)[:, None] * step + np.arange(20)))


def test_a_kernel_is_compiled_anew_only_for_what_matters() -> None:
    def fresh(x, y, factor):
        y.store([0, 0], x.load([0, 0]) * factor)

    kernel = tile.jit(fresh)
    made: list[Any] = []
    with tile.device("emulate:sm_90a"):
        for rows, columns in ((20, 36), (24, 44), (28, 52), (20, 33), (21, 35)):
            x, y = array(rows, columns), array(rows, columns)
            boxes = (tile.TensorDescriptor(one, (16, 32)) for one in (x, y))
            made.append(kernel[1,](*boxes, 2))
    assert made[0] is made[1] is made[2]
    assert made[3] is made[4]
    assert made[0] is not made[3]


# --- signatures ----------------------------------------------------------------------------------


def test_a_signature_spells_a_tensors_leaves() -> None:
    types, constants = parse_signature({"x": "tensor<bf16, 128x64>:16", "n": "i32"})
    assert {name: str(argument) for name, argument in types.items()} == {
        "x.base": "*bf16:16", "x.shape.0": "i32", "x.shape.1": "i32:8",
        "x.strides.0": "i32:8", "x.strides.1": "1", "n": "i32",
    }  # fmt: skip
    assert constants == {"x": Boxes((128, 64))}
    types, constants = parse_signature({"x": "tensor<i8,16,nan>"})
    assert {name: str(argument) for name, argument in types.items()} == {
        "x.base": "*i8", "x.shape.0": "i32", "x.strides.0": "1",
    }  # fmt: skip
    assert constants == {"x": Boxes((16,), "nan")}


@pytest.mark.parametrize(
    "text", ["tensor", "tensor<bf16>", "tensor<real, 8>", "tensor<bf16, 8x>", "tensor<bf16, 8>:8"]
)
def test_a_wrong_entry_names_the_parameter(text: str) -> None:
    with pytest.raises(KernelError, match="signature of `x`: expected `tensor<dtype, 128x64>`"):
        parse_signature({"x": text})


def test_tensors_compile_ahead_of_time_for_every_kind_of_chip() -> None:
    aligned = {"x": "tensor<fp16, 16x32>:16", "y": "tensor<fp16, 16x32>", "factor": "i32"}
    for target in ("host", "sm_80", "gfx942", "gfx1100"):
        tile.compile(scale, aligned, target=target)
    assert uses_tma(tile.compile(scale, aligned, target="sm_90a"))
    loose = aligned | {"x": "tensor<fp16, 16x32>"}
    assert not uses_tma(tile.compile(scale, loose, target="sm_90a"))
    leaves = {
        "x.base": "*fp16:16", "x.shape.0": "i32", "x.shape.1": "i32",
        "x.strides.0": "i32:8", "x.strides.1": "1", "y": "tensor<fp16, 16x32>", "factor": "i32",
    }  # fmt: skip
    assert uses_tma(tile.compile(scale, leaves, {"x": Boxes((16, 32))}, target="sm_90a"))


@pytest.mark.parametrize(
    ("array", "aligned"),
    [
        (np.zeros((4, 8), np.float16), True),
        (np.zeros((4, 16), np.float16)[:, :8], True),
        (np.zeros((4, 16), np.float16)[:, 1:9], False),  # begins at an odd address
        (np.zeros((4, 9), np.float16), False),  # so do its rows
        (np.zeros((8, 4), np.float16).T, False),
        (np.zeros((4, 16), np.float16)[::-1, :8], False),
        (np.zeros((4, 16), np.float32)[:, 4:8], True),
    ],
)
def test_a_tensor_is_aligned_if_boxes_of_it_can_be_copied(array: Any, aligned: bool) -> None:
    described = tile.TensorDescriptor(array, (4, 4))
    assert described.aligned == (aligned and array.ctypes.data % 16 == 0)
