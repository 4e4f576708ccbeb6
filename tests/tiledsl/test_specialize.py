"""The signature notation."""

import os
import pickle
import subprocess
import sys

import pytest

from tiledsl.dialects.diagnostics import KernelError
from tiledsl.specialize import NAMES, ArgType, integer_type, parse, specialize_integer


@pytest.mark.parametrize(
    ("text", "argument"),
    [
        ("*fp16:16", ArgType("fp16", pointer=True, divisible=True)),
        ("*u8", ArgType("u8", pointer=True)),
        ("*i1", ArgType("i1", pointer=True)),
        ("i64:16", ArgType("i64", divisible=True)),
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
    "text", ["", "*", "float", "fp32:16", "i32:8", "i1:16", "**fp16", str(2**64)]
)
def test_a_wrong_entry_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(KernelError) as raised:
        parse(text, "x")
    assert str(raised.value) == (
        "signature of `x`: expected `*dtype`, `dtype` or an integer, with `:16` where a pointer or "
        f"integer is a multiple of 16, found {text!r}\n  hint: dtype is one of {', '.join(NAMES)}"
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


def test_integers_specialize_on_one_and_on_multiples_of_sixteen() -> None:
    assert specialize_integer("i32", 1).value == 1
    assert specialize_integer("i32", 32).divisible
    assert specialize_integer("i32", 0).divisible
    assert specialize_integer("i32", 17) == ArgType("i32")


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
