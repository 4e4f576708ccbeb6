"""The `tile` dialect: what kernels need and upstream's `arith`, `math` and `scf` lack.

A kernel at this level is a `func.func` over scalars, `!tile.ptr<T>` and tiles without encoding. It
has no threads and no layouts. Elementwise arithmetic, comparison and `select` are `arith` and
`math` ops on scalars or tiles: integers wrap, shifts are in range, float contraction is allowed
where the op carries `fastmath<contract>`.

Attributes of the kernel's `func.func`: `tile.num_warps`, `tile.num_stages` (i64), and where several
blocks run a program, each with its part, `tile.num_ctas` (i64; `split_programs`). Attributes of its
arguments: `tile.divisibility` (i64; a pointer's is in bytes), `tile.name` (str), `tile.signed`
(bool).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mlir import ir

from tiledsl.dialects.op import (
    I1,
    I32,
    Any_,
    Attr,
    Op,
    Operand,
    OptionalOperand,
    Result,
    Symbol,
    Tile,
    VariadicOperand,
    VariadicResult,
)
from tiledsl.dialects.types import bit_width, element_of, is_pointer, pointee, shape_of

CACHE = ("", "ca", "cg", "cs", "cv", "wb", "wt")
EVICTION = ("", "evict_first", "evict_last", "evict_normal")
SEMANTICS = ("relaxed", "acquire", "release", "acq_rel")
SCOPE = ("cta", "gpu", "sys")
RMW = ("add", "fadd", "max", "umax", "fmax", "min", "umin", "fmin", "and", "or", "xor", "xchg")
PRECISION = ("ieee", "tf32", "tf32x3")
NUM_CTAS = "tile.num_ctas"
"""A kernel's attribute: how many blocks run a program; one where it is not there."""


def _same_shape(*values: ir.Value | None) -> str | None:
    """Return what is wrong unless all values, None aside, have one shape."""
    shapes = [shape_of(value.type) for value in values if value is not None]
    if any(shape != shapes[0] for shape in shapes):
        return f"expected one shape throughout, found {' and '.join(map(str, shapes))}"
    return None


def axis_fault(axis: int, rank: int) -> str | None:
    """Return what is wrong unless the axis is one of so many."""
    return None if 0 <= axis < rank else f"expected an axis from 0 to {rank - 1}, found {axis}"


class ProgramIdOp(Op, name="tile.program_id", pure=True):
    """The index of this program along one axis of the grid: 0 <= id < num_programs."""

    axis = Attr(int, "0, 1 or 2.")
    id = Result(I32, "The index.")


class NumProgramsOp(Op, name="tile.num_programs", pure=True):
    """The number of programs along one axis of the grid."""

    axis = Attr(int, "0, 1 or 2.")
    count = Result(I32, "At least 1.")


class BlockIdOp(Op, name="tile.block_id", pure=True):
    """Which of the blocks that run this program together this is: 0 <= id < blocks."""

    blocks = Attr(int, "How many there are, a power of two.")
    id = Result(I32, "The number.")


class MakeRangeOp(Op, name="tile.make_range", pure=True):
    """The integers start, start + 1, ..., end - 1 as a one-dimensional tile."""

    start = Attr(int, "First value.")
    end = Attr(int, "One past the last value.")
    tile = Result(Tile, "tensor<(end - start) x i32>.")

    def verify(self) -> str | None:
        """Require as many elements as there are values."""
        size = self.end - self.start
        if shape_of(self.tile.type) != (size,):
            return f"expected a result of shape ({size},), found {self.tile.type}"
        return None


class SplatOp(Op, name="tile.splat", pure=True):
    """A tile with the same scalar in every element."""

    scalar = Operand(Any_, "Any scalar, a pointer too.")
    tile = Result(Tile, "Of the scalar's type.")

    def verify(self) -> str | None:
        """Require the element type to be the scalar's."""
        if element_of(self.tile.type) != self.scalar.type:
            return f"expected elements of type {self.scalar.type}, found {self.tile.type}"
        return None


