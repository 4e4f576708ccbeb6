"""2. Fused softmax: reductions.

One program takes one row. The row is read once, stays in registers through the maximum, the
exponential and the sum, and is written once: two passes over memory instead of NumPy's five.
`tile.max` and `tile.sum` reduce a tile along an axis; masked lanes hold -inf, neutral in both.
"""

import numpy as np

import tiledsl as tile


@tile.jit
def softmax_row(x, out, row_stride, columns, BLOCK: tile.constexpr):
    row = tile.program_id(0)
    column = tile.arange(0, BLOCK)
    mask = column < columns
    values = tile.load(x + row * row_stride + column, mask=mask, other=-float("inf"))
    values = values.to(tile.float32)
    exponentials = tile.exp(values - tile.max(values, axis=0))
    result = exponentials / tile.sum(exponentials, axis=0)
    tile.store(out + row * row_stride + column, result.to(out.dtype.element_ty), mask=mask)


def softmax(x: np.ndarray) -> np.ndarray:
    """Return the softmax of each row of a matrix."""
    rows, columns = x.shape
    out = np.empty_like(x)
    block = tile.next_power_of_2(columns)
    softmax_row[(rows,)](x, out, columns, columns, BLOCK=block, num_warps=8 if block >= 2048 else 4)
    return out


def main() -> None:
    x = np.random.default_rng(0).standard_normal((123, 781), dtype=np.float32)
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(softmax(x), e / e.sum(axis=1, keepdims=True), rtol=1e-5)
    print("softmax: right to 1e-5")


if __name__ == "__main__":
    main()
    # Next, ex03_layer_norm.py: several reductions, and rows longer than a tile.
