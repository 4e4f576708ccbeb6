"""The emulator and a GPU execute the same PTX on the same operands, instruction by instruction.

Everything agrees bit for bit but what `approximations.BOUNDS` lists, which agrees within the bound.
Without a GPU, the emulator stands in for it, and planted differences must be seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.targets.nvptx.emulator.device_atomics import ATOMICS, Atomic
from tests.targets.nvptx.emulator.device_cases import CASES, Case
from tests.targets.nvptx.emulator.device_matrices import PRODUCTS, Product
from tests.targets.nvptx.emulator.evaluating import columns_of
from tests.targets.nvptx.emulator.on_device import CHIP, Functions, record, run_text
from tests.targets.nvptx.emulator.running import kernel
from tiledsl.targets.driver import Driver
from tiledsl.targets.gpu.emulator.driver import EmulatorDriver
from tiledsl.targets.nvptx.driver import driver as cuda
from tiledsl.targets.nvptx.emulator.approximations import Bound, bound_of

Array = NDArray[Any]
EXACT = [case for case in CASES if case.family != "approximate"]
_T = TypeVar("_T")


def _grouped(cases: Iterable[_T], key: Callable[[_T], str]) -> Any:
    """Return the parameters of a test: cases that share a key are one."""
    groups: dict[str, list[_T]] = defaultdict(list)
    for case in cases:
        groups[key(case)].append(case)
    return [pytest.param(group, id=name) for name, group in groups.items()]


def _stem(case: Case) -> str:
    return f"{case.family} {case.opcode.split('.')[0]}"


def _type(what: Product) -> str:
    return f"{'wgmma' if what.warpgroup else 'mma'} {what.types[1]} {what.types[2]}"


def _told(differences: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {found}" for name, found in differences.items() if found)


APPROXIMATE = [case for case in CASES if case.family == "approximate"]


def _emulator() -> EmulatorDriver:
    return EmulatorDriver(CHIP)


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")


def _ordered(array: Array) -> NDArray[np.int64]:
    """Return floats as integers in their order, one apart where they are neighbours."""
    bits = _bits(array).astype(np.int64)
    sign = np.int64(-(2**63)) if array.itemsize == 8 else np.int64(1 << 8 * array.itemsize - 1)
    return np.where(bits & sign, -(bits & ~sign), bits)


def _example(rows: Array, *columns: Array) -> str:
    """Show the first rows that differ, as bits."""
    shown = [
        " ".join(f"{int(_bits(column)[row]):#x}" for column in columns) for row in rows[:6].tolist()
    ]
    return "; ".join(shown)


def _run(driver: Driver, case: Case, operands: list[Array]) -> list[Array]:
    columns = columns_of(case.line, operands, case.results)
    text = kernel(columns.body, len(columns.arrays), chip=CHIP)
    left = run_text(driver, text, *columns.arrays, blocks=columns.blocks)
    return columns.found(left)


def differences(driver: Driver, case: Case) -> str:
    """Return what differs between a device and the emulator; "" where nothing does."""
    operands = case.drawn()
    told = ""
    found, wanted = _run(driver, case, operands), _run(_emulator(), case, operands)
    for one, other in zip(found, wanted, strict=True):
        rows = np.flatnonzero(_bits(one) != _bits(other))
        record(kind="instruction", family=case.family, name=case.line, rows=len(one),
               unequal=len(rows), example=_example(rows, *operands, one, other))  # fmt: skip
        if len(rows):
            told += f"{len(rows)} of {len(one)}: {_example(rows, *operands, one, other)}"
    return told


@pytest.mark.gpu
@pytest.mark.parametrize("cases", _grouped(EXACT, _stem))
def test_what_ptx_defines_agrees_bit_for_bit(cases: list[Case]) -> None:
    told = _told({case.line: differences(cuda(), case) for case in cases})
    assert not told, told


class _Wrong(EmulatorDriver):
    """A device that gets one bit wrong of whatever it is asked for."""

    def copy_out(self, array: Array, address: int, device: int = 0) -> None:
        super().copy_out(array, address, device)
        array.reshape(-1).view(np.uint8)[array.nbytes // 2] ^= 1


def test_a_single_wrong_bit_is_seen() -> None:
    case = next(one for one in EXACT if one.opcode == "max.f32")
    assert not differences(_emulator(), case)
    assert differences(_Wrong(CHIP), case).startswith(f"1 of {case.rows}: ")
    assert product_differences(_Wrong(CHIP), PRODUCTS[0]).startswith("1 of ")
    assert atomic_differences(_Wrong(CHIP), ATOMICS[0]).startswith("value 1: ")


# --- approximations ------------------------------------------------------------------------------


def beyond(bound: Bound, operands: list[Array], found: Array, exact: Array) -> Array:
    """Return the rows where a result is further from the emulator's than both may be together."""
    with np.errstate(all="ignore"):
        wide, near = found.astype(np.float64), exact.astype(np.float64)
        allowed = np.maximum(np.abs(near) * bound.relative, bound.absolute)
        allowed += _spacing(exact) * np.where(_is_subnormal(found), 1, 0.5)
        same = (wide == near) | (np.isnan(wide) & np.isnan(near))
        inside = np.ones(len(wide), np.bool_)
        for one in operands:
            inside &= ~(np.abs(one.astype(np.float64)) > bound.largest)
        return np.flatnonzero(~same & ~(np.abs(wide - near) <= allowed) & inside)