class ExpandDimsOp(Op, name="tile.expand_dims", pure=True):
    """Insert a dimension of size 1 before `axis` (0 <= axis <= rank)."""

    source = Operand(Tile, "The tile.")
    axis = Attr(int, "Where the new dimension stands in the result.")
    tile = Result(Tile, "Rank one higher.")

    def verify(self) -> str | None:
        """Require the shape with a 1 inserted."""
        shape = list(shape_of(self.source.type))
        if wrong := axis_fault(self.axis, len(shape) + 1):
            return wrong
        shape.insert(self.axis, 1)
        if shape_of(self.tile.type) != tuple(shape):
            return f"expected a result of shape {tuple(shape)}, found {self.tile.type}"
        return None


class BroadcastOp(Op, name="tile.broadcast", pure=True):
    """Repeat along dimensions of size 1; the rank stays."""

    source = Operand(Tile, "The tile.")
    tile = Result(Tile, "Same shape but where the source has size 1.")

    def verify(self) -> str | None:
        """Require equal sizes, or size 1 in the source."""
        small, large = shape_of(self.source.type), shape_of(self.tile.type)
        if len(small) != len(large) or any(
            s not in (1, n) for s, n in zip(small, large, strict=True)
        ):
            return f"expected {small} to broadcast to {large}"
        return None


class ReshapeOp(Op, name="tile.reshape", pure=True):
    """The same elements in row-major order under another shape."""

    source = Operand(Tile, "The tile.")
    tile = Result(Tile, "As many elements.")

    def verify(self) -> str | None:
        """Require as many elements."""
        old, new = shape_of(self.source.type), shape_of(self.tile.type)
        return None if prod(old) == prod(new) else f"expected as many elements in {old} and {new}"


class TransOp(Op, name="tile.trans", pure=True):
    """Permute the dimensions: dimension i of the result is dimension order[i] of the source."""

    source = Operand(Tile, "The tile.")
    order = Attr(list, "A permutation of the dimensions.")
    tile = Result(Tile, "The permuted tile.")

    def verify(self) -> str | None:
        """Require a permutation and the permuted shape."""
        shape = shape_of(self.source.type)
        if sorted(self.order) != list(range(len(shape))):
            return f"expected a permutation of {len(shape)} dimensions, found {self.order}"
        order: list[int] = self.order
        if shape_of(self.tile.type) != tuple(shape[d] for d in order):
            return f"expected {shape} permuted by {self.order}, found {self.tile.type}"
        return None


class JoinOp(Op, name="tile.join", pure=True):
    """Stack two tiles of one shape along a new last dimension of size 2."""

    first = Operand(Tile, "Index 0 of the last dimension.")
    second = Operand(Tile, "Index 1 of the last dimension.")
    tile = Result(Tile, "shape + (2,).")

    def verify(self) -> str | None:
        """Require equal operand types and a trailing 2."""
        if shape_of(self.tile.type) != (*shape_of(self.first.type), 2):
            return f"expected a trailing dimension of size 2, found {self.tile.type}"
        if element_of(self.first.type) != element_of(self.second.type):
            return f"expected tiles of one type, found {self.first.type} and {self.second.type}"
        return _same_shape(self.first, self.second)


class SplitOp(Op, name="tile.split", pure=True):
    """Take apart a last dimension of size 2: the inverse of `join`."""

    source = Operand(Tile, "Last dimension of size 2, rank at least 2.")
    first = Result(Tile, "Index 0.")
    second = Result(Tile, "Index 1.")

    def verify(self) -> str | None:
        """Require a trailing 2 and results without it."""
        if (*shape_of(self.first.type), 2) != shape_of(self.source.type):
            return f"expected a trailing dimension of size 2, found {self.source.type}"
        return _same_shape(self.first, self.second)


class CatOp(Op, name="tile.cat", pure=True):
    """Concatenate two tiles of one shape along an axis, in order."""

    first = Operand(Tile, "The lower half.")
    second = Operand(Tile, "The upper half.")
    axis = Attr(int, "0 <= axis < rank.")
    tile = Result(Tile, "Twice as large along the axis.")

    def verify(self) -> str | None:
        """Require twice the size along the axis."""
        shape = list(shape_of(self.first.type))
        if wrong := axis_fault(self.axis, len(shape)):
            return wrong
        shape[self.axis] *= 2
        if shape_of(self.tile.type) != tuple(shape):
            return f"expected a result of shape {tuple(shape)}, found {self.tile.type}"
        return _same_shape(self.first, self.second)


