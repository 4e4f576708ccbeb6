"""6. A fast matrix product: tensor descriptors, a persistent loop, and tiles chosen by the shape.

What changes from ex04's product, none of which names an instruction:

- Arrays come as `tile.TensorDescriptor`s, and are read and written in boxes, without pointers and
  masks. Where the chip copies boxes by itself (TMA on Hopper), that is what happens.
- As many programs run as the chip has processors, and each computes one tile of the result after
  the other. The copies of the next tile's first boxes then run under this tile's epilogue.
- `swizzle2d` orders the tiles so that programs that run together share rows and columns of the
  operands in the cache.
- Operands that cannot be read in boxes, or not in the order in which matrix instructions take them,
  are first laid out anew (`readable`): that costs a few percent of the product, and saves a lot.
- In tf32 only the first factor may lie either way, so a @ b is computed as (b.T @ a.T).T (FLIPPED).
  That costs nothing: transposing a tile moves no data, it says anew who holds what.
- The host cuts the result into tiles that fill the chip (`cut`), by a rule for any shape.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

import tiledsl as tile

Array = Any
"""NumPy's or torch's: what is said of one here holds for the other."""

# --- kernels -------------------------------------------------------------------------------------


@tile.jit
def gelu(x):
    """Compute x times the normal distribution's integral up to x: x (1 + erf(x / sqrt 2)) / 2."""
    half = 0.5 * x
    # erf is odd: a magnitude spares it to look at the sign.
    return half + tile.abs(half) * tile.erf(tile.abs(x) * 0.7071067811865476)


@tile.jit
def compute(
    a, b, c, bias, m, n,
    TURNED: tile.constexpr, FLIPPED: tile.constexpr, PRECISION: tile.constexpr,
):  # fmt: skip
    """Compute the tile of c that begins at row m and column n, FLIPPED as (b.T @ a.T).T."""
    # Asked for before the products, it has come when they are done.
    shift = bias.load([n]) if bias is not None else None
    shape = c.block_shape[::-1] if FLIPPED else c.block_shape
    acc = tile.zeros(shape, tile.int32 if a.dtype.is_int() else tile.float32)
    for k in range(0, a.shape[1], a.block_shape[1]):
        x = a.load([m, k])
        y = tile.trans(b.load([n, k])) if TURNED else b.load([k, n])
        if FLIPPED:
            x, y = tile.trans(y), tile.trans(x)
        acc = tile.dot(x, y, acc, input_precision=PRECISION)
    if FLIPPED:
        acc = tile.trans(acc)
    if shift is not None:
        acc = gelu(acc + shift.to(tile.float32)[None, :])
    c.store([m, n], acc.to(c.dtype))