def _is_subnormal(values: Array) -> NDArray[np.bool_]:
    bits = _bits(values)
    fraction = {np.dtype(np.float16): 10, np.dtype(np.float32): 23, np.dtype(np.float64): 52}
    width = fraction.get(values.dtype, 7)
    return (bits & bits.dtype.type((1 << 8 * bits.dtype.itemsize - 1) - 1)) >> width == 0


def _spacing(values: Array) -> NDArray[np.float64]:
    """Return units in the last place; of `.approx.ftz.f64`, whose lower half is zero, larger ones."""
    ulp = np.abs(np.spacing(values).astype(np.float64))
    coarse = values.dtype == np.float64 and not (_bits(values) & np.uint64(0xFFFFFFFF)).any()
    return ulp * 2.0**32 if coarse else ulp


def _typed(case: Case, operands: list[Array]) -> list[Array]:
    return [one.view(case.results[0]) for one in operands]


def _errors(
    bound: Bound, operands: list[Array], found: Array, exact: Array
) -> dict[str, float | str]:
    """Return the worst errors of finite results where the bound holds, and where the worst is."""
    with np.errstate(all="ignore"):
        wide, near = found.astype(np.float64), exact.astype(np.float64)
        inside = np.isfinite(wide) & np.isfinite(near)
        for one in operands:
            inside &= ~(np.abs(one.astype(np.float64)) > bound.largest)
        apart = np.where(inside, np.abs(_ordered(found) - _ordered(exact)), 0)
        error = np.where(inside, np.abs(wide - near), 0)
        relative = np.where(inside & (near != 0), error / np.abs(near), 0)
    worst = np.flatnonzero(apart == apart.max())
    return {
        "ulps": float(apart.max()),
        "absolute": float(error.max()),
        "relative": float(relative.max()),
        "worst": _example(worst[:1], *operands, found, exact),
    }


@pytest.mark.gpu
@pytest.mark.parametrize("case", APPROXIMATE, ids=lambda case: case.line)
def test_approximations_keep_their_bounds(case: Case) -> None:
    bound = bound_of(case.opcode)
    assert bound is not None
    operands = case.drawn()
    (found,), (exact,) = _run(cuda(), case, operands), _run(_emulator(), case, operands)
    operands = _typed(case, operands)
    rows = beyond(bound, operands, found, exact)
    record(kind="approximation", name=case.opcode, rows=len(found), beyond=len(rows),
           unequal=int((_bits(found) != _bits(exact)).sum()), **_errors(bound, operands, found, exact),
           example=_example(rows, *operands, found, exact))  # fmt: skip
    assert not len(rows), f"{len(rows)}: {_example(rows, *operands, found, exact)}"