class AddPtrOp(Op, name="tile.addptr", pure=True):
    """A pointer moved by a signed number of elements; scalars or tiles of one shape."""

    ptr = Operand(Any_, "A pointer or a tile of pointers.")
    offset = Operand(Any_, "i32 or i64 elements, sign-extended.")
    output = Result(Any_, "The type of `ptr`.")

    def verify(self) -> str | None:
        """Require a pointer, an integer and one shape."""
        if not is_pointer(self.ptr.type) or self.result.type != self.ptr.type:
            return f"expected pointers of one type, found {self.ptr.type} and {self.result.type}"
        return _same_shape(self.ptr, self.offset)


class HintOp(Op, name="tile.hint", pure=True):
    """The operand, with the author's word that it has these properties along each dimension."""

    source = Operand(Any_, "An integer or pointer, scalar or tile.")
    divisibility = Attr(list, "First values of runs are multiples of it, one a dimension.", None)
    contiguity = Attr(list, "Length of runs that step by one, one a dimension.", None)
    constancy = Attr(list, "Length of runs of equal values, one a dimension.", None)
    output = Result(Any_, "The type of `source`.")


class AssumeOp(Op, name="tile.assume"):
    """The author's word that a scalar condition holds; value ranges may use it."""

    condition = Operand(I1, "What holds.")


class BarrierOp(Op, name="tile.barrier"):
    """The program's accesses to global memory before it happen before those after it.

    Within one pointer argument that holds anyway; this orders two that overlap.
    """


class FloorDivOp(Op, name="tile.floordiv", pure=True):
    """Integer division rounded toward negative infinity, as NumPy's `//`.

    Division by zero gives 0; the most negative value divided by -1 gives itself.
    """

    lhs = Operand(Any_, "Dividend.")
    rhs = Operand(Any_, "Divisor, of the same type.")
    signed = Attr(bool, "Whether the operands are signed.")
    output = Result(Any_, "Quotient.")


class FloorModOp(Op, name="tile.floormod", pure=True):
    """Remainder of `floordiv`, with the divisor's sign, as NumPy's `%`; modulo zero gives 0."""

    lhs = Operand(Any_, "Dividend.")
    rhs = Operand(Any_, "Divisor, of the same type.")
    signed = Attr(bool, "Whether the operands are signed.")
    output = Result(Any_, "Remainder.")


class CastOp(Op, name="tile.cast", pure=True):
    """The numeric casts whose corner cases upstream leaves open.

    Float to integer truncates toward zero, saturates, and gives 0 for NaN. Float to a smaller float
    rounds to nearest even; to fp8 it also saturates to the largest finite value, and NaN stays NaN.
    Casts that upstream defines fully (integer to integer, integer to float, float to a larger
    float) are `arith` ops; this op also takes float to float of any two types.
    """

    source = Operand(Any_, "A float, scalar or tile.")
    signed = Attr(bool, "Whether an integer result is signed.", True)
    output = Result(Any_, "Same shape.")

    def verify(self) -> str | None:
        """Require one shape."""
        return _same_shape(self.source, self.result)


class BitcastOp(Op, name="tile.bitcast", pure=True):
    """The same bits as another type of equal width; pointers may change their pointee."""

    source = Operand(Any_, "Scalar or tile.")
    output = Result(Any_, "Same shape and width.")

    def verify(self) -> str | None:
        """Require equal widths and one shape."""
        if bit_width(self.source.type) != bit_width(self.result.type):
            return f"expected equal widths, found {self.source.type} and {self.result.type}"
        return _same_shape(self.source, self.result)


