"""Kernels that several tests of the AMD target compile, and objects made of them."""

from functools import cache

from tiledsl.targets.llvm_codegen import Machine, optimize_and_emit

SCALE = """
define amdgpu_kernel void @scale(ptr addrspace(1) %p, i32 %n, float %by) #0 {
  %i = call i32 @llvm.amdgcn.workitem.id.x()
  %q = getelementptr float, ptr addrspace(1) %p, i32 %i
  %x = load float, ptr addrspace(1) %q
  %y = fmul float %x, %by
  store float %y, ptr addrspace(1) %q
  ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
attributes #0 = { "amdgpu-flat-work-group-size"="64,256" "uniform-work-group-size"="true" }
"""
"""x[i] *= by, one workgroup."""

TABLES = """
@lds = internal addrspace(3) global [64 x float] poison
@table = internal addrspace(4) constant [4 x float] [float 1.0, float 2.0, float 3.5, float 4.0]
@count = internal addrspace(1) global i32 7
@zeros = internal addrspace(1) global [300 x i32] zeroinitializer

define amdgpu_kernel void @lookup(ptr addrspace(1) %p, i32 %n) #0 {
  %i = call i32 @llvm.amdgcn.workitem.id.x()
  %q = getelementptr float, ptr addrspace(1) %p, i32 %i
  %x = load float, ptr addrspace(1) %q
  %slot = getelementptr [64 x float], ptr addrspace(3) @lds, i32 0, i32 %i
  store float %x, ptr addrspace(3) %slot
  %first = load volatile float, ptr addrspace(3) @lds
  %row = and i32 %n, 3
  %entry = getelementptr [4 x float], ptr addrspace(4) @table, i32 0, i32 %row
  %c = load float, ptr addrspace(4) %entry
  %y = fmul float %first, %c
  store float %y, ptr addrspace(1) %q
  %old = atomicrmw add ptr addrspace(1) @count, i32 1 syncscope("agent") monotonic
  %place = getelementptr [300 x i32], ptr addrspace(1) @zeros, i32 0, i32 %old
  store volatile i32 %old, ptr addrspace(1) %place
  ret void
}
define amdgpu_kernel void @second(ptr addrspace(1) %p) #0 {
  store volatile i32 1, ptr addrspace(1) %p
  ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
attributes #0 = { "amdgpu-flat-work-group-size"="64,64" "uniform-work-group-size"="true" }
"""
"""Two kernels; LDS, a constant table, initialised and zeroed globals."""

CHIPS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1200", "gfx1201")


@cache
def compiled(text: str, chip: str) -> bytes:
    """Return the relocatable object of `text` for `chip`."""
    emitted = optimize_and_emit(text, Machine("amdgcn-amd-amdhsa", chip), output="object")
    assert emitted.object is not None
    return emitted.object
