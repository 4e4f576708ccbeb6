"""wgmma: every type, layout and swizzle of its operands, and what is forbidden before the wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.targets.nvptx.emulator.running import Outcome, run
from tiledsl.targets.gpu.emulator.cohort import Mode
from tiledsl.targets.gpu.emulator.findings import Kind

Array = NDArray[Any]
_CODES = {0: 0, 128: 1, 64: 2, 32: 3}
_NUMPY: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "s8": np.int8, "u8": np.uint8,
}  # fmt: skip


@dataclass(frozen=True)
class Image:
    """Shared memory that holds a matrix, and how a descriptor of it reads."""

    data: NDArray[np.uint8]
    leading: int
    stride: int
    swizzle: int

    def high(self) -> int:
        """The descriptor but for its start."""
        fields = (self.leading >> 4) << 16 | (self.stride >> 4) << 32
        return fields | _CODES[self.swizzle] << 62


def _swizzled(offset: int, swizzle: int) -> int:
    return offset ^ ((offset >> 7) & (max(swizzle // 16, 1) - 1)) << 4


def _image(
    size: int, bytes_: Array, place: Callable[[int, int], int], swizzle: int
) -> NDArray[np.uint8]:
    data = np.zeros(size, np.uint8)
    for i, j in np.ndindex(bytes_.shape):
        data[_swizzled(place(i, j), swizzle)] = bytes_[i, j]
    return data


def k_major(matrix: Array, swizzle: int) -> Image:
    """Lay rows out one after the other, each of one instruction's k: 32 bytes."""
    bytes_ = np.ascontiguousarray(matrix).view(np.uint8)
    rows = len(bytes_)
    if swizzle == 0:

        def place(r: int, b: int) -> int:
            return r % 8 * 16 + r // 8 * 256 + b // 16 * 128 + b % 16

        return Image(_image(rows * 32, bytes_, place, 0), 128, 256, 0)

    def pitch(r: int, b: int) -> int:
        return r * swizzle + b

    return Image(_image(rows * swizzle, bytes_, pitch, swizzle), 16, 8 * swizzle, swizzle)