class LoadOp(Op, name="tile.load"):
    """Read through a pointer or a tile of pointers.

    A lane whose mask is false reads nothing and gives `other`, or 0 without `other`. Bools are
    bytes in memory, any nonzero byte being true.

        %t = "tile.load"(%ptrs, %mask, %other) : (tensor<128x!tile.ptr<f16>>, tensor<128xi1>, ...
    """

    ptr = Operand(Any_, "One address a lane.")
    mask = OptionalOperand(Any_, "Lanes to read: i1 of the same shape.")
    other = OptionalOperand(Any_, "What the lanes not read give.")
    cache = Attr(str, "PTX cache operator.", "", CACHE)
    eviction = Attr(str, "L1/L2 eviction priority.", "", EVICTION)
    volatile = Attr(bool, "Whether each execution reads memory anew.", False)
    output = Result(Any_, "Same shape as `ptr`, of its pointee type.")

    def verify(self) -> str | None:
        """Require one shape, the pointee type, and `other` only with `mask`."""
        if not is_pointer(self.ptr.type):
            return f"expected pointers, found {self.ptr.type}"
        if element_of(self.result.type) != pointee(self.ptr.type):
            return f"expected a result of {pointee(self.ptr.type)}, found {self.result.type}"
        if self.other is not None and self.mask is None:
            return "expected `mask` where there is `other`"
        return _same_shape(self.ptr, self.mask, self.other, self.result)


_BOX = 1 + 3 * 5 + 1
"""Values that say where a box of rank 5 is, and what it holds."""


class Box:
    """Where a box of a strided tensor is; one entry a dimension.

    Attributes:
        base: Address of the tensor's first element.
        sizes: Elements along each dimension.
        strides: Elements from one to the next.
        indices: The box's first element.
    """

    def __init__(
        self,
        base: ir.Value,
        sizes: Sequence[ir.Value],
        strides: Sequence[ir.Value],
        indices: Sequence[ir.Value],
    ) -> None:
        self.base = base
        self.sizes = tuple(sizes)
        self.strides = tuple(strides)
        self.indices = tuple(indices)

    @staticmethod
    def of(parts: Sequence[ir.Value]) -> Box:
        """Take the parts of an op apart; what follows them is not looked at."""
        rank = (len(parts) - 1) // 3
        sizes, strides, indices = (parts[1 + i * rank :][:rank] for i in range(3))
        return Box(parts[0], sizes, strides, indices)


class DescriptorLoadOp(Op, name="tile.descriptor_load"):
    """Read a box of a strided tensor; what lies outside of the tensor is 0, or NaN.

    `parts` are the tensor's first element's address, then of each dimension its size, of each its
    stride in elements, of each the box's first index. Rank 3, as the result has:

        %t = "tile.descriptor_load"(%base, %n0, %n1, %n2, %s0, %s1, %s2, %i0, %i1, %i2)

    The tensor may have more dimensions than the box: along those in front the box has one element.
    """

    parts = VariadicOperand(Any_, "Base, sizes, strides, indices: integers but the first.", _BOX)
    padding = Attr(str, "What is read outside.", "zero", ("zero", "nan"))
    rounds = Attr(str, "What f32 is rounded to on the way, if to anything.", "", ("", "tf32"))
    blocks = Attr(int, "How many blocks of the program, all there are, read this same box.", 1)
    output = Result(Tile, "The box, of the base's pointee type.")

    def verify(self) -> str | None:
        """Require a rank's worth of parts and the pointee type."""
        return _verify_box(self.parts, self.output.type, 0)

    @property
    def box(self) -> Box:
        """The parts by name."""
        return Box.of(self.parts)


class DescriptorStoreOp(Op, name="tile.descriptor_store"):
    """Write a box of a strided tensor, but for what lies outside of it; parts as of the load's.

    The tile follows the parts. With `adds` it is added to what is there, each element atomically
    and in no order with anything else.
    """

    parts = VariadicOperand(Any_, "Base, sizes, strides, indices, the tile.", _BOX)
    adds = Attr(bool, "Whether to add.", False)
    apart = Attr(bool, "Whether any two boxes of the whole program are one or apart.", False)

    def verify(self) -> str | None:
        """Require a rank's worth of parts and the pointee type."""
        return _verify_box(self.parts, self.parts[-1].type, 1)

    @property
    def box(self) -> Box:
        """The parts by name."""
        return Box.of(self.parts)

    @property
    def tile(self) -> ir.Value:
        """What is written."""
        return self.parts[-1]


def _verify_box(parts: Sequence[ir.Value], box: ir.Type, more: int) -> str | None:
    if not is_pointer(parts[0].type):
        return f"expected a pointer, found {parts[0].type}"
    least = len(shape_of(box))
    rank, rest = divmod(len(parts) - 1 - more, 3)
    if rest or rank < least:
        wanted = f"1 + 3 * rank + {more} parts, rank {least} or more,"
        return f"expected {wanted} for a box of rank {least}, found {len(parts)}"
    if element_of(box) != pointee(parts[0].type):
        return f"expected a box of {pointee(parts[0].type)}, found {box}"
    return None


