"""Where every element of a tile lives, as one linear map over F2.

A tile is spread over the registers, lanes, warps and blocks of a program, or over the offsets of a
shared-memory buffer. All sizes are powers of two, and in every layout that hardware or a compiler
has a use for, each bit of the tensor index is the exclusive or of some bits of the place. So a
layout is a bit matrix, and blocked, matrix-operand, sliced and swizzled layouts are values of one
class; conversions, vector widths and bank conflicts are derived from the matrix (see "Linear
Layouts: Robust Code Generation of Efficient Tensor Computation Using F2", arXiv 2505.23819).

Contract: `LinearLayout` is immutable, hashable and compared by value. Its inputs are either the
hardware's four dimensions ("register", "lane", "warp", "block", all always present, perhaps with no
bits), or "offset", or, for inverses, "dim0", "dim1", ... Its outputs are tensor dimensions by
position. A zero basis means that the bit does not matter: the element is replicated.

Operations that leave every register where it is are methods here; those that drop, copy or add
registers are functions of `layout_shape` and say which register comes from which.

A misuse raises ValueError; as only passes call this module, that is the compiler's own mistake and
the pass runner reports it so.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import overload

import numpy as np
import numpy.typing as npt

from tiledsl.dialects import layout_f2 as f2
from tiledsl.dialects.layout_f2 import IntArray, log2_exact

HARDWARE = ("register", "lane", "warp", "block")
Basis = tuple[int, ...]


class LinearLayout:
    """A linear map over F2 from named input bits to a tensor index.

    Args:
        bases: For each input dimension, one tensor index per input bit, lowest bit first: where
            the input with just that bit set goes.
        shape: Size of each tensor dimension, powers of two.

    Raises:
        ValueError: Sizes that are not powers of two, unknown input names, or bases outside `shape`.

    A 4 x 2 tile, two registers and four lanes:

        >>> a = LinearLayout({"register": [(0, 1)], "lane": [(1, 0), (2, 0)]}, (4, 2))
        >>> a(register=1, lane=3)
        (3, 1)
    """

    def __init__(self, bases: Mapping[str, Sequence[Sequence[int]]], shape: Sequence[int]) -> None:
        self._settle_shape(shape)
        self._settle_columns(
            {name: tuple(self._pack(name, basis) for basis in dim) for name, dim in bases.items()}
        )

    @classmethod
    def from_flat(cls, columns: Mapping[str, Sequence[int]], shape: Sequence[int]) -> LinearLayout:
        """Build from bases given as row-major flat indices instead of coordinates."""
        self = cls.__new__(cls)
        self._settle_shape(shape)
        size = self.elements
        for name, dim in columns.items():
            for column in dim:
                if not 0 <= column < size:
                    raise ValueError(f"expected {name} bases below {size}, found {column}")
        self._settle_columns({name: tuple(dim) for name, dim in columns.items()})
        return self

    def _settle_shape(self, shape: Sequence[int]) -> None:
        self.shape: tuple[int, ...] = tuple(shape)
        self._out_bits = tuple(log2_exact(size) for size in self.shape)

    def _settle_columns(self, columns: Mapping[str, tuple[int, ...]]) -> None:
        self.in_dims: tuple[str, ...] = _canonical_dims(columns)
        self._columns = tuple(columns.get(name, ()) for name in self.in_dims)
        self._hash = hash((self._columns, self.shape, self.in_dims))

    def _pack(self, name: str, basis: Sequence[int]) -> int:
        if len(basis) != len(self.shape) or any(
            not 0 <= x < size for x, size in zip(basis, self.shape, strict=True)
        ):
            raise ValueError(f"expected {name} bases inside {self.shape}, found {tuple(basis)}")
        return self.flatten(tuple(basis))

    # Identity of the value.

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, LinearLayout)
            and self._hash == other._hash
            and self._columns == other._columns
            and self.shape == other.shape
            and self.in_dims == other.in_dims
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"LinearLayout.parse({str(self)!r})"

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        """The form stored in IR: `register=[[0,1],[0,2]] lane=[[1,0]] warp=[] shape=[2,4]`."""
        parts = [
            f"{name}={_json([list(basis) for basis in dim])}"
            for name, dim in self.bases.items()
            if dim or name != "block"
        ]
        return " ".join([*parts, f"shape={_json(list(self.shape))}"])

    @staticmethod
    def parse(text: str) -> LinearLayout:
        """Read what `str` wrote.

        Raises:
            ValueError: The text is not of that form.
        """
        return _parse(text)

    # Sizes.

    @property
    def rank(self) -> int:
        """Number of tensor dimensions."""
        return len(self.shape)

    @cached_property
    def bases(self) -> dict[str, tuple[Basis, ...]]:
        """Tensor coordinates of every input bit, by input dimension."""
        return {
            name: tuple(self.unflatten(column) for column in dim)
            for name, dim in zip(self.in_dims, self._columns, strict=True)
        }

    def flat(self, name: str) -> tuple[int, ...]:
        """Bases of one input dimension as row-major flat indices; empty if it has no bits."""
        return self._columns[self.in_dims.index(name)] if name in self.in_dims else ()

    @cached_property
    def columns(self) -> tuple[int, ...]:
        """All bases as flat indices, inputs in order, so registers come first."""
        return tuple(column for dim in self._columns for column in dim)

    def bits(self, name: str) -> int:
        """Number of bits of one input dimension."""
        return len(self.flat(name))

    def size(self, name: str) -> int:
        """Size of one input dimension."""
        return 1 << self.bits(name)

    @property
    def registers(self) -> int:
        """Elements that one thread holds."""
        return self.size("register")

    @property
    def lanes(self) -> int:
        """Threads of a warp (or wave)."""
        return self.size("lane")

    @property
    def warps(self) -> int:
        """Warps of a program."""
        return self.size("warp")

    @property
    def blocks(self) -> int:
        """Blocks of a cluster."""
        return self.size("block")

    @property
    def elements(self) -> int:
        """Elements of the tensor."""
        return math.prod(self.shape)

    @property
    def index_bits(self) -> int:
        """Bits of a flat tensor index."""
        return sum(self._out_bits)

    # Evaluation.

    def flatten(self, coordinates: Sequence[int]) -> int:
        """Turn tensor coordinates into the row-major flat index."""
        flat = 0
        for x, bits in zip(coordinates, self._out_bits, strict=True):
            flat = flat << bits | x
        return flat

    def unflatten(self, flat: int) -> Basis:
        """Turn a row-major flat index into tensor coordinates."""
        coordinates: list[int] = []
        for size, bits in zip(reversed(self.shape), reversed(self._out_bits), strict=True):
            coordinates.append(flat & (size - 1))
            flat >>= bits
        return tuple(reversed(coordinates))

    def axis_shift(self, axis: int) -> int:
        """Position in a flat index of the lowest bit of one tensor dimension."""
        return sum(self._out_bits[axis + 1 :])

    @overload
    def apply(self, at: Mapping[str, int]) -> tuple[int, ...]: ...
    @overload
    def apply(self, at: Mapping[str, IntArray]) -> tuple[IntArray, ...]: ...
    def apply(
        self, at: Mapping[str, int] | Mapping[str, IntArray]
    ) -> tuple[int, ...] | tuple[IntArray, ...]:
        """Give the tensor coordinates held at a place; arrays broadcast, missing inputs are 0."""
        flat = self._apply_flat(at)
        shifts = [self.axis_shift(axis) for axis in range(self.rank)]
        if isinstance(flat, int):
            return self.unflatten(flat)
        return tuple((flat >> s) & (size - 1) for s, size in zip(shifts, self.shape, strict=True))

    def __call__(self, **at: int) -> tuple[int, ...]:
        """Give the tensor coordinates held at a place: `layout(register=1, lane=3)`."""
        return self.apply(at)

    def _apply_flat(self, at: Mapping[str, int] | Mapping[str, IntArray]) -> int | IntArray:
        whole: int | IntArray = 0
        for name, value in at.items():
            if name not in self.in_dims:
                raise ValueError(f"expected one of {self.in_dims}, found {name!r}")
            dim = self.flat(name)
            if isinstance(value, int):
                if not 0 <= value < 1 << len(dim):
                    raise ValueError(f"expected {name} below {1 << len(dim)}, found {value}")
                whole = whole ^ f2.apply(dim, value)
            else:
                whole = whole ^ f2.apply_array(dim, value)
        return whole

    @cached_property
    def table(self) -> IntArray:
        """Flat index of every place; read only, indexed [block, warp, lane, register] or [offset].

        Other inputs come highest first too, so that a row-major walk counts the lowest input up.
        """
        sizes = [1 << len(dim) for dim in reversed(self._columns)]
        result = f2.table(self.columns).reshape(sizes)
        result.setflags(write=False)
        return result

    @cached_property
    def register_offsets(self) -> IntArray:
        """Flat index of every register of thread 0; read only. Other threads differ by an xor."""
        result = f2.table(self.flat("register"))
        result.setflags(write=False)
        return result

    def bit_matrix(self) -> npt.NDArray[np.uint8]:
        """Give the matrix: row i is bit i of the flat index, columns are input bits in order."""
        columns = np.array(self.columns, dtype=np.int64).reshape(1, -1)
        rows = np.arange(self.index_bits, dtype=np.int64).reshape(-1, 1)
        return ((columns >> rows) & 1).astype(np.uint8)

    @staticmethod
    def from_bit_matrix(
        matrix: npt.NDArray[np.uint8], in_bits: Mapping[str, int], shape: Sequence[int]
    ) -> LinearLayout:
        """Build from a matrix as `bit_matrix` gives it and the number of bits of each input.

        Raises:
            ValueError: The matrix does not have the rows that `shape` or the columns that
                `in_bits` asks for.
        """
        names = _canonical_dims(in_bits)
        want = (sum(log2_exact(s) for s in shape), sum(in_bits.values()))
        if matrix.shape != want:
            raise ValueError(f"expected a {want} matrix, found {matrix.shape}")
        weights = 1 << np.arange(want[0], dtype=np.int64)
        columns: Iterator[int] = iter((weights @ matrix.astype(np.int64)).tolist())
        dims = {name: [next(columns) for _ in range(in_bits.get(name, 0))] for name in names}
        return LinearLayout.from_flat(dims, shape)

    # Constructors.

    @staticmethod
    def identity(shape: Sequence[int], name: str = "offset") -> LinearLayout:
        """Row-major order: input i is flat index i."""
        bits = sum(log2_exact(size) for size in shape)
        return LinearLayout.from_flat({name: [1 << i for i in range(bits)]}, shape)

    def replicate(self, **sizes: int) -> LinearLayout:
        """Append copies: `replicate(lane=32)` adds five lane bits that do not matter."""
        dims = dict(zip(self.in_dims, self._columns, strict=True))
        for name, size in sizes.items():
            dims[name] = dims.get(name, ()) + (0,) * log2_exact(size)
        return LinearLayout.from_flat(dims, self.shape)

    def __mul__(self, other: LinearLayout) -> LinearLayout:
        """Tile `other` with copies of this layout: each dimension's bits and sizes concatenate.

        The bits of `self` stay the low bits of every input and of every tensor dimension.
        """
        if self.rank != other.rank:
            raise ValueError(f"expected equal ranks, found {self.shape} and {other.shape}")
        shape = tuple(a * b for a, b in zip(self.shape, other.shape, strict=True))
        dims: dict[str, list[Basis]] = {name: list(dim) for name, dim in self.bases.items()}
        for name, dim in other.bases.items():
            scaled = [tuple(x * s for x, s in zip(basis, self.shape, strict=True)) for basis in dim]
            dims.setdefault(name, []).extend(scaled)
        return LinearLayout(dims, shape)

    # Linear algebra.

    @cached_property
    def matrix_rank(self) -> int:
        """Rank of the bit matrix: log2 of the number of different elements held."""
        return f2.rank(self.columns)

    @property
    def is_injective(self) -> bool:
        """Whether no element is held twice."""
        return self.matrix_rank == len(self.columns)

    @property
    def is_surjective(self) -> bool:
        """Whether every element is held somewhere."""
        return self.matrix_rank == self.index_bits

    @property
    def is_invertible(self) -> bool:
        """Whether every element is held exactly once."""
        return self.is_injective and self.is_surjective

    def free_masks(self) -> dict[str, int]:
        """Give the input bits that only make copies, by input dimension.

        A bit is free if it adds no rank to the bits before it (registers first, lowest first). The
        places whose free bits are all zero hold every element exactly once: to store a tile, let a
        thread whose lane or warp has a free bit set do nothing and skip registers that have one.
        """
        return dict(self._free)

    @cached_property
    def _free(self) -> dict[str, int]:
        bound = f2.independent(self.columns)
        masks: dict[str, int] = {}
        for name, dim in zip(self.in_dims, self._columns, strict=True):
            full = (1 << len(dim)) - 1
            masks[name] = full & ~bound
            bound >>= len(dim)
        return masks

    def inverse(self) -> LinearLayout:
        """Give the map from a tensor index ("dim0", ...) to the place of its first holder.

        Its outputs are the inputs of this layout in order. Where elements are replicated the free
        bits of the answer are zero, so the map is the right inverse that agrees with `free_masks`.

        Raises:
            ValueError: Some element is held nowhere.
        """
        return self._inverse

    @cached_property
    def _inverse(self) -> LinearLayout:
        masks = f2.right_inverse(self.columns, self.index_bits)
        if masks is None:
            raise ValueError(f"expected a layout that holds every element, found {self}")
        sizes = tuple(1 << len(dim) for dim in self._columns)
        # A mask counts inputs from the lowest, a row-major flat index from the last: repack.
        places = [_reverse_fields(mask, sizes) for mask in masks]
        dims: dict[str, Sequence[int]] = {}
        for axis, bits in enumerate(self._out_bits):
            start = self.axis_shift(axis)
            dims[f"dim{axis}"] = places[start : start + bits]
        return LinearLayout.from_flat(dims, sizes)

    def compose(self, inner: LinearLayout) -> LinearLayout:
        """Give the map that applies `inner` first, whose outputs are this layout's inputs in order.

        Raises:
            ValueError: The sizes do not match.
        """
        sizes = tuple(1 << len(dim) for dim in self._columns)
        if inner.shape != sizes:
            raise ValueError(f"expected outputs of sizes {sizes}, found {inner.shape}")
        dims = {
            name: [f2.apply(self.columns, _reverse_fields(c, sizes[::-1])) for c in dim]
            for name, dim in zip(inner.in_dims, inner._columns, strict=True)
        }
        return LinearLayout.from_flat(dims, self.shape)

    # Operations that leave every register where it is.

    def transpose(self, order: Sequence[int]) -> LinearLayout:
        """Permute tensor dimensions: dimension i of the result is dimension `order[i]` of this."""
        if sorted(order) != list(range(self.rank)):
            raise ValueError(f"expected a permutation of {self.rank} axes, found {tuple(order)}")
        dims = {
            name: [[basis[axis] for axis in order] for basis in dim]
            for name, dim in self.bases.items()
        }
        return LinearLayout(dims, [self.shape[axis] for axis in order])

    def reshape(self, shape: Sequence[int]) -> LinearLayout:
        """Reinterpret the row-major flat index with another shape of as many elements."""
        if math.prod(shape) != self.elements:
            raise ValueError(f"expected {self.elements} elements, found shape {tuple(shape)}")
        return LinearLayout.from_flat(dict(zip(self.in_dims, self._columns, strict=True)), shape)

    def expand_dims(self, axis: int) -> LinearLayout:
        """Insert a dimension of size 1 before `axis`."""
        return self.reshape((*self.shape[:axis], 1, *self.shape[axis:]))

    def squeeze(self, axis: int) -> LinearLayout:
        """Remove a dimension of size 1."""
        if self.shape[axis] != 1:
            raise ValueError(f"expected size 1 along axis {axis}, found {self.shape}")
        return self.reshape((*self.shape[:axis], *self.shape[axis + 1 :]))

    def permute_registers(self, order: Sequence[int]) -> LinearLayout:
        """Reorder register bits: bit i of the result is bit `order[i]` of this layout."""
        dims = dict(zip(self.in_dims, self._columns, strict=True))
        registers = dims["register"]
        if sorted(order) != list(range(len(registers))):
            raise ValueError(f"expected an order of {len(registers)} bits, found {tuple(order)}")
        dims["register"] = tuple(registers[i] for i in order)
        return LinearLayout.from_flat(dims, self.shape)

    def contiguous_run(self, axis: int = -1, limit: int | None = None) -> int:
        """Give how many consecutive registers hold consecutive, aligned elements along an axis.

        The answer is a power of two, at most `limit`: registers [i * run, (i + 1) * run) of every
        thread hold elements [j * run, (j + 1) * run) of one line along `axis`.
        """
        if not self.rank:
            return 1
        shift = self.axis_shift(axis % self.rank)
        registers = self.flat("register")
        run = 0
        for i, column in enumerate(registers):
            if column != 1 << (shift + i) or i >= self._out_bits[axis]:
                break
            run += 1
        if limit is not None:
            run = min(run, limit.bit_length() - 1)
        # Aligned: nothing else may move within the run.
        others = (*registers[run:], *self.columns[len(registers) :])
        low = math.inf
        for column in others:
            inside = (column >> shift) & ((1 << run) - 1)
            if inside:
                low = min(low, (inside & -inside).bit_length() - 1)
        return 1 << int(min(run, low))


def _canonical_dims(names: Mapping[str, object]) -> tuple[str, ...]:
    """Order input names and complete the hardware's, so that equal maps are equal values."""
    if "offset" in names and len(names) == 1:
        return ("offset",)
    if not names:
        return ()
    if all(name in HARDWARE for name in names):
        return HARDWARE
    if all(re.fullmatch(r"dim\d+", name) for name in names):
        return tuple(sorted(names, key=lambda name: int(name[3:])))
    raise ValueError(f"expected hardware inputs, 'offset' or 'dim<i>', found {tuple(names)}")


def _reverse_fields(packed: int, sizes: Sequence[int]) -> int:
    """Repack an int whose lowest field has size `sizes[0]` so that this field comes highest."""
    result = 0
    for size in sizes:
        bits = size.bit_length() - 1
        result = result << bits | (packed & (size - 1))
        packed >>= bits
    return result


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


_TEXT = re.compile(r"(\w+)=(\[[\[\]\d,\s]*\])\s*")


@lru_cache(maxsize=4096)
def _parse(text: str) -> LinearLayout:
    parts = dict(_TEXT.findall(text))
    if "shape" not in parts or _TEXT.sub("", text).strip():
        raise ValueError(f"expected `register=[...] ... shape=[...]`, found {text!r}")
    values = {name: json.loads(value) for name, value in parts.items()}
    shape = values.pop("shape")
    return LinearLayout(values, shape)
