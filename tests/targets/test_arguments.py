import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.targets.arguments import KINDS, ArgumentLayout, Value, pack

FLOATS: dict[str, type[np.generic]] = {
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "bf16": ml_dtypes.bfloat16,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}
INTEGERS = {
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "ui8": np.uint8,
    "ui16": np.uint16,
    "ui32": np.uint32,
    "ui64": np.uint64,
}


def test_arguments_lie_at_their_natural_alignment_with_nothing_after_the_last():
    layout = ArgumentLayout(("i8", "ptr", "f16", "i32", "bool"))
    assert layout.offsets == (0, 8, 16, 20, 24)
    assert layout.size == 25
    assert layout.pack([-1, 0x1122334455667788, 1.0, 7, True]) == (
        b"\xff" + bytes(7) + bytes.fromhex("8877665544332211") + b"\x00\x3c" + bytes(2)
        + b"\x07\x00\x00\x00" + b"\x01"
    )  # fmt: skip


def test_no_arguments_take_no_bytes():
    assert pack([]) == b""


def test_a_tensor_map_lies_at_64_bytes():
    layout = ArgumentLayout(("i32", "tensormap", "i32"))
    assert layout.offsets == (0, 64, 192)
    packed = layout.pack([1, bytes(range(128)), 2])
    assert packed[64:192] == bytes(range(128))


@pytest.mark.parametrize("kind", FLOATS)
@settings(max_examples=100, deadline=None)
@given(value=st.floats(allow_nan=False))
def test_floats_round_as_numpy_casts_them(kind: str, value: float):
    with np.errstate(over="ignore"):
        expected = np.asarray(value).astype(FLOATS[kind]).tobytes()
    assert pack([(kind, value)]) == expected
    assert pack([(kind, np.float64(value))]) == expected


@pytest.mark.parametrize("kind", FLOATS)
def test_a_nan_stays_one(kind: str):
    assert np.isnan(np.frombuffer(pack([(kind, float("nan"))]), FLOATS[kind])[0])


@pytest.mark.parametrize("kind", FLOATS)
def test_a_scalar_of_the_kinds_own_type_keeps_its_bits(kind: str):
    scalar: Any = FLOATS[kind](1.5)
    assert pack([(kind, scalar)]) == scalar.tobytes()


@pytest.mark.parametrize("kind", INTEGERS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_integers_keep_their_value(kind: str, data: st.DataObject):
    info = np.iinfo(INTEGERS[kind])
    value = data.draw(st.integers(int(info.min), int(info.max)))
    assert pack([(kind, value)]) == INTEGERS[kind](value).tobytes()
    assert pack([(kind, INTEGERS[kind](value))]) == INTEGERS[kind](value).tobytes()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(sorted(KINDS)), max_size=12))
def test_the_layout_is_a_c_struct_without_its_tail(kinds: list[str]):
    layout = ArgumentLayout(tuple(kinds))
    end = 0
    for kind, offset in zip(kinds, layout.offsets, strict=True):
        alignment = KINDS[kind].alignment
        assert offset % alignment == 0
        assert 0 <= offset - end < alignment
        end = offset + KINDS[kind].size
    assert layout.size == end
    zeros: list[Value] = [bytes(128) if kind == "tensormap" else 0 for kind in kinds]
    assert layout.pack(zeros) == bytes(end)


@pytest.mark.parametrize(
    ("kinds", "values", "message"),
    [
        (["i32"], [2**31], "argument 0: expected a value of i32, found 2147483648"),
        (["ptr", "ui8"], [0, -1], "argument 1: expected a value of ui8, found -1"),
        (["i32"], [1.5], "argument 0: expected a value of i32, found 1.5"),
        (["i32", "f32"], [1], "expected 2 arguments, found 1"),
        (["i32", "bf16"], [1], "expected 2 arguments, found 1"),
        (["i32"], [1, 2], "expected 1 arguments, found 2"),
        (["tensormap"], [bytes(2)], "argument 0: expected 128 bytes, found b'\\x00\\x00'"),
        (["f32"], ["x"], "argument 0: expected a value of f32, found 'x'"),
        (["bf16"], [None], "argument 0: expected a value of bf16, found None"),
    ],
)
def test_what_does_not_fit_is_a_kernel_error(kinds: list[str], values: list[Any], message: str):
    with pytest.raises(KernelError) as error:
        ArgumentLayout(tuple(kinds)).pack(values)
    assert str(error.value) == message


def test_an_unknown_kind_is_a_compiler_bug():
    with pytest.raises(CompilerBug, match=r"found \['i3'\]"):
        ArgumentLayout(("i3",))


def test_a_tuple_of_values_is_taken_as_it_is():
    assert ArgumentLayout(("f32", "bf16")).pack((1.0, 1.0)) == struct.pack("<fH", 1.0, 0x3F80)


@pytest.mark.parametrize("kind", FLOATS)
def test_an_integer_beyond_every_float_is_infinite_or_a_nan(kind: str):
    packed = pack([(kind, -(10**400)), ("i32", 3)])
    first = np.frombuffer(packed[: KINDS[kind].size], FLOATS[kind])[0]
    assert not np.isfinite(first)
    assert packed[-4:] == b"\x03\x00\x00\x00"


def test_a_value_that_overflows_leaves_its_neighbours_alone() -> None:
    packed = ArgumentLayout(("bf16", "f16")).pack([-0.5, 1e9])
    assert packed == b"\x00\xbf\x00\x7c"