@tile.jit
def matmul(
    a, b, c, bias, GROUP: tile.constexpr, TURNED: tile.constexpr, FLIPPED: tile.constexpr,
    MANY: tile.constexpr, PRECISION: tile.constexpr,
):  # fmt: skip
    """Compute a @ b, or a @ b.T where b is TURNED; with a bias, gelu of the biased product.

    FLIPPED, b.T is the first factor: the result is that of b.T @ a.T, transposed. A program
    computes MANY tiles, or else one.
    """
    BLOCK_M, BLOCK_N = c.block_shape
    rows, columns = tile.cdiv(c.shape[0], BLOCK_M), tile.cdiv(c.shape[1], BLOCK_N)
    first = tile.program_id(0)
    if MANY:
        for number in range(first, rows * columns, tile.num_programs(0)):
            i, j = tile.swizzle2d(number // columns, number % columns, rows, columns, GROUP)
            compute(a, b, c, bias, i * BLOCK_M, j * BLOCK_N, TURNED, FLIPPED, PRECISION)
    else:
        i, j = tile.swizzle2d(first // columns, first % columns, rows, columns, GROUP)
        compute(a, b, c, bias, i * BLOCK_M, j * BLOCK_N, TURNED, FLIPPED, PRECISION)


@tile.jit
def repack(x, y, TURNED: tile.constexpr):
    """Copy x, or x.T where TURNED, to y, which may be larger: the rest is 0."""
    ROWS, COLUMNS = y.block_shape
    i, j = tile.program_id(0) * ROWS, tile.program_id(1) * COLUMNS
    y.store([i, j], tile.trans(x.load([j, i])) if TURNED else x.load([i, j]))


# --- how to cut a product ------------------------------------------------------------------------

PROCESSORS, STAGE_BYTES = 132, 192 << 10
"""Of an H200, and its shared memory for boxes; 35 KB are left to the epilogue. Where there are more
or fewer processors all is right and not quite as fast; with less shared memory give a `block`."""
CANDIDATES = ((128, 256), (128, 128), (64, 128))
"""Tiles, of which larger ones read less for each product, and smaller ones fill the chip sooner."""
READ, LAUNCH = 50, 20_000_000
"""What an element read, and a further launch, take in products of 8 bits; 16 bits take two each."""
MOST_STAGES = 8
"""Boxes in flight beyond which nothing is gained."""
ROWS_TOGETHER, PANEL_BYTES = 2048, 32 << 20
"""Most rows in a group of `swizzle2d`, and of a in them: a square of tiles at once reads least, and
the group's rows of a should stay in the cache."""


class Part(NamedTuple):
    """Some columns of a product (rows, if it is flipped), and how one launch computes them.

    Attributes:
        first: The first column.
        last: The one behind the last.
        block: Rows and columns of a tile, and how much of k is loaded at a time.
        programs: How many are launched.
        options: Further arguments of the launch.
    """

    first: int
    last: int
    block: tuple[int, int, int]
    programs: int
    options: dict[str, Any]


def choose_block(m: int, n: int) -> tuple[tuple[int, int], int]:
    """Return the tile that an m by n product is computed in, and the time for each of k.

    All processors take a tile at once, then all the next: the last time round some may have none.
    A tile's time is that of its products and of what it reads, BLOCK_M + BLOCK_N elements.
    """

    def cost(block: tuple[int, int]) -> int:
        tiles = tile.cdiv(m, block[0]) * tile.cdiv(n, block[1])
        return tile.cdiv(tiles, PROCESSORS) * (block[0] * block[1] + READ * sum(block))

    block = min(CANDIDATES, key=cost)
    return block, cost(block)


def part(
    m: int, columns: tuple[int, int], k: int, size: int, block: tuple[int, int],
    num_stages: int = 0, num_ctas: int = 1, flipped: bool = False,
) -> Part:  # fmt: skip
    """Return how to compute some columns of a product of m rows, in tiles of one shape.

    Along k boxes are 128 bytes wide, which is what shared memory permutes without conflicts.
    Where `num_ctas` processors take a tile together each has so many of its rows. All of that is
    about the product that is computed: if `flipped` it is the transpose of the result, whose tiles
    (which are returned) lie across.
    """
    block_m, block_n = block
    own, clusters = block_m // num_ctas, PROCESSORS // num_ctas
    tiles = tile.cdiv(m, block_m) * tile.cdiv(columns[1] - columns[0], block_n)
    stages = num_stages or min(MOST_STAGES, STAGE_BYTES // ((own + block_n) * 128))
    rows = min(ROWS_TOGETHER, PANEL_BYTES // (max(k, 1) * size))
    across = (block_n, block_m) if flipped else block
    options = {
        "GROUP": max(1, rows // across[0]),
        "MANY": tiles > clusters,
        "num_warps": 4 if own == 64 else 8,
        "num_stages": stages,
        "num_ctas": num_ctas,
    }
    return Part(*columns, (*across, 128 // size), min(tiles, clusters), options)


@lru_cache(maxsize=4096)
def cut(m: int, n: int, k: int, size: int, flipped: bool = False) -> tuple[Part, ...]:
    """Return the parts of an m by n by k product of elements of `size` bytes.

    There are two if that saves more than a launch: what would leave most of the chip idle in the
    last round is computed by itself, in smaller tiles. `flipped` is as of `part`, m and n too.
    """
    whole, cost = choose_block(m, n)
    best, parts = cost, [((0, n), whole)]
    step = CANDIDATES[0][1]
    for middle in reversed(range(step, n, step)):
        left, left_cost = choose_block(m, middle)
        right, right_cost = choose_block(m, n - middle)
        cost = left_cost + right_cost + LAUNCH // (max(k, 1) * size)
        if cost < best:
            best, parts = cost, [((0, middle), left), ((middle, n), right)]
    return tuple(part(m, columns, k, size, block, flipped=flipped) for columns, block in parts)


# --- the product ---------------------------------------------------------------------------------


def empty(like: Array, *shape: int) -> Array:
    """Return an array of the same kind and type."""
    return like.new_empty(shape) if hasattr(like, "new_empty") else np.empty(shape, like.dtype)


def readable(x: Array, turned: bool = False) -> Array:
    """Return x, or x.T where it is to be TURNED, as a chip copies it in boxes.

    Rows and the array begin at multiples of 16 bytes; if x is no such array it is copied to one,
    which has zeros behind its columns.
    """
    if not turned and tile.TensorDescriptor(x, (8, 8)).aligned:
        return x
    rows, columns = x.shape[::-1] if turned else x.shape
    line = 128 // x.itemsize
    y = empty(x, rows, tile.cdiv(columns, line) * line)
    block = (64, 64) if turned else (32, 256)
    repack[tile.cdiv(rows, block[0]), tile.cdiv(y.shape[1], block[1])](
        tile.TensorDescriptor(x, block[::-1] if turned else block),
        tile.TensorDescriptor(y, block),
        TURNED=turned,
    )
    return y


def multiply(
    a: Array, b: Array, bias: Array | None = None, turned: bool = False, out: Array | None = None,
    block: tuple[int, int] | None = None, num_stages: int = 0, precision: str = "ieee",
    num_ctas: int = 1,
) -> Array:  # fmt: skip
    """Return a @ b (a @ b.T where `turned`), or gelu of it with a bias added.

    Args:
        a: An m by k matrix.
        b: A k by n matrix, or n by k.
        bias: n numbers.
        turned: How b lies.
        out: Where to write the result, else a new array like a. Of integers, whose products are
            int32, it must be given.
        block: Tiles of the result, in place of those that suit an H200.
        num_stages: Boxes in flight, likewise; 0 leaves it to the rule.
        precision: How float32 is multiplied: see `tile.dot`.
        num_ctas: Processors that take a tile of that `block` together, each some of its rows (its
            columns, if the product is FLIPPED); on Hopper each brings a part of what all need of
            the other factor to all.
    """
    m, k = a.shape
    n = b.shape[0 if turned else 1]
    c = empty(a, m, n) if out is None else out
    if 0 in c.shape:
        return c
    # Matrix instructions take b in either order if it has 16 bits, else with k contiguous. The
    # first factor of tf32 may lie either way, too, as it can come from registers; not that of 8
    # bits, of which a register holds four along k.
    flipped = not turned and precision == "tf32" and b.itemsize == 4
    turn = not (turned or flipped or b.itemsize == 2)
    a, b = readable(a), readable(b, turned=turn)
    turned = turned or turn
    height, width = (n, m) if flipped else (m, n)
    parts = cut(height, width, k, a.itemsize, flipped)
    if block:
        if flipped:
            block = block[1], block[0]
        parts = (part(height, (0, width), k, a.itemsize, block, num_stages, num_ctas, flipped),)
    for first, last, (block_m, block_n, block_k), programs, options in parts:
        rows, columns = slice(0, height), slice(first, last)
        if flipped:
            rows, columns = columns, rows
        some = b[columns] if turned else b[:, columns]
        if precision == "tf32x3" and not num_stages:
            # High and low parts of the operands take the room of the other boxes.
            options = {**options, "num_stages": 2}
        matmul[programs,](
            tile.TensorDescriptor(a[rows], (block_m, block_k)),
            tile.TensorDescriptor(some, (block_n, block_k) if turned else (block_k, block_n)),
            tile.TensorDescriptor(c[rows, columns], (block_m, block_n)),
            None if bias is None else tile.TensorDescriptor(bias[columns], (block_n,)),
            TURNED=turned, FLIPPED=flipped, PRECISION=precision,
            fast_math=c.itemsize == 2,  # gelu to 2^-20, where a result has 2^-8 or 2^-11
            **options,
        )  # fmt: skip
    return c


def main() -> None:
    import math

    rng = np.random.default_rng(0)
    a = rng.standard_normal((300, 256), dtype=np.float32).astype(np.float16)
    b = rng.standard_normal((256, 200), dtype=np.float32).astype(np.float16)
    bias = rng.standard_normal(200, dtype=np.float32).astype(np.float16)
    product = a.astype(np.float64) @ b.astype(np.float64)
    small = partial(multiply, block=(64, 64), num_stages=2)
    np.testing.assert_allclose(small(a, b), product, rtol=2e-3, atol=2e-2)
    turned = small(a, np.ascontiguousarray(b.T), turned=True)
    np.testing.assert_allclose(turned, product, rtol=2e-3, atol=2e-2)
    some = small(a[1:, 3:], b[3:, :71])
    wanted = a[1:, 3:].astype(np.float64) @ b[3:, :71].astype(np.float64)
    np.testing.assert_allclose(some, wanted, rtol=2e-3, atol=2e-2)
    shifted = product + bias
    wanted = 0.5 * shifted * (1 + np.vectorize(math.erf)(shifted / math.sqrt(2)))
    np.testing.assert_allclose(small(a, b, bias), wanted, rtol=2e-3, atol=2e-2)
    print("matmul through descriptors, either layout of b, rows of any size, fused: right to 2e-2")


if __name__ == "__main__":
    main()
    # Next, ex07_fp8_matmul.py: the same in eight bits, with scales.
