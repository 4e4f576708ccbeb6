"""The `ptx` dialect: PTX's own accesses of global memory, which LLVM has no instruction for.

They stand at the `machine` level, where all instructions are named ops; NVIDIA's last pass writes
them as inline assembly. What they add to LLVM's loads, stores and atomics is a predicate without a
branch, cache and eviction hints, and memory orders exactly as PTX has them.

A value is an element or a vector of elements of 8 to 64 bits, at most 16 bytes. Addresses are
of global memory.
"""

from __future__ import annotations

from tiledsl.dialects.op import (
    I1,
    Any_,
    Attr,
    Op,
    Operand,
    OptionalOperand,
    Result,
    VariadicOperand,
)
from tiledsl.dialects.tile import CACHE, EVICTION, SCOPE, SEMANTICS

ATOMS = (
    "add", "fadd", "max", "umax", "min", "umin", "and", "or", "xor", "xchg",
)  # fmt: skip


class LoadOp(Op, name="ptx.load"):
    """`ld.global`: the value at an address, or `other` where the predicate is false.

    `other` stands exactly where there is a predicate.
    """

    pointer = Operand(Any_, "!llvm.ptr<1>.")
    predicate = OptionalOperand(I1, "Whether to read; always, if absent.")
    other = OptionalOperand(Any_, "Of the result's type.")
    cache = Attr(str, "Cache operator.", "", CACHE)
    eviction = Attr(str, "Eviction priority in L1.", "", EVICTION)
    volatile = Attr(bool, "Whether each execution reads memory anew.", False)
    value = Result(Any_, "What was read.")

    def verify(self) -> str | None:
        """Require `other` with a predicate and no two orders at once."""
        if (self.predicate is None) != (self.other is None):
            return "expected `other` exactly where there is a predicate"
        if self.other is not None and self.other.type != self.value.type:
            return f"expected `other` of {self.value.type}, found {self.other.type}"
        return None


class StoreOp(Op, name="ptx.store"):
    """`st.global`: write a value, where the predicate is true."""

    pointer = Operand(Any_, "!llvm.ptr<1>.")
    value = Operand(Any_, "What to write.")
    predicate = OptionalOperand(I1, "Whether to write; always, if absent.")
    cache = Attr(str, "Cache operator.", "", CACHE)
    eviction = Attr(str, "Eviction priority in L1.", "", EVICTION)


class AtomOp(Op, name="ptx.atom"):
    """`atom.global`: update an element and give the old value, 0 where the predicate is false."""

    pointer = Operand(Any_, "!llvm.ptr<1>.")
    value = Operand(Any_, "An integer or float of 16 to 64 bits.")
    predicate = OptionalOperand(I1, "Whether to act; always, if absent.")
    kind = Attr(str, "How old and `value` combine.", choices=ATOMS)
    sem = Attr(str, "Memory order.", choices=SEMANTICS)
    scope = Attr(str, "Who sees the order.", choices=SCOPE)
    old = Result(Any_, "Of the type of `value`.")


class RedOp(Op, name="ptx.red"):
    """`red.global`: `atom` whose old value nobody asks for; its order is relaxed or release."""

    pointer = Operand(Any_, "!llvm.ptr<1>.")
    value = Operand(Any_, "An integer or float of 16 to 64 bits.")
    predicate = OptionalOperand(I1, "Whether to act; always, if absent.")
    kind = Attr(str, "How old and `value` combine.", choices=ATOMS)
    sem = Attr(str, "Memory order.", choices=("relaxed", "release"))
    scope = Attr(str, "Who sees the order.", choices=SCOPE)


class CasOp(Op, name="ptx.cas"):
    """`atom.global.cas`: swap if equal and give the old value, 0 where the predicate is false."""

    pointer = Operand(Any_, "!llvm.ptr<1>.")
    compare = Operand(Any_, "An integer of 16, 32 or 64 bits.")
    value = Operand(Any_, "Of that type.")
    predicate = OptionalOperand(I1, "Whether to act; always, if absent.")
    sem = Attr(str, "Memory order.", choices=SEMANTICS)
    scope = Attr(str, "Who sees the order.", choices=SCOPE)
    old = Result(Any_, "Of that type.")


class ProxyFenceOp(Op, name="ptx.proxy_fence"):
    """`fence.proxy.async`: what this thread wrote is visible to `ptx.wgmma` and copies of boxes."""

    memory = Attr(str, "Which memory.", "shared", ("shared", "all"))


class WgmmaFenceOp(Op, name="ptx.wgmma_fence"):
    """`wgmma.fence`: registers written before are visible to the `ptx.wgmma` that follow."""


class WgmmaOp(Op, name="ptx.wgmma"):
    """A run of `wgmma.mma_async` along k: acc += a @ b, step by step, in flight when it is done.

    Descriptors say where operands are in shared memory; a step adds its own distance to them. The
    first step of a run without an accumulator begins one.
    """

    acc = OptionalOperand(Any_, "The accumulator's registers, a vector of f32 or i32; or zero.")
    a = Operand(Any_, "Descriptor, i64; or the registers of all steps, a vector of i32.")
    b = Operand(Any_, "Descriptor, i64.")
    shape = Attr(str, 'As "m64n128k16".')
    types = Attr(str, 'Of the accumulator, a and b, as "f32.f16.f16".')
    a_steps = Attr(list, "By step, what to add to a's descriptor; empty where a is in registers.")
    b_steps = Attr(list, "By step, what to add to b's descriptor.")
    a_turned = Attr(bool, "Whether m is contiguous in a, not k.", False)
    b_turned = Attr(bool, "Whether n is contiguous in b, not k.", False)
    sums = Result(Any_, "The accumulator's registers, in flight.")