class StoreOp(Op, name="tile.store"):
    """Write through a pointer or a tile of pointers, where the mask is true."""

    ptr = Operand(Any_, "One address a lane.")
    value = Operand(Any_, "Of the pointee type.")
    mask = OptionalOperand(Any_, "Lanes to write: i1 of the same shape.")
    cache = Attr(str, "PTX cache operator.", "", CACHE)
    eviction = Attr(str, "L1/L2 eviction priority.", "", EVICTION)

    def verify(self) -> str | None:
        """Require one shape and the pointee type."""
        if not is_pointer(self.ptr.type):
            return f"expected pointers, found {self.ptr.type}"
        if element_of(self.value.type) != pointee(self.ptr.type):
            return f"expected a value of {pointee(self.ptr.type)}, found {self.value.type}"
        return _same_shape(self.ptr, self.value, self.mask)


class AtomicRmwOp(Op, name="tile.atomic_rmw"):
    """Read, combine and write each addressed element atomically; once an element, never more.

    Gives the old value, the same in every thread; lanes masked off give 0.
    """

    ptr = Operand(Any_, "One address a lane.")
    value = Operand(Any_, "Of the pointee type.")
    mask = OptionalOperand(Any_, "Lanes that act: i1 of the same shape.")
    kind = Attr(str, "How old and `value` combine.", choices=RMW)
    sem = Attr(str, "Memory order.", "acq_rel", SEMANTICS)
    scope = Attr(str, "Who sees the order.", "gpu", SCOPE)
    old = Result(Any_, "Same shape as `ptr`.")

    def verify(self) -> str | None:
        """Require one shape and the pointee type."""
        if not is_pointer(self.ptr.type):
            return f"expected pointers, found {self.ptr.type}"
        if element_of(self.value.type) != pointee(self.ptr.type):
            return f"expected a value of {pointee(self.ptr.type)}, found {self.value.type}"
        return _same_shape(self.ptr, self.value, self.mask, self.old)


class AtomicCasOp(Op, name="tile.atomic_cas"):
    """Compare bits and swap each addressed element atomically; gives the old value."""

    ptr = Operand(Any_, "One address a lane.")
    compare = Operand(Any_, "Expected value.")
    value = Operand(Any_, "Written where old == compare.")
    sem = Attr(str, "Memory order.", "acq_rel", SEMANTICS)
    scope = Attr(str, "Who sees the order.", "gpu", SCOPE)
    old = Result(Any_, "Same shape as `ptr`.")

    def verify(self) -> str | None:
        """Require one shape."""
        return _same_shape(self.ptr, self.compare, self.value, self.old)


class DotOp(Op, name="tile.dot", pure=True):
    """acc + a @ b, the products summed in the accumulator's type (at least; see docs).

    Elements: f16, bf16, f32, f64, fp8 with a float accumulator; i8 with an i32 one (both signed
    unless `a_unsigned`/`b_unsigned`).
    """

    a = Operand(Tile, "(M, K), or (B, M, K).")
    b = Operand(Tile, "(K, N), or (B, K, N).")
    acc = Operand(Tile, "(M, N), or (B, M, N).")
    precision = Attr(str, "How f32 operands multiply.", "ieee", PRECISION)
    a_unsigned = Attr(bool, "Whether integer `a` is unsigned.", False)
    b_unsigned = Attr(bool, "Whether integer `b` is unsigned.", False)
    output = Result(Tile, "The accumulator's type.")

    def verify(self) -> str | None:
        """Require matching dimensions and the accumulator's type."""
        a, b, c = (shape_of(v.type) for v in (self.a, self.b, self.acc))
        if self.result.type != self.acc.type:
            return f"expected {self.acc.type}, found {self.result.type}"
        if len(a) not in (2, 3) or len(b) != len(a) or len(c) != len(a):
            return f"expected operands of rank 2 or 3, found {a}, {b} and {c}"
        if a[-1] != b[-2] or c != (*a[:-1], b[-1]) or a[:-2] != b[:-2]:
            return f"expected (M, K) @ (K, N) -> (M, N), found {a} @ {b} -> {c}"
        return None


