"""The signature notation."""

import os
import pickle
import subprocess
import sys

import pytest

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.specialize import (
    NAMES,
    ArgType,
    Strides,
    Written,
    integer_type,
    parse,
    sharing,
    specialize_integer,
)


@pytest.mark.parametrize(
    ("text", "argument"),
    [
        ("*fp16:16", ArgType("fp16", pointer=True, divisor=16)),
        ("*u8", ArgType("u8", pointer=True)),
        ("*fp16:16=x", ArgType("fp16", pointer=True, divisor=16, same_as="x")),
        ("*i32=x.base", ArgType("i32", pointer=True, same_as="x.base")),
        ("*i1", ArgType("i1", pointer=True)),
        ("i64:16", ArgType("i64", divisor=16)),
        ("i32:8", ArgType("i32", divisor=8)),
        ("u32:4", ArgType("u32", divisor=4)),
        ("fp32", ArgType("fp32")),
        ("1", ArgType("i32", value=1)),
        ("-4294967296", ArgType("i64", value=-(2**32))),
    ],
)
def test_an_entry_reads_and_prints_back(text: str, argument: ArgType) -> None:
    assert parse(text, "x") == argument
    assert str(argument) == text


def test_every_type_has_a_packing_kind() -> None:
    assert all(ArgType(name).kind for name in NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "*",
        "float",
        "fp32:16",
        "i32:2",
        "*fp16:8",
        "i1:16",
        "**fp16",
        "i32=x",
        "*i32=",
        str(2**64),
    ],
)
def test_a_wrong_entry_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(KernelError) as raised:
        parse(text, "x")
    assert str(raised.value) == (
        "signature of `x`: expected `*dtype`, `dtype` or an integer, with `:16` where a pointer or "
        "integer is a multiple of 16 (`:8`, `:4` of integers), and `=x` where a pointer is the same "
        f"as `x`, found {text!r}\n  hint: dtype is one of {', '.join(NAMES)}"
    )


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0, "i32"),
        (2**31 - 1, "i32"),
        (2**31, "i64"),
        (-(2**31), "i32"),
        (2**63, "u64"),
        (2**64, None),
    ],
)
def test_a_python_integer_takes_the_first_type_that_holds_it(value: int, dtype: str | None) -> None:
    assert integer_type(value) == dtype


def test_integers_specialize_on_one_and_on_what_they_are_multiples_of() -> None:
    assert specialize_integer("i32", 1).value == 1
    for value, divisor in ((32, 16), (0, 16), (-16, 16), (24, 8), (20, 4), (18, 1), (17, 1)):
        assert specialize_integer("i32", value).divisor == divisor


@pytest.mark.parametrize("value", [0, -8, -16, 2**36])
def test_strides_that_tma_does_not_take_are_not_known_as_multiples(value: int) -> None:
    found = specialize_integer("i64", value)
    assert found.coarse(4) == ArgType("i64")
    assert found.coarse() == ArgType("i64", divisor=16 if value % 16 == 0 else 1)


def test_only_strides_are_told_apart_below_sixteen() -> None:
    n = {value: specialize_integer("i32", value) for value in (12, 17, 24, 32)}
    assert n[24].coarse() == n[17].coarse() == n[12].coarse() == ArgType("i32")
    assert n[24].coarse(8).divisor == n[24].coarse(4).divisor == 8
    assert n[12].coarse(8) == n[17].coarse(8) == ArgType("i32")
    assert n[32].coarse().divisor == n[32].coarse(8).divisor == 16
    assert ArgType("fp16", pointer=True, divisor=16).coarse(8).divisor == 16
    assert ArgType("i32", value=1).coarse(8).value == 1


def test_the_least_need_of_a_stride_is_kept() -> None:
    strides = Strides()
    strides.learn({"s": 8})
    strides.learn({"s": 4, "t": 16})
    strides.learn({"s": 16})
    assert strides == {"s": 4, "t": 16}
    signature: dict[str, ArgType] = {n: specialize_integer("i32", 24) for n in ("s", "t", "n")}
    assert [a.divisor for a in strides.coarse(signature).values()] == [8, 1, 1]


def test_pointers_that_are_the_same_matter_where_one_is_written() -> None:
    apart = ArgType("fp32", pointer=True)
    one, two = (ArgType("fp32", pointer=True, same_as=name) for name in ("x", "y"))
    signature = {"x": apart, "out": one, "y": apart, "z": two, "n": ArgType("i32")}
    for written, kept in ((), []), (("out",), ["out"]), (("x",), ["out"]), (("z", "w"), ["z"]):
        found = Written(written).coarse(signature)
        assert list(found) == list(signature)
        assert [name for name, argument in found.items() if argument.same_as] == kept


def test_equal_addresses_are_found() -> None:
    assert sharing([]) == sharing([8, 16, 24]) == ()
    assert sharing([8, 16, 8, 16]) == (0, 1, 0, 1)


PICKLE = """
import pickle, sys
from tiledsl.specialize import ArgType
sys.stdout.buffer.write(pickle.dumps(ArgType("fp32", pointer=True)))
"""


def test_a_type_from_another_process_is_the_same_key() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    ran = subprocess.run([sys.executable, "-c", PICKLE], env=environment, capture_output=True)
    theirs, ours = pickle.loads(ran.stdout), ArgType("fp32", pointer=True)
    assert theirs == ours
    assert hash(theirs) == hash(ours)


def test_an_integer_stands_for_itself() -> None:
    assert parse(1, "x") == parse("1", "x")  # pyright: ignore[reportArgumentType]
