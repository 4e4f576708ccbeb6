import pytest

from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.targets.amdgpu.chips import CHIPS, Chip, chip
from tiledsl.targets.llvm_codegen import Machine, optimize_and_emit

DECLARATIONS = {
    "mfma": (
        "llvm.amdgcn.mfma.f32.32x32x8f16",
        "<16 x float>",
        "<4 x half> poison, <4 x half> poison, <16 x float> poison, i32 0, i32 0, i32 0",
    ),
    "wmma": (
        "llvm.amdgcn.wmma.i32.16x16x16.iu8.v8i32.v4i32",
        "<8 x i32>",
        "i1 true, <4 x i32> poison, i1 true, <4 x i32> poison, <8 x i32> poison, i1 false",
    ),
    "fp8": (
        "llvm.amdgcn.cvt.pk.fp8.f32",
        "i32",
        "float 1.0, float %x, i32 0, i1 false",
    ),
    "xf32": (
        "llvm.amdgcn.mfma.f32.16x16x8.xf32",
        "<4 x float>",
        "<2 x float> poison, <2 x float> poison, <4 x float> poison, i32 0, i32 0, i32 0",
    ),
    "ds_read_tr": (
        "llvm.amdgcn.ds.read.tr16.b64.v4f16",
        "<4 x half>",
        "ptr addrspace(3) %lds",
    ),
    "global_load_tr": (
        "llvm.amdgcn.global.load.tr.b64.v2i32",
        "<2 x i32>",
        "ptr addrspace(1) %p",
    ),
    "split_waits": ("llvm.amdgcn.s.wait.dscnt", "void", "i16 0"),
}  # fmt: skip


def probe(intrinsic: str, result: str, operands: str) -> str:
    """Return a kernel that calls `intrinsic` and keeps what it returns."""
    types = ", ".join(operand.rsplit(" ", 1)[0] for operand in operands.split(", "))
    keep = f"store {result} %r, ptr addrspace(1) %p" if result != "void" else ""
    value = "%r = " if result != "void" else ""
    return f"""
define amdgpu_kernel void @k(ptr addrspace(1) %p, ptr addrspace(3) %lds, float %x) {{
  {value}call {result} @{intrinsic}({operands.replace("poison", "zeroinitializer")})
  {keep}
  ret void
}}
declare {result} @{intrinsic}({types})
"""


def compiles(text: str, name: str) -> bool:
    try:
        return optimize_and_emit(text, Machine("amdgcn-amd-amdhsa", name)).assembly is not None
    except CompilerBug as bug:
        assert "LLVM died" in str(bug)  # noqa: PT017 (a probe, not an expectation)
        return False


def test_a_chip_is_found_by_name_and_by_a_devices_full_target_id():
    assert chip("gfx90a").number == 0x90A
    assert chip("gfx942:sramecc+:xnack-") is chip("gfx942")


def test_an_unknown_chip_is_a_kernel_error_that_lists_the_known_ones():
    with pytest.raises(KernelError) as error:
        chip("gfx803")
    assert str(error.value) == (
        "expected an AMD chip among gfx90a, gfx942, gfx950, gfx1100, gfx1151, gfx1200, gfx1201, "
        "found 'gfx803'"
    )


def test_later_chips_have_larger_numbers():
    numbers = [c.number for c in CHIPS.values()]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("each", CHIPS.values(), ids=lambda c: c.name)
def test_llvm_selects_exactly_the_instructions_that_the_table_says_exist(each: Chip):
    found = {c: compiles(probe(*d), each.name) for c, d in DECLARATIONS.items()}
    # The operands of integer wmma shrank with gfx12, so the probe speaks for gfx11 alone.
    if each.number >= 0x1200:
        del found["wmma"]
    assert found == {c: each.supports(c) for c in found}


@pytest.mark.parametrize("each", CHIPS.values(), ids=lambda c: c.name)
def test_llvms_own_occupancy_agrees(each: Chip):
    kernel = """
define amdgpu_kernel void @k(ptr addrspace(1) %p) #0 {
  %x = load volatile <32 x float>, ptr addrspace(1) %p
  %y = load volatile <32 x float>, ptr addrspace(1) %p
  store volatile <32 x float> %x, ptr addrspace(1) %p
  store volatile <32 x float> %y, ptr addrspace(1) %p
  ret void
}
attributes #0 = { "amdgpu-flat-work-group-size"="64,64" "uniform-work-group-size"="true" }
"""
    machine = Machine("amdgcn-amd-amdhsa", each.name)
    text = optimize_and_emit(kernel, machine, verbose_assembly=True).assembly
    assert text is not None
    comments = dict(
        line[2:].split(": ", 1)
        for line in text.splitlines()
        if line.startswith("; ")
        if ": " in line
    )
    vgprs = int(comments["NumVgprs"])
    assert vgprs >= 64
    assert int(comments["Occupancy"]) == each.waves(vgprs)


@pytest.mark.parametrize(
    ("name", "threads", "vgprs", "lds", "workgroups"),
    [
        ("gfx942", 256, 128, 0, 4),
        ("gfx942", 256, 512, 0, 1),
        ("gfx942", 512, 512, 0, 0),
        ("gfx942", 256, 64, 33 << 10, 1),
        ("gfx950", 256, 64, 80 << 10, 2),
        ("gfx1100", 128, 96, 0, 16),
        ("gfx1100", 128, 96, 64 << 10, 2),
    ],
)
def test_resident_workgroups_follow_the_scarcest_resource(
    name: str, threads: int, vgprs: int, lds: int, workgroups: int
):
    assert chip(name).resident_workgroups(threads, vgprs, lds) == workgroups
