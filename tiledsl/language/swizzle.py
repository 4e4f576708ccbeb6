"""Orders of programs over a grid of blocks."""

from __future__ import annotations

from typing import Any

from tiledsl.dtypes import unwrap
from tiledsl.language import math
from tiledsl.language.operands import is_number
from tiledsl.language.value import Operand


def swizzle2d(
    i: Operand, j: Operand, size_i: Operand, size_j: Operand, size_g: Operand
) -> tuple[Any, Any]:
    """Return the block that program (i, j) of a size_i by size_j grid should take.

    Programs that follow each other, row by row, get the blocks of `size_g` rows column by column,
    so that they share rows and columns in the cache: for 4 by 4 blocks and groups of 2 rows

        [[0, 1, 2, 3],            [[0, 2, 4, 6],
         [4, 5, 6, 7],    is       [1, 3, 5, 7],
         [8, 9, 10, 11],  taken    [8, 10, 12, 14],
         [12, 13, 14, 15]]  as     [9, 11, 13, 15]]

    Args:
        i: Row of the program.
        j: Column of the program.
        size_i: Rows of blocks.
        size_j: Columns of blocks.
        size_g: Rows of a group; the last group may have fewer.

    Returns:
        The block's row and column; Python integers if all arguments are.
    """
    i, j, size_i, size_j, size_g = (unwrap(v) for v in (i, j, size_i, size_j, size_g))
    number = i * size_j + j
    in_group = size_g * size_j
    group = number // in_group
    first = group * size_g
    rest = size_i - first
    rows = (
        min(rest, size_g) if is_number(rest) and is_number(size_g) else (math.minimum(rest, size_g))
    )
    within = number % in_group
    return first + within % rows, within // rows
