"""2. Fused softmax: reductions.

A program takes a row, or a few short ones. A row is read once, stays on the chip through the
maximum, the exponential and the sum, and is written once: two passes over memory instead of NumPy's
five. `tile.max` and `tile.sum` reduce a tile along an axis; lanes beyond the end of a row hold
-inf, neutral in both.

Such a kernel is as fast as memory as long as some rows are on their way while others are computed,
so several programs should have room on a processor. The more elements a thread has, the more
registers it needs, and the fewer programs have room. 32 elements are a good measure. On NVIDIA's
GPUs the compiler then keeps the row in shared memory instead, if it begins at a multiple of 16
bytes, and computes the exponentials twice rather than let them wait in registers for their sum.

A program has at most 1024 threads. Of a longer row each would have more than its registers hold, so
`softmax_long_rows` walks over it three times; what it reads again comes from the cache. Such loops
are what the next example is about.

The length of a row is a constant of the kernel (`tile.constexpr`): powers of two need no mask, and
of rows of 3000 the compiler knows that all begin at a multiple of 16 bytes.
"""

import numpy as np

import tiledsl as tile


@tile.jit
def softmax_rows(
    x, out, rows, COLUMNS: tile.constexpr, ROWS: tile.constexpr, BLOCK: tile.constexpr
):
    row = tile.program_id(0) * ROWS + tile.arange(0, ROWS)[:, None]
    column = tile.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < COLUMNS)
    at = row * COLUMNS + column
    values = tile.load(x + at, mask=mask, other=-float("inf")).to(tile.float32)
    exponentials = tile.exp(values - tile.max(values, axis=1, keep_dims=True))
    result = exponentials / tile.sum(exponentials, axis=1, keep_dims=True)
    tile.store(out + at, result.to(out.dtype.element_ty), mask=mask)


@tile.jit
def softmax_long_rows(x, out, COLUMNS: tile.constexpr, BLOCK: tile.constexpr):
    row = tile.program_id(0)
    x += row * COLUMNS
    out += row * COLUMNS
    lane = tile.arange(0, BLOCK)

    highest = tile.full((BLOCK,), -float("inf"), tile.float32)
    for start in tile.range(0, COLUMNS, BLOCK):
        column = start + lane
        value = tile.load(x + column, mask=column < COLUMNS, other=-float("inf"))
        highest = tile.maximum(highest, value.to(tile.float32))
    highest = tile.max(highest)

    total = tile.zeros((BLOCK,), tile.float32)
    for start in tile.range(0, COLUMNS, BLOCK):
        column = start + lane
        value = tile.load(x + column, mask=column < COLUMNS, other=-float("inf"))
        total += tile.exp(value.to(tile.float32) - highest)
    total = tile.sum(total)

    for start in tile.range(0, COLUMNS, BLOCK):
        column = start + lane
        value = tile.load(x + column, mask=column < COLUMNS).to(tile.float32)
        result = tile.exp(value - highest) / total
        tile.store(out + column, result.to(out.dtype.element_ty), mask=column < COLUMNS)


def softmax_into(x: np.ndarray, out: np.ndarray) -> None:
    """Write the softmax of each row of a matrix."""
    rows, columns = x.shape
    block = tile.next_power_of_2(columns)
    most_warps = 1024 // tile.warp_size(x)
    # Results of 16 bits need no exponential and no quotient that is right to the last of 24.
    fast = x.dtype.itemsize == 2
    if block <= (32768 if columns * x.dtype.itemsize % 16 == 0 else 16384):
        # A program has to be worth its launch: 2048 elements, and a thread has 16 of them or 32.
        some = max(1, 2048 // block)
        warps = min(most_warps, max(4, block // 1024))
        softmax_rows[tile.cdiv(rows, some),](
            x, out, rows, COLUMNS=columns, ROWS=some, BLOCK=block, num_warps=warps, fast_math=fast
        )
    else:
        # A thread has 8 elements at a time, the most that it can load at once.
        softmax_long_rows[rows,](
            x, out, COLUMNS=columns, BLOCK=8192, num_warps=most_warps, fast_math=fast
        )


def softmax(x: np.ndarray) -> np.ndarray:
    """Return the softmax of each row of a matrix."""
    out = np.empty_like(x)
    softmax_into(x, out)
    return out


def main() -> None:
    rng = np.random.default_rng(0)
    for rows, columns in ((123, 781), (7, 20_000), (3, 50_000)):
        x = rng.standard_normal((rows, columns), dtype=np.float32)
        e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
        np.testing.assert_allclose(softmax(x), e / e.sum(axis=1, keepdims=True), rtol=1e-5)
    print("softmax: right to 1e-5")


if __name__ == "__main__":
    main()
    # Next, ex03_layer_norm.py: several reductions, and a loop over a row.
