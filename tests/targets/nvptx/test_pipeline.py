from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from mlir import ir

from tests.targets.gpu.test_atomics import kernel as atomic
from tests.targets.gpu.test_control_flow import FOR, IF, WHILE
from tests.targets.gpu.test_dot import product
from tests.targets.gpu.test_memory import masked_copy
from tests.targets.nvptx.kernels import compile_for, ptx_of
from tests.transforms.tile_kernels import Kernel, attention, matmul, softmax, vector_add
from tiledsl.dialects.context import parse
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.nvptx.chips import CHIPS
from tiledsl.targets.nvptx.ptxas import find_ptxas
from tiledsl.targets.nvptx.target import chips, pipeline
from tiledsl.targets.target import Options

needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="no ptxas")


def every_cast() -> ir.Module:
    """Build all pairs of float types, and floats to integers."""
    k = Kernel("*f32", "*f32")
    x = k.load(k.pointers(k.args[0], 256))
    total = x
    for narrow in ("f16", "bf16", "f64", "f8E4M3FN", "f8E5M2"):
        back = k.cast(k.cast(x, narrow), "f32")
        total = k.op("arith.addf", total, back)
    for number in ("i8", "i32", "i64"):
        made = k.op("arith.sitofp", k.cast(x, number), result=x.type)
        total = k.op("arith.addf", total, made)
    k.store(k.pointers(k.args[1], 256), total)
    return k.finish()


def every_function(element: str) -> ir.Module:
    k = Kernel(f"*{element}", f"*{element}")
    x = k.load(k.pointers(k.args[0], 256))
    total = x
    for name in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf",
                 "floor", "ceil", "absf"):  # fmt: skip
        total = k.op("arith.addf", total, k.op(f"math.{name}", x))
    for name in ("divf", "maximumf", "minimumf", "maxnumf", "minnumf"):
        total = k.op(f"arith.{name}", total, x)
    k.store(k.pointers(k.args[1], 256), total)
    return k.finish()


KERNELS: dict[str, Callable[[], ir.Module]] = {
    "vector_add": vector_add,
    "softmax": softmax,
    "matmul": matmul,
    "attention": attention,
    "masks": lambda: masked_copy("f8E4M3FN", 256, 1.0),
    "for": lambda: parse(FOR),
    "if": lambda: parse(IF),
    "while": lambda: parse(WHILE),
    "casts": every_cast,
    "functions f16": lambda: every_function("f16"),
    "functions bf16": lambda: every_function("bf16"),
    "functions f64": lambda: every_function("f64"),
    "dot f16": lambda: product(32, 32, 32, "f16", "f16"),
    "dot bf16": lambda: product(32, 32, 32, "bf16", "f32"),
    "dot f64": lambda: product(32, 32, 32, "f64", "f64"),
    "dot tf32": lambda: product(32, 32, 32, "f32", "f32", precision="tf32"),
    "dot i8": lambda: product(32, 32, 32, "i8", "i32", a_unsigned=True),
    "dot fp8": lambda: product(32, 32, 32, "f8E4M3FN", "f32", "f8E5M2"),
    "dot small": lambda: product(2, 4, 8, "f8E4M3FN", "f32"),
    "atomic add i32": lambda: atomic("add", "i32", 256),
    "atomic add bf16": lambda: atomic("fadd", "bf16", 256, used=False),
    "atomic max f64": lambda: atomic("fmax", "f64", 256),
    "atomic max i8": lambda: atomic("max", "i8", 256),
}


MAIN = ("matmul",)
PAIRS = [
    (name, chip)
    for name in KERNELS
    # The oldest chip and the newest have all the differences that these kernels show.
    for chip in (CHIPS if name in MAIN else ("sm_80", "sm_120"))
]


@needs_ptxas
@pytest.mark.parametrize(("name", "chip"), PAIRS)
def test_ptxas_takes_every_kernel_and_spills_nothing(name: str, chip: str) -> None:
    resources = compile_for(chip, KERNELS[name]()).resources
    assert resources is not None
    assert (resources.spill_bytes, resources.local_bytes) == (0, 0)


def test_vector_add_moves_16_bytes_at_a_time_without_a_branch() -> None:
    ptx = ptx_of("sm_80", vector_add())
    assert len(re.findall(r"ld\.global\.v4\.b32", ptx)) == 4
    assert len(re.findall(r"st\.global\.v4\.b32", ptx)) == 2
    assert "bra" not in ptx


