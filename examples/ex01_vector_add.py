"""1. Vector add: programs, tiles and masks.

A kernel is one *program* of a grid. Each program knows its index and works on *tiles*: blocks of
values whose shape is known when the kernel is compiled. `tile.load` and `tile.store` take a tile of
pointers, one an element; a mask keeps the last program from reading past the end.
"""

import numpy as np

import tiledsl as tile


@tile.jit
def add(x, y, out, n, BLOCK: tile.constexpr):
    offsets = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    mask = offsets < n
    a = tile.load(x + offsets, mask=mask)
    b = tile.load(y + offsets, mask=mask)
    tile.store(out + offsets, a + b, mask=mask)


def vector_add(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return x + y for one-dimensional arrays of one length and type."""
    out = np.empty_like(x)
    block = 1024
    add[(tile.cdiv(x.size, block),)](x, y, out, x.size, BLOCK=block)
    return out


def main() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 98_765), dtype=np.float32)
    np.testing.assert_array_equal(vector_add(x, y), x + y)
    print("vector add: equal to NumPy, bit for bit")


if __name__ == "__main__":
    main()
    # Next, ex02_softmax.py: a reduction inside a program.
