"""2. Fused softmax: reductions.

A program takes a row, or a few short ones. A row is read once, stays in registers through the
maximum, the exponential and the sum, and is written once: two passes over memory instead of NumPy's
five. `tile.max` and `tile.sum` reduce a tile along an axis; lanes beyond the end of a row hold
-inf, neutral in both.

Such a kernel is as fast as memory as long as some rows are on their way while others are computed,
so as many programs as possible have to have room on a processor. A row of more than 16384 elements
leaves no room for a second one. There a program walks over rows, and `tile.range(...,
num_stages=2)` reads the next one while it computes.

The length of a row is a constant of the kernel (`tile.constexpr`): powers of two need no mask, and
of rows of 3000 the compiler knows that all begin at a multiple of 16 bytes.
"""

import numpy as np

import tiledsl as tile

PROCESSORS = 132
"""Of an H200. Where there are others, all is right and not quite as fast."""


def normalized(values):
    """Return the softmax of each row of a tile."""
    exponentials = tile.exp(values - tile.max(values, axis=1, keep_dims=True))
    return exponentials / tile.sum(exponentials, axis=1, keep_dims=True)


@tile.jit
def softmax_rows(
    x, out, rows, COLUMNS: tile.constexpr, ROWS: tile.constexpr, BLOCK: tile.constexpr
):
    row = tile.program_id(0) * ROWS + tile.arange(0, ROWS)[:, None]
    column = tile.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < COLUMNS)
    at = row * COLUMNS + column
    values = tile.load(x + at, mask=mask, other=-float("inf")).to(tile.float32)
    tile.store(out + at, normalized(values).to(out.dtype.element_ty), mask=mask)


@tile.jit
def softmax_long_rows(x, out, rows, COLUMNS: tile.constexpr, BLOCK: tile.constexpr):
    column = tile.arange(0, BLOCK)[None, :]
    mask = column < COLUMNS
    for row in tile.range(tile.program_id(0), rows, tile.num_programs(0), num_stages=2):
        at = row * COLUMNS + column
        # What is copied ahead is zero where it is masked.
        values = tile.where(mask, tile.load(x + at, mask=mask).to(tile.float32), -float("inf"))
        tile.store(out + at, normalized(values).to(out.dtype.element_ty), mask=mask)


def softmax_into(x: np.ndarray, out: np.ndarray) -> None:
    """Write the softmax of each row of a matrix."""
    rows, columns = x.shape
    block = tile.next_power_of_2(columns)
    # Results of 16 bits need no exponential and no quotient that is right to the last of 24.
    fast = x.dtype.itemsize == 2
    if block <= 16384:
        # A program has to be worth its launch: 2048 elements, and a thread has 16 of them or 32.
        some = max(1, 2048 // block)
        warps = max(4, block // 1024)
        softmax_rows[tile.cdiv(rows, some),](
            x, out, rows, COLUMNS=columns, ROWS=some, BLOCK=block, num_warps=warps, fast_math=fast
        )
    else:
        warps = 1024 // tile.warp_size(x)  # As many as a program may have.
        softmax_long_rows[min(rows, PROCESSORS),](
            x, out, rows, COLUMNS=columns, BLOCK=block, num_warps=warps, fast_math=fast
        )


def softmax(x: np.ndarray) -> np.ndarray:
    """Return the softmax of each row of a matrix."""
    out = np.empty_like(x)
    softmax_into(x, out)
    return out


def main() -> None:
    rng = np.random.default_rng(0)
    for rows, columns in ((123, 781), (3, 20_000)):
        x = rng.standard_normal((rows, columns), dtype=np.float32)
        e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
        np.testing.assert_allclose(softmax(x), e / e.sum(axis=1, keepdims=True), rtol=1e-5)
    print("softmax: right to 1e-5")


if __name__ == "__main__":
    main()
    # Next, ex03_layer_norm.py: several reductions, and a loop over a row.