def mn_major(matrix: Array, swizzle: int) -> Image:
    """Lay columns out: matrix is (rows, k), and rows are what is contiguous."""
    bytes_ = np.ascontiguousarray(matrix.T).view(np.uint8)
    depth, width = bytes_.shape
    if swizzle == 0:
        leading, stride = width // 16 * 128, 128

        def place(k: int, b: int) -> int:
            return k % 8 * 16 + k // 8 * leading + b // 16 * stride + b % 16

        return Image(_image(depth * width, bytes_, place, 0), leading, stride, 0)
    chunk = depth * swizzle

    def tiled(k: int, b: int) -> int:
        return b // swizzle * chunk + k * swizzle + b % swizzle

    size = -(-width // swizzle) * chunk
    return Image(_image(size, bytes_, tiled, swizzle), chunk, 8 * swizzle, swizzle)


def _copy_in(size: int) -> str:
    """Copy the image, `%a0`, to shared memory, 2048 bytes a round."""
    lines = ["mov.u32 %r60, s; shl.b32 %r61, %t, 4; add.s32 %r62, %r60, %r61;",
             "mul.wide.u32 %d60, %r61, 1; add.s64 %d61, %a0, %d60;"]  # fmt: skip
    for start in range(0, size, 2048):
        lines.append(f"ld.global.v4.b32 {{%r50,%r51,%r52,%r53}}, [%d61+{start}];")
        lines.append(f"st.shared.v4.b32 [%r62+{start}], {{%r50,%r51,%r52,%r53}};")
    return "\n".join(lines)


def _registers(n: int, half: bool) -> int:
    return n // 4 if half else n // 2


def _program(
    opcode: str, n: int, sizes: tuple[int, int], high: tuple[int, int], tail: str, *,
    half: bool = False, fence: str = "wgmma.fence.sync.aligned;",
    proxy: str = "fence.proxy.async;", wait: str = "wgmma.wait_group.sync.aligned 0;",
    source: str = "%d10", before: str = "", keep: str = "0", between: str = "",
) -> str:  # fmt: skip
    count = _registers(n, half)
    d = ", ".join(f"%c{i}" for i in range(count))
    zero = "\n".join(f"mov.b32 %c{i}, {keep};" for i in range(count))
    store = "\n".join(f"st.global.b32 [%d40+{4 * i}], %c{i};" for i in range(count))
    return f"""
.reg .b32 %c<{count}>;
{_copy_in(sum(sizes))}
{proxy}
bar.sync 0;
{before}
mul.wide.u32 %d1, %r60, 1;
shr.u64 %d2, %d1, 4;
add.s64 %d10, %d2, {high[0]};
add.s64 %d3, %d1, {sizes[0]};
shr.u64 %d4, %d3, 4;
add.s64 %d11, %d4, {high[1]};
setp.ne.s32 %p1, {keep}, 0;
{zero}
{fence}
wgmma.mma_async.sync.aligned.{opcode} {{{d}}}, {source}, %d11, %p1{tail};
wgmma.commit_group.sync.aligned;
{between}
{wait}
mul.wide.u32 %d41, %t, {4 * count};
add.s64 %d40, %a1, %d41;
{store}
"""


def _result(left: Array, n: int, kind: Any) -> Array:
    """Undo the accumulator's layout: each thread's registers in a row, (128, registers)."""
    found = np.zeros((64, n), kind)
    values = left.reshape(128, -1).view(kind)
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        for i, value in enumerate(values[thread]):
            row = 16 * warp + lane // 4 + 8 * (i // 2 % 2)
            found[row, lane % 4 * 2 + i % 2 + i // 4 * 8] = value
    return found


def _values(kind: str, shape: tuple[int, int], seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if kind in ("s8", "u8"):
        info = np.iinfo(_NUMPY[kind])
        return rng.integers(info.min, info.max, shape).astype(_NUMPY[kind])
    return rng.normal(size=shape).astype(np.float32).astype(_NUMPY[kind])


def _padded(image: Image) -> NDArray[np.uint8]:
    size = -(-len(image.data) // 2048) * 2048
    return np.concatenate((image.data, np.zeros(size - len(image.data), np.uint8)))


def _multiply(
    kinds: tuple[str, str], n: int, a: Image, b: Image, *, tail: str = ", 1, 1", result: str = "f32",
    mode: Mode = Mode.EAGER, **more: Any,
) -> Outcome:  # fmt: skip
    depth = 32 // _NUMPY[kinds[0]](0).itemsize
    left, right = _padded(a), _padded(b)
    count = _registers(n, result == "f16")
    body = _program(
        f"m64n{n}k{depth}.{result}.{kinds[0]}.{kinds[1]}", n, (len(left), len(right)),
        (a.high(), b.high()), tail, half=result == "f16", **more,
    )  # fmt: skip
    image = np.concatenate((left, right))
    out = np.zeros((128, count), np.uint32)
    return run(body, image, out, chip="sm_90a", threads=128, shared=len(image), mode=mode)


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_16_bit_operands_of_every_layout(kind: str, turned: str, swizzle: int) -> None:
    n = 64
    a, b = _values(kind, (64, 16), 1), _values(kind, (n, 16), 2)
    layouts = [mn_major if one in turned else k_major for one in "ab"]
    turns = f", {int('a' in turned)}, {int('b' in turned)}"
    outcome = _multiply(
        (kind, kind), n, layouts[0](a, swizzle), layouts[1](b, swizzle), tail=", 1, 1" + turns
    )
    assert outcome.findings == []
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(_result(outcome.arrays[1], n, np.float32), expected, atol=2e-6)


@pytest.mark.parametrize("n", [8, 24, 128, 256])
def test_every_width_has_its_accumulator(n: int) -> None:
    a, b = _values("f16", (64, 16), 1), _values("f16", (n, 16), 2)
    outcome = _multiply(("f16", "f16"), n, k_major(a, 128), k_major(b, 128), tail=", 1, 1, 0, 0")
    assert outcome.findings == []
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(_result(outcome.arrays[1], n, np.float32), expected, atol=2e-6)


@pytest.mark.parametrize("kinds", [("tf32", "tf32"), ("e4m3", "e5m2"), ("s8", "u8"), ("u8", "u8")])
def test_other_types(kinds: tuple[str, str]) -> None:
    depth = 32 // _NUMPY[kinds[0]](0).itemsize
    a, b = _values(kinds[0], (64, depth), 1), _values(kinds[1], (16, depth), 2)
    integer = kinds[0] in ("s8", "u8")
    outcome = _multiply(
        kinds, 16, k_major(a, 32), k_major(b, 64), tail="" if integer else ", 1, 1",
        result="s32" if integer else "f32",
    )  # fmt: skip
    assert outcome.findings == []
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    if integer:
        np.testing.assert_array_equal(_result(outcome.arrays[1], 16, np.int32), exact)
    else:
        tolerance = 2e-2 if kinds[0] == "tf32" else 4e-3  # tf32 drops bits, fp8 sums keep 13
        found = _result(outcome.arrays[1], 16, np.float32)
        np.testing.assert_allclose(found, exact, atol=tolerance * np.abs(exact).max())


def test_f16_accumulators_share_registers() -> None:
    a, b = _values("f16", (64, 16), 1), _values("f16", (16, 16), 2)
    outcome = _multiply(
        ("f16", "f16"), 16, k_major(a, 128), k_major(b, 128), tail=", 1, 1, 0, 0", result="f16"
    )
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(_result(outcome.arrays[1], 16, np.float16), expected, atol=1e-2)


def test_operands_can_be_negated_and_the_accumulator_kept() -> None:
    a, b = _values("f16", (64, 16), 1), _values("f16", (8, 16), 2)
    outcome = _multiply(
        ("f16", "f16"), 8, k_major(a, 128), k_major(b, 128), tail=", -1, 1, 0, 0",
        keep=str(0x40400000),
    )  # fmt: skip
    expected = 3.0 - a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(_result(outcome.arrays[1], 8, np.float32), expected, atol=4e-6)


_FIRST = """
shr.u32 %r1, %t, 5; shl.b32 %r1, %r1, 4; and.b32 %r2, %t, 31; shr.u32 %r3, %r2, 2;
add.s32 %r1, %r1, %r3; shl.b32 %r1, %r1, 5; and.b32 %r2, %t, 3; shl.b32 %r2, %r2, 2;
add.s32 %r1, %r1, %r2; add.s32 %r1, %r1, %r60;
ld.shared.b32 %r10, [%r1]; ld.shared.b32 %r11, [%r1+256];
ld.shared.b32 %r12, [%r1+16]; ld.shared.b32 %r13, [%r1+272];
"""
"""Load A's fragment from rows of 32 bytes."""


def _from_registers(**more: Any) -> tuple[Outcome, Array]:
    a, b = _values("f16", (64, 16), 1), _values("f16", (8, 16), 2)
    plain = Image(np.ascontiguousarray(a).view(np.uint8).ravel(), 16, 256, 0)
    outcome = _multiply(
        ("f16", "f16"), 8, plain, k_major(b, 128), tail=", 1, 1, 0", before=_FIRST,
        source="{%r10, %r11, %r12, %r13}", **more,
    )  # fmt: skip
    return outcome, a.astype(np.float64) @ b.astype(np.float64).T


def test_a_from_registers() -> None:
    outcome, expected = _from_registers()
    assert outcome.findings == []
    np.testing.assert_allclose(_result(outcome.arrays[1], 8, np.float32), expected, atol=2e-6)


# --- what is forbidden ---------------------------------------------------------------------------


def _faulty(mode: Mode = Mode.EAGER, **faults: str) -> Outcome:
    a, b = _values("f16", (64, 16), 1), _values("f16", (8, 16), 2)
    return _multiply(
        ("f16", "f16"),
        8,
        k_major(a, 128),
        k_major(b, 128),
        tail=", 1, 1, 0, 0",
        mode=mode,
        **faults,
    )


@pytest.mark.parametrize("mode", list(Mode))
def test_an_accumulator_read_before_the_wait_is_found(mode: Mode) -> None:
    outcome = _faulty(mode, wait="")
    assert outcome.kinds == {Kind.MISSING_WAIT}
    assert "accumulator" in outcome.findings[0].message
    assert outcome.findings[0].instruction.text.startswith("st.global")


def test_an_accumulator_copied_before_the_wait_may_be_read_after_it() -> None:
    assert _faulty(between="mov.b32 %r20, %c1;").findings == []


def test_a_copy_of_an_accumulator_read_before_the_wait_is_found() -> None:
    outcome = _faulty(between="mov.b32 %r20, %c1; add.s32 %r21, %r20, 1;")
    assert [one.instruction.text for one in outcome.findings] == ["add.s32 %r21, %r20, 1"]


def test_an_accumulator_overwritten_before_the_wait_is_found() -> None:
    outcome = _faulty(between="mov.b32 %c1, 0;")
    assert [one.instruction.text for one in outcome.findings] == ["mov.b32 %c1, 0"]


def test_shared_memory_overwritten_before_the_wait_is_found() -> None:
    outcome = _faulty(between="st.shared.b32 [%r62], %t;")
    assert {one.instruction.text for one in outcome.findings} == {"st.shared.b32 [%r62], %t"}
    assert outcome.kinds == {Kind.MISSING_WAIT, Kind.RACE}  # other warps' reads are not over, too


def test_writes_that_no_fence_shows_the_asynchronous_proxy_are_found() -> None:
    outcome = _faulty(proxy="")
    assert outcome.kinds == {Kind.MISSING_WAIT}
    assert "fence.proxy.async" in outcome.findings[0].message


@pytest.mark.parametrize("proxy", ["", "fence.proxy.async;"])
def test_cp_async_writes_plainly(proxy: str) -> None:
    copy = "cp.async.cg.shared.global [%r62], [%d61], 16; cp.async.wait_all;"
    outcome = _faulty(proxy=f"fence.proxy.async; bar.sync 0; {copy} {proxy}")
    assert outcome.kinds == (set() if proxy else {Kind.MISSING_WAIT})


def test_a_product_without_a_fence_is_found() -> None:
    outcome = _faulty(fence="")
    assert outcome.kinds == {Kind.MISSING_WAIT}
    assert "wgmma.fence" in outcome.findings[0].message


def test_a_wait_that_keeps_the_last_group_is_found() -> None:
    outcome = _faulty(wait="wgmma.wait_group.sync.aligned 1;")
    assert outcome.kinds == {Kind.MISSING_WAIT}


def test_an_operand_overwritten_before_the_wait_is_found() -> None:
    assert _from_registers(between="add.s32 %r20, %r11, 1;")[0].findings == []  # it may be read
    outcome, _ = _from_registers(between="add.s32 %r11, %r1, 1;")
    assert [one.instruction.text for one in outcome.findings] == ["add.s32 %r11, %r1, 1"]


def test_an_operand_that_is_still_being_written_is_found() -> None:
    again = """wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1,%f2,%f3,%f4},
    {%c0, %c1, %c2, %c3}, %d11, %p1, 1, 1, 0; wgmma.commit_group.sync.aligned;"""
    outcome, _ = _from_registers(between=again)
    assert len(outcome.findings) == 1
    assert "still being written" in outcome.findings[0].message