def test_only_lanes_that_some_threads_have_beyond_the_end_are_masked() -> None:
    """Of 32 elements of each of 128 threads, 8 may be inside or not, 8 are outside for all."""
    k = Kernel("*bf16")
    lanes = k.range(4096)
    mask = k.cmp(lanes, k.splat(k.constant(3000, k.type("i32")), 4096))
    pointers = k.addptr(k.splat(k.args[0], 4096), lanes)
    k.store(pointers, k.load(pointers, mask), mask)
    ptx = ptx_of("sm_90a", k.finish())
    assert re.findall(r"setp\.(\w+)\.u32 .*, (\d+);", ptx) == [("lt", "119")]
    assert sorted(re.findall(r"mov\.pred .*, (-?\d);", ptx)) == ["-1", "0"]


def test_masked_accesses_are_predicated_without_a_branch() -> None:
    ptx = ptx_of("sm_80", masked_copy("f32", 256))
    assert re.search(r"@%p\d+ ld\.global\.b32", ptx)
    assert re.search(r"@%p\d+ st\.global\.b32", ptx)
    assert "bra" not in ptx


@pytest.mark.parametrize("chip", ["sm_80", "sm_120"])
def test_matmul_copies_ahead_and_multiplies_from_matrices(chip: str) -> None:
    ptx = ptx_of(chip, matmul())
    loop = ptx[ptx.index("$L__BB0_2:") :]
    loop = loop[: loop.index("bra")]
    assert loop.count("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") == 64
    assert len(re.findall(r"ldmatrix\.sync\.aligned\.m8n8\.x4", loop)) == 16
    assert len(re.findall(r"cp\.async\.cg\.shared\.global \[[^]]*\], \[[^]]*\], 16", loop)) == 8
    assert loop.count("cp.async.wait_group") == 1
    assert loop.count("bar.sync") == 1
    assert "ld.global" not in loop
    assert "st.shared" not in loop


def test_an_accumulator_is_zero_without_moving_anything_in_the_loop() -> None:
    ptx = ptx_of("sm_80", matmul())
    loop = ptx[ptx.index("$L__BB0_2:") :]
    assert not re.search(r"mov\.b32", loop[: loop.index("bra")])


def test_division_and_sums_are_rounded_as_ieee_says() -> None:
    k = Kernel("*f32", "*f32")
    x = k.load(k.pointers(k.args[0], 256))
    y = k.op("math.sqrt", k.op("arith.divf", x, k.op("arith.addf", k.op("arith.mulf", x, x), x)))
    k.store(k.pointers(k.args[1], 256), y)
    ptx = ptx_of("sm_80", k.finish())
    # Without `.rn` ptxas would fuse the product into the sum.
    for name in ("mul.rn.f32", "add.rn.f32", "div.rn.f32", "sqrt.rn.f32"):
        assert name in ptx


@pytest.mark.parametrize("flags", ["none", "contract"])
def test_a_product_is_fused_into_a_sum_where_the_author_allows_it(flags: str) -> None:
    k = Kernel("*f32", "*f32")
    x = k.load(k.pointers(k.args[0], 256))
    y = k.op("arith.addf", k.op("arith.mulf", x, x), x)
    with k.here():
        for value in (y, y.owner.operands[0]):
            attribute = ir.Attribute.parse(f"#arith.fastmath<{flags}>")
            value.owner.operation.attributes["fastmath"] = attribute
    k.store(k.pointers(k.args[1], 256), y)
    assert ("fma.rn.f32" in ptx_of("sm_80", k.finish())) == (flags == "contract")


@pytest.mark.parametrize("warps", [0, 3, 64])
def test_an_impossible_number_of_warps_is_refused(warps: int) -> None:
    with pytest.raises(KernelError) as caught:
        pipeline("sm_80", Options(num_warps=warps))
    assert str(caught.value) == (f"expected num_warps to be a power of two up to 32, found {warps}")


def test_a_tile_that_does_not_fit_in_shared_memory_is_the_authors_mistake() -> None:
    with pytest.raises(KernelError, match="shared memory"):
        compile_for("sm_86", matmul(256, 256, 128), 8)


def test_the_target_names_its_chips() -> None:
    assert chips() == ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120")