@pytest.mark.parametrize("name", ["ex2.approx.f32", "tanh.approx.f16", "div.full.f32"])
def test_the_emulator_keeps_its_own_bounds_and_no_others(name: str) -> None:
    case = next(one for one in APPROXIMATE if one.opcode == name)
    bound = bound_of(name)
    assert bound is not None
    operands = case.drawn()
    (exact,) = _run(_emulator(), case, operands)
    operands = _typed(case, operands)
    assert not len(beyond(bound, operands, exact, exact))
    wrong = exact.astype(np.float64) * (1 + 3 * bound.relative) + 3 * bound.absolute
    with np.errstate(over="ignore"):
        assert len(beyond(bound, operands, wrong.astype(exact.dtype), exact)) > len(exact) // 4


def test_a_device_computes_single_instructions_for_the_emulator() -> None:
    functions = Functions(_emulator())
    half = np.array([[1.0, 2.0], [-3.0, 0.5]], np.float16)
    found = functions("ex2.approx.f16x2", "f16x2", [half])
    np.testing.assert_array_equal(found, np.exp2(half))
    quotient = functions("div.full.f32", "f32", [np.float32(3), np.array([2, 4], np.float32)])
    np.testing.assert_array_equal(quotient, np.array([1.5, 0.75], np.float32))


# --- matrices and atomics ------------------------------------------------------------------------


def product_differences(driver: Driver, what: Product) -> str:
    """Return what differs between a device's product and the emulator's."""
    text, arrays = what.text(CHIP), what.arrays()
    found, wanted = (
        run_text(one, text, *arrays, threads=what.threads, blocks=what.blocks)[-1]
        for one in (driver, _emulator())
    )
    result = np.dtype({"f16": "u2", "f64": "u8"}.get(what.types[0], "u4"))
    one, other = found.view(result), wanted.view(result)
    rows = np.flatnonzero(one != other)
    record(kind="matrix", name=str(what), rows=len(one), unequal=len(rows),
           example=_example(rows, one, other))  # fmt: skip
    return f"{len(rows)} of {len(one)}: {_example(rows, one, other)}" if len(rows) else ""


@pytest.mark.gpu
@pytest.mark.parametrize("products", _grouped(PRODUCTS, _type))
def test_matrix_instructions_agree_bit_for_bit(products: list[Product]) -> None:
    told = _told({str(what): product_differences(cuda(), what) for what in products})
    assert not told, told


@pytest.mark.gpu
@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomics_agree_bit_for_bit(space: str) -> None:
    here = [what for what in ATOMICS if what.space == space]
    told = _told({str(what): atomic_differences(cuda(), what) for what in here})
    assert not told, told


def atomic_differences(driver: Driver, what: Atomic) -> str:
    """Return what differs after each thread's atomic on its own word, or in the old value."""
    text, arrays = what.text(CHIP), what.arrays()
    told = ""
    both = (run_text(one, text, *arrays, blocks=what.blocks) for one in (driver, _emulator()))
    for name, one, other in zip(("value", "", "", "old"), *both, strict=True):
        rows = np.flatnonzero(one != other)
        record(kind="atomic", name=f"{what} {name}", rows=len(one), unequal=len(rows),
               example=_example(rows, *arrays[:3], one, other))  # fmt: skip
        if len(rows):
            told += f"{name} {len(rows)}: {_example(rows, *arrays[:3], one, other)} "
    return told


@pytest.mark.parametrize("number", [0, len(PRODUCTS) // 2, -1])
def test_products_agree_with_themselves(number: int) -> None:
    assert not product_differences(_emulator(), PRODUCTS[number])


def test_atomics_agree_with_themselves() -> None:
    for what in ATOMICS[:: len(ATOMICS) // 6]:
        assert not atomic_differences(_emulator(), what)