def results_fault(op: Op) -> str | None:
    """Return what is wrong unless an op that combines tiles has a result for each of them."""
    sources, results = len(op.operation.operands), len(op.operation.results)
    return None if sources == results else f"expected {sources} results, found {results}"


class ReduceOp(Op, name="tile.reduce", pure=True):
    """Combine the elements along an axis, which disappears; several tiles combine as tuples.

    `combine` names a `func.func` over scalars in the same module: (a0, a1, ..., b0, b1, ...) to
    (c0, c1, ...), associative; the a's come before the b's along the axis. `kind` names the
    function where it is a well-known one that commutes, so that targets may use an instruction for
    it: "add", "mul", "max", "min", "umax", "umin", "and", "or", "xor", "argmax" or "argmin". The
    order of float additions is free, the order of arguments of a general function is kept.
    """

    sources = VariadicOperand(Tile, "One shape.")
    axis = Attr(int, "0 <= axis < rank.")
    combine = Attr(Symbol, "The function.")
    kind = Attr(str, "add, max, ... or empty.", "")
    results_ = VariadicResult(Any_, "Without the axis; scalars where the rank was 1.")

    def verify(self) -> str | None:
        """Require one shape and a result of it without the axis for each source."""
        shape = list(shape_of(self.sources[0].type))
        if wrong := axis_fault(self.axis, len(shape)) or results_fault(self):
            return wrong
        del shape[self.axis]
        for source, result in zip(self.sources, self.results_, strict=True):
            if shape_of(result.type) != tuple(shape):
                return f"expected a result of shape {tuple(shape)}, found {result.type}"
            if element_of(source.type) != element_of(result.type):
                return f"expected elements of {element_of(source.type)}, found {result.type}"
        return _same_shape(*self.sources)


class ScanOp(Op, name="tile.scan", pure=True):
    """Inclusive prefix combination along an axis, from the other end where `reverse`.

    With `reverse` element i combines elements i, i + 1, ... and the a's come *after* the b's.
    """

    sources = VariadicOperand(Tile, "One shape.")
    axis = Attr(int, "0 <= axis < rank.")
    combine = Attr(Symbol, "As of `tile.reduce`.")
    kind = Attr(str, "add, max, ... or empty.", "")
    reverse = Attr(bool, "Whether to begin at the end.", False)
    results_ = VariadicResult(Tile, "The types of the sources.")

    def verify(self) -> str | None:
        """Require one shape, and a result for each source."""
        rank = len(shape_of(self.sources[0].type))
        if wrong := axis_fault(self.axis, rank) or results_fault(self):
            return wrong
        return _same_shape(*self.sources, *self.results_)


class PrintOp(Op, name="tile.print"):
    """Print a scalar or a tile from the device: a line an element, or the prefix alone.

    A line is `pid (x, y, z) idx (i, j) prefix value`.
    """

    prefix = Attr(str, "Printed before the value.")
    signed = Attr(bool, "Whether an integer is signed.", True)
    hex = Attr(bool, "Whether the value prints as hexadecimal.", False)
    value = OptionalOperand(Any_, "What to print.")


class AssertOp(Op, name="tile.assert"):
    """Stop the program with a message unless every element of the condition is true."""

    condition = Operand(Any_, "i1, scalar or tile.")
    mask = OptionalOperand(Any_, "Lanes to check.")
    message = Attr(str, "What to say, the source position included.")


OPS: tuple[type[Op], ...] = (
    ProgramIdOp,
    NumProgramsOp,
    BlockIdOp,
    MakeRangeOp,
    SplatOp,
    ExpandDimsOp,
    BroadcastOp,
    ReshapeOp,
    TransOp,
    JoinOp,
    SplitOp,
    CatOp,
    AddPtrOp,
    HintOp,
    AssumeOp,
    BarrierOp,
    FloorDivOp,
    FloorModOp,
    CastOp,
    BitcastOp,
    LoadOp,
    StoreOp,
    DescriptorLoadOp,
    DescriptorStoreOp,
    AtomicRmwOp,
    AtomicCasOp,
    DotOp,
    ReduceOp,
    ScanOp,
    PrintOp,
    AssertOp,
)
TYPES = (("ptr", 1),)
