"""A product of types whose result is another type: what the tests of 8-bit operands launch."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import tiledsl as tile


@tile.jit
def _product(a, b, c, m, n, k, BLOCK: tile.constexpr, DEPTH: tile.constexpr):
    rows = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    columns = tile.program_id(1) * BLOCK + tile.arange(0, BLOCK)
    depth = tile.arange(0, DEPTH)
    acc = tile.zeros((BLOCK, BLOCK), c.dtype.element_ty)
    for start in range(0, k, DEPTH):
        x = tile.load(a + rows[:, None] * k + (start + depth)[None, :])
        y = tile.load(b + (start + depth)[:, None] * n + columns[None, :])
        acc = tile.dot(x, y, acc)
    tile.store(c + rows[:, None] * n + columns[None, :], acc)


def product_in(a: NDArray[Any], b: NDArray[Any], kind: Any) -> NDArray[Any]:
    """Return a @ b in another type; sizes are multiples of 32."""
    (m, k), n = a.shape, b.shape[1]
    c = np.zeros((m, n), kind)
    _product[m // 32, n // 32](a, b, c, m, n, k, BLOCK=32, DEPTH=32, num_warps=2, num_stages=2)
    return c
