"""Linear algebra over F2 on plain integers: what the layout algebra is made of.

A vector is a Python int (bit i is coordinate i), addition is `^`, and a matrix is a sequence of its
columns. Tiles have at most some twenty index bits, so a matrix of ints beats a NumPy array of zeros
and ones by two orders of magnitude, and Python's ints hash and compare for free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Columns = Sequence[int]
IntArray = npt.NDArray[np.int64]


class Span:
    """The subspace spanned by the vectors added so far, knowing how each member is a sum of them.

    The rows are kept in echelon form by highest bit. `kernel` collects, for every added vector that
    depended on earlier ones, the mask of added vectors (itself included) that sum to zero; those
    masks are a basis of the kernel of the matrix whose columns were added.
    """

    def __init__(self, vectors: Iterable[int] = ()) -> None:
        self._rows: dict[int, tuple[int, int]] = {}  # highest bit -> (vector, mask of added)
        self.count = 0
        self.kernel: list[int] = []
        for vector in vectors:
            self.add(vector)

    def add(self, vector: int) -> bool:
        """Add a vector; say whether it was independent of the earlier ones."""
        rest, mask = self._reduce(vector)
        mask ^= 1 << self.count
        self.count += 1
        if rest:
            self._rows[rest.bit_length()] = (rest, mask)
            return True
        self.kernel.append(mask)
        return False

    def solve(self, vector: int) -> int | None:
        """Give the mask of added vectors that sum to `vector`, None where there is none.

        Only vectors that were independent when added are used, so the answer is unique.
        """
        rest, mask = self._reduce(vector)
        return None if rest else mask

    def __contains__(self, vector: int) -> bool:
        return self._reduce(vector)[0] == 0

    @property
    def rank(self) -> int:
        """Dimension of the subspace."""
        return len(self._rows)

    def _reduce(self, vector: int) -> tuple[int, int]:
        mask = 0
        rows = self._rows
        while vector:
            row = rows.get(vector.bit_length())
            if row is None:
                # No row has this highest bit: the vector is outside the span.
                return vector, mask
            vector ^= row[0]
            mask ^= row[1]
        return 0, mask


def rank(columns: Iterable[int]) -> int:
    """Give the dimension of the space that `columns` span."""
    return Span(columns).rank


def kernel(columns: Iterable[int]) -> list[int]:
    """Give a basis of the inputs that the matrix sends to zero."""
    return Span(columns).kernel


def independent(columns: Iterable[int]) -> int:
    """Give the mask of the columns that add rank, each judged against the ones before it."""
    span = Span()
    return sum(1 << i for i, column in enumerate(columns) if span.add(column))


def apply(columns: Columns, vector: int) -> int:
    """Multiply the matrix by one vector."""
    result = 0
    for column in columns:
        if vector & 1:
            result ^= column
        vector >>= 1
    return result


def compose(outer: Columns, inner: Columns) -> tuple[int, ...]:
    """Multiply two matrices: first `inner`, then `outer`."""
    return tuple(apply(outer, column) for column in inner)


def table(columns: Columns) -> IntArray:
    """Give the image of every input, as an array indexed by the input."""
    result = np.zeros(1, dtype=np.int64)
    for column in columns:
        result = np.concatenate((result, result ^ column))
    return result


def apply_array(columns: Columns, vectors: IntArray) -> IntArray:
    """Multiply the matrix by an array of vectors, elementwise."""
    result = np.zeros_like(vectors)
    for i, column in enumerate(columns):
        result ^= ((vectors >> i) & 1) * column
    return result


def right_inverse(columns: Columns, out_bits: int) -> tuple[int, ...] | None:
    """Give columns R with `columns` times R the identity on `out_bits` bits, None if not onto.

    Of the many right inverses of a wide matrix this is the one that never uses a column that
    depends on earlier ones: it names the first holder of every element.
    """
    span = Span(columns)
    solutions = [span.solve(1 << bit) for bit in range(out_bits)]
    found = tuple(mask for mask in solutions if mask is not None)
    return found if len(found) == out_bits else None


def spread(mask: int) -> list[int]:
    """Give the positions of the set bits of `mask`, lowest first."""
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


def log2_exact(size: int) -> int:
    """Give log2 of a power of two.

    Raises:
        ValueError: `size` is not a power of two.
    """
    if size < 1 or size & (size - 1):
        raise ValueError(f"expected a power of two, found {size}")
    return size.bit_length() - 1