class WgmmaCommitOp(Op, name="ptx.wgmma_commit"):
    """`wgmma.commit_group`: close the group of the `ptx.wgmma` since the last one."""


class WgmmaWaitOp(Op, name="ptx.wgmma_wait"):
    """`wgmma.wait_group`: wait until at most `pending` groups are in flight."""

    value = Operand(Any_, "Registers that may be in flight.")
    never = OptionalOperand(I1, "False, as no compiler knows: code does not move over its branch.")
    pending = Attr(int, "Groups that may be unfinished.")
    result_ = Result(Any_, "The same registers.")


class SetRegistersOp(Op, name="ptx.set_registers"):
    """`setmaxnreg`: this warp's threads have so many registers from here on."""

    count = Attr(int, "Registers of a thread, a multiple of 8.")
    fewer = Attr(bool, "Whether that is fewer than before.", False)


class AnchorOp(Op, name="ptx.anchor"):
    """No instruction: the same registers, which are computed before what follows."""

    value = Operand(Any_, "Registers.")
    result_ = Result(Any_, "The same registers.")


class LaunchDependentsOp(Op, name="ptx.launch_dependents"):
    """`griddepcontrol.launch_dependents`."""


class GridWaitOp(Op, name="ptx.grid_wait"):
    """`griddepcontrol.wait`."""


class MbarrierInitOp(Op, name="ptx.mbarrier_init"):
    """`mbarrier.init`; copies see it after `ptx.mbarrier_fence`."""

    barrier = Operand(Any_, "!llvm.ptr<3>.")
    predicate = Operand(I1, "Whether to.")
    count = Attr(int, "Arrivals that a phase waits for.")


class MbarrierFenceOp(Op, name="ptx.mbarrier_fence"):
    """`fence.mbarrier_init`: the `ptx.mbarrier_init` of this thread are visible to copies."""


class MbarrierInvalOp(Op, name="ptx.mbarrier_inval"):
    """`mbarrier.inval`."""

    barrier = Operand(Any_, "!llvm.ptr<3>.")
    predicate = Operand(I1, "Whether to.")


class MbarrierExpectOp(Op, name="ptx.mbarrier_expect"):
    """`mbarrier.arrive.expect_tx`."""

    barrier = Operand(Any_, "!llvm.ptr<3>.")
    predicate = Operand(I1, "Whether to.")
    bytes = Attr(int, "What copies bring in this phase.")


class MbarrierArriveOp(Op, name="ptx.mbarrier_arrive"):
    """`mbarrier.arrive`: what this thread did comes before what waits for the phase."""

    barrier = Operand(Any_, "!llvm.ptr<3>.")
    predicate = Operand(I1, "Whether to.")
    block = OptionalOperand(Any_, "In which block of the cluster, i32; its own if left out.")


class MbarrierWaitOp(Op, name="ptx.mbarrier_wait"):
    """`mbarrier.try_wait.parity` until it is so."""

    barrier = Operand(Any_, "!llvm.ptr<3>.")
    parity = Operand(Any_, "i32.")


class TensorLoadOp(Op, name="ptx.tensor_load"):
    """`cp.async.bulk.tensor`: a box of global memory to shared memory.

    Of several blocks, if they are named: to the same place there, where the same mbarrier counts.
    """

    parts = VariadicOperand(
        Any_, "Destination and mbarrier, !llvm.ptr<3>; predicate; map, !llvm.ptr; indices, i32."
    )
    blocks = Attr(int, "The blocks of the cluster that get it, a bit for each; 0: its own.", 0)


class TensorStoreOp(Op, name="ptx.tensor_store"):
    """`cp.async.bulk.tensor`: a box from shared to global memory, or added to what is there."""

    parts = VariadicOperand(Any_, "Source, !llvm.ptr<3>; predicate; map, !llvm.ptr; indices, i32.")
    adds = Attr(bool, "Whether to add.", False)


class BulkCommitOp(Op, name="ptx.bulk_commit"):
    """`cp.async.bulk.commit_group`: close the group of the `ptx.tensor_store` since the last."""

    predicate = Operand(I1, "Whether to.")


class BulkWaitOp(Op, name="ptx.bulk_wait"):
    """`cp.async.bulk.wait_group`: wait until at most `pending` groups are in flight."""

    predicate = Operand(I1, "Whether to.")
    pending = Attr(int, "How many.")
    read = Attr(bool, "Whether it is enough that shared memory has been read.", False)


OPS: tuple[type[Op], ...] = (
    LoadOp,
    StoreOp,
    AtomOp,
    RedOp,
    CasOp,
    ProxyFenceOp,
    WgmmaFenceOp,
    WgmmaOp,
    WgmmaCommitOp,
    WgmmaWaitOp,
    AnchorOp,
    LaunchDependentsOp,
    GridWaitOp,
    SetRegistersOp,
    MbarrierInitOp,
    MbarrierFenceOp,
    MbarrierInvalOp,
    MbarrierExpectOp,
    MbarrierArriveOp,
    MbarrierWaitOp,
    TensorLoadOp,
    TensorStoreOp,
    BulkCommitOp,
    BulkWaitOp,
)
TYPES: tuple[tuple[str, int], ...] = ()
