"""Random programs against NumPy: expressions, reductions, scans, shape chains, control flow.

Each property draws a program, not only data: the kernel takes it as a constant, a nest of tuples that
a helper walks while it is traced, and NumPy walks the same nest.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tiledsl as tile
from tests.kernels.oracle import (
    SIGNED,
    UNSIGNED,
    Array,
    bits_of,
    check,
    is_nan,
    one_zero,
    poisoned,
    sample,
    whole,
)

# The fixtures only choose a device, so that examples can share them.
light = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

Tree = Any
"""A leaf `("x", k)` or `("c", number)`, or an operator's name and its operands."""

# --- expressions ---------------------------------------------------------------------------------

INTEGER: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "+": (operator.add, np.add),
    "-": (operator.sub, np.subtract),
    "*": (operator.mul, np.multiply),
    "&": (operator.and_, np.bitwise_and),
    "|": (operator.or_, np.bitwise_or),
    "^": (operator.xor, np.bitwise_xor),
    "//": (operator.floordiv, np.floor_divide),
    "%": (operator.mod, np.remainder),
    "<<": (operator.lshift, np.left_shift),
    ">>": (operator.rshift, np.right_shift),
    "max": (tile.maximum, np.maximum),
    "min": (tile.minimum, np.minimum),
    "<?": (lambda a, b: tile.where(a < b, a, b + b), lambda a, b: np.where(a < b, a, b + b)),
    "==?": (lambda a, b: tile.where(a == b, b, a), lambda a, b: np.where(a == b, b, a)),
}
FLOAT: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "+": (operator.add, np.add),
    "-": (operator.sub, np.subtract),
    "*": (operator.mul, np.multiply),
    "/": (operator.truediv, np.divide),
    "max": (lambda a, b: tile.maximum(a, b) + 0.0, lambda a, b: np.maximum(a, b) + a.dtype.type(0)),
    "<?": (lambda a, b: tile.where(a < b, a, b), lambda a, b: np.where(a < b, a, b)),
    "~?": (lambda a, b: tile.where(a != a, b, a), lambda a, b: np.where(a != a, b, a)),
}


def trees(names: list[str], constants: st.SearchStrategy[Any]) -> st.SearchStrategy[Tree]:
    """Return expressions over two tiles and some constants."""
    leaf = st.tuples(st.just("x"), st.integers(0, 1)) | st.tuples(st.just("c"), constants)
    node = st.deferred(lambda: leaf | st.tuples(st.sampled_from(names), node, node))
    return st.tuples(st.sampled_from(names), node, node)


def evaluate(tree: Tree, leaves: Any, table: Any, which: int, constant: Any) -> Any:
    """Compute a tree over tiles (which == 0) or arrays (1)."""
    kind, *rest = tree
    if kind == "x":
        return leaves[rest[0]]
    if kind == "c":
        return constant(leaves[0], rest[0])
    operands = [evaluate(branch, leaves, table, which, constant) for branch in rest]
    return table[kind][which](*operands)


@tile.jit
def compute(x, y, out, n, TREE, TABLE: tile.constexpr, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    leaves = tile.load(x + i, mask=i < n), tile.load(y + i, mask=i < n)
    result = evaluate(TREE.tree, leaves, TABLE, 0, tile.full_like)
    tile.store(out + i, result, mask=i < n)


class Program:
    """A tree as a constant of a kernel: it is one by its text."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def __repr__(self) -> str:
        return f"Program({self.tree!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


def check_expression(tree: Tree, dtype: tile.DType, table: Any, seed: int) -> None:
    n = 300
    x, y = sample(dtype, n, seed), sample(dtype, n, seed + 1)
    out = poisoned(n, dtype)
    compute[2,](
        x, y, out, n, tile.constexpr(Program(tree)), TABLE=table, BLOCK=256, fp_contract=False
    )
    with np.errstate(all="ignore"):
        expected = evaluate(tree, (x, y), table, 1, lambda like, v: np.full_like(like, v))
    check(out, expected.astype(dtype.numpy), f"{tree} of {dtype}")


@given(
    tree=trees(list(INTEGER), st.integers(0, 9)),
    dtype=st.sampled_from([*SIGNED, *UNSIGNED]),
    seed=st.integers(0, 99),
)
@light
def test_integer_expressions(place: str, tree: Tree, dtype: tile.DType, seed: int) -> None:
    check_expression(tree, dtype, INTEGER, seed)


@given(
    tree=trees(list(FLOAT), st.sampled_from([0.0, 1.0, -2.5, 0.5, float("inf"), 1e30])),
    dtype=st.sampled_from([tile.float32, tile.float64]),
    seed=st.integers(0, 99),
)
@light
def test_float_expressions_are_exact(place: str, tree: Tree, dtype: tile.DType, seed: int) -> None:
    n = 300
    x, y = sample(dtype, n, seed), sample(dtype, n, seed + 1)
    x, y = one_zero(x), one_zero(y)
    out = poisoned(n, dtype)
    compute[2,](
        x, y, out, n, tile.constexpr(Program(tree)), TABLE=FLOAT, BLOCK=256, fp_contract=False
    )
    with np.errstate(all="ignore"):
        expected = evaluate(tree, (x, y), FLOAT, 1, lambda like, v: np.full_like(like, v))
    got = out[:n]
    same = (bits_of(got) == bits_of(expected)) | (is_nan(got) & is_nan(expected))
    same |= (got == 0) & (expected == 0)
    assert same.all(), (tree, dtype, got[~same][:5], expected[~same][:5])


# --- reductions and scans ------------------------------------------------------------------------

shapes = st.lists(st.sampled_from([1, 2, 4, 8, 16, 32]), min_size=1, max_size=3).filter(
    lambda s: np.prod(s) <= 2048
)
REDUCTIONS = ["sum", "max", "min", "argmax", "argmin", "xor_sum", "any", "all"]


@tile.jit
def reduce_any(x, out, NAME, SHAPE: tile.constexpr, AXIS: tile.constexpr):
    count = int(np.prod(SHAPE))
    value = tile.reshape(tile.load(x + tile.arange(0, count)), SHAPE)
    result = getattr(tile, NAME)(value, AXIS)
    size = count // SHAPE[AXIS]
    if len(SHAPE) == 1:
        tile.store(out, result)
    else:
        tile.store(out + tile.arange(0, size), tile.reshape(result, (size,)))


def numpy_reduction(name: str, x: Array, axis: int) -> Array:
    if name == "sum":
        return x.sum(axis, dtype=x.dtype)
    if name == "xor_sum":
        return np.bitwise_xor.reduce(x, axis)
    result = getattr(np, name)(x, axis)
    return result.astype(np.int32) if name.startswith("arg") else result


@given(
    name=st.sampled_from(REDUCTIONS), shape=shapes, data=st.data(),
    dtype=st.sampled_from([tile.int32, tile.uint32, tile.int64]),
)  # fmt: skip
@light
def test_reductions_of_any_shape(
    place: str, name: str, shape: list[int], data: st.DataObject, dtype: tile.DType
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = sample(dtype, int(np.prod(shape)), axis).reshape(shape)
    expected = np.asarray(numpy_reduction(name, x, axis))
    of = {"any": tile.bool_, "all": tile.bool_, "argmax": tile.int32, "argmin": tile.int32}
    out = poisoned(expected.size, of.get(name, dtype))
    reduce_any[1,](x, out, name, SHAPE=tuple(shape), AXIS=axis)
    check(out, expected, f"{name} of {shape} along {axis}")


@tile.jit
def affine(f1, x1, f2, x2):
    return f1 * f2, f2 * x1 + x2


@tile.jit
def scan_any(f, x, out, SHAPE: tile.constexpr, AXIS: tile.constexpr, REVERSE: tile.constexpr):
    count = int(np.prod(SHAPE))
    i = tile.arange(0, count)
    pair = tile.reshape(tile.load(f + i), SHAPE), tile.reshape(tile.load(x + i), SHAPE)
    a, b = tile.associative_scan(pair, AXIS, affine, reverse=REVERSE)
    tile.store(out + i, tile.reshape(a, (count,)))
    tile.store(out + count + i, tile.reshape(b, (count,)))


@given(shape=shapes, data=st.data(), reverse=st.booleans())
@light
def test_scans_of_any_shape(
    place: str, shape: list[int], data: st.DataObject, reverse: bool
) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    count = int(np.prod(shape))
    f, x = (
        sample(tile.uint32, count, 1).reshape(shape),
        sample(tile.uint32, count, 2).reshape(shape),
    )
    out = poisoned(2 * count, tile.uint32)
    scan_any[1,](f, x, out, SHAPE=tuple(shape), AXIS=axis, REVERSE=reverse)
    a, b = np.moveaxis(f, axis, 0).copy(), np.moveaxis(x, axis, 0).copy()
    steps = range(len(a) - 2, -1, -1) if reverse else range(1, len(a))
    with np.errstate(over="ignore"):
        for i in steps:
            before = i + 1 if reverse else i - 1
            b[i] += a[i] * b[before]
            a[i] *= a[before]
    expected = np.stack([np.moveaxis(a, 0, axis), np.moveaxis(b, 0, axis)])
    check(out, expected, f"{shape} along {axis}")


# --- shapes --------------------------------------------------------------------------------------

STEPS = ["reshape", "trans", "join", "split", "cat", "expand", "sum", "flip", "add"]


def apply_step(step: tuple[str, int], x: Any, numpy: bool) -> Any:
    """Do one step of a chain on a tile or an array; a step that does not fit leaves x alone."""
    name, k = step
    shape: Any = tuple(int(n) for n in x.shape)
    axis = k % len(shape)
    count = int(np.prod(shape))
    if name == "reshape":
        left = 1 << (k % count.bit_length())
        return x.reshape((left, count // left)) if numpy else tile.reshape(x, (left, count // left))
    if name == "trans" and len(shape) > 1:
        order = tuple((d + k) % len(shape) for d in range(len(shape)))
        return x.transpose(order) if numpy else tile.permute(x, order)
    if name == "join" and count < 1024 and len(shape) < 4:
        return np.stack([x, x + k], -1) if numpy else tile.join(x, x + k)
    if name == "split" and len(shape) > 1 and shape[-1] == 2:
        if numpy:
            return x[..., 0] * 3 + x[..., 1]
        low, high = tile.split(x)
        return low * 3 + high
    if name == "cat" and count < 1024:
        return np.concatenate([x, x ^ k], axis) if numpy else tile.cat(x, x ^ k, dim=axis)
    if name == "expand" and len(shape) < 4:
        return np.expand_dims(x, axis) if numpy else tile.expand_dims(x, axis)
    if name == "sum" and len(shape) > 1:
        return x.sum(axis, dtype=x.dtype) if numpy else tile.sum(x, axis)
    if name == "flip":
        return np.flip(x, axis) if numpy else tile.flip(x, axis)
    if name == "add" and len(shape) < 3 and count * shape[-1] <= 2048:
        last = shape[-1]
        if numpy:
            return x[..., None] + x.sum(-1, dtype=x.dtype, keepdims=True)[..., None] * np.arange(
                last, dtype=x.dtype
            )
        return x[..., None] + tile.sum(x, -1, keep_dims=True)[..., None] * tile.arange(0, last)
    return x


@tile.jit
def chain(x, out, STEPS: tile.constexpr, SHAPE: tile.constexpr):
    count = int(np.prod(SHAPE))
    value = tile.reshape(tile.load(x + tile.arange(0, count)), SHAPE)
    for step in STEPS:
        value = apply_step(step, value, False)
    size = value.numel
    tile.store(out + tile.arange(0, size), tile.reshape(value, (size,)))


@given(
    shape=shapes.filter(lambda s: np.prod(s) <= 256),
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 20)), min_size=1, max_size=6),
)
@light
def test_chains_of_shape_operations(
    warps: int, shape: list[int], steps: list[tuple[str, int]]
) -> None:
    x = sample(tile.int32, int(np.prod(shape)), 3).reshape(shape)
    expected = x
    for step in steps:
        expected = apply_step(step, expected, True)
    out = poisoned(expected.size, tile.int32)
    chain[1,](x, out, STEPS=tuple(steps), SHAPE=tuple(shape), num_warps=warps)
    check(out, np.ascontiguousarray(expected), f"{steps} of {shape}")


# --- control flow --------------------------------------------------------------------------------

leaf_statement = st.sampled_from(["t += s", "s = s * 3 + 1", "t = t ^ s", "s += n", "t = -t + s", "p += 1", "s ^= load(p)"])  # fmt: skip
conditions = st.sampled_from(
    ["s % 2 == 0", "s < n * 3", "n > 2", "s % 3 != 1 and n < 9", "not s > 5"]
)
statements = st.deferred(
    lambda: (
        leaf_statement
        | st.tuples(st.just("if"), conditions, bodies, bodies)
        | st.tuples(st.just("for"), st.sampled_from(["n", "3", "n // 2"]), bodies)
        | st.tuples(st.just("while"), st.sampled_from(["s % 8 > 1"]), bodies)
        | st.tuples(st.sampled_from(["break", "continue", "return"]), conditions)
    )
)
bodies = st.lists(statements, min_size=1, max_size=3)


def source_of(body: Any, depth: int, loops: int) -> list[str]:
    """Return the Python text of drawn statements, indented; `s` falls in a while, so that it ends."""
    pad, lines = "    " * depth, list[str]()
    for statement in body:
        if isinstance(statement, str):
            lines.append(pad + statement)
            continue
        kind, *rest = statement
        if kind == "if":
            lines += [f"{pad}if {rest[0]}:", *source_of(rest[1], depth + 1, loops)]
            lines += [f"{pad}else:", *source_of(rest[2], depth + 1, loops)]
        elif kind == "for" and loops < 2:
            lines += [f"{pad}for i{depth} in range({rest[0]}):", f"{pad}    s += i{depth}"]
            lines += source_of(rest[1], depth + 1, loops + 1)
        elif kind == "while" and loops < 2:
            lines += [
                f"{pad}k{depth} = 0",
                f"{pad}while k{depth} < 4 and {rest[0]}:",
                f"{pad}    k{depth} += 1",
            ]
            lines += source_of(rest[1], depth + 1, loops + 1)
        elif kind == "return" or (kind in ("break", "continue") and loops):
            lines += [
                f"{pad}if {rest[0]}:",
                f"{pad}    {'return t, s' if kind == 'return' else kind}",
            ]
        else:
            lines.append(pad + "pass")
    return lines


def write_module(folder: Any, body: Any) -> Any:
    """Write the drawn function twice, as a helper of a kernel and as plain Python; import both."""
    import importlib.util
    import zlib

    lines = source_of(body, 1, 0)
    text = "\n".join(
        [
            "import numpy as np",
            "import tiledsl as tile",
            "def load(p):",
            "    return tile.load(p)",
            "def program(t, s, p, n):",
            *lines,
            "    return t, s",
            "@tile.jit",
            "def kernel(x, out, n, N: tile.constexpr):",
            "    i = tile.arange(0, N)",
            "    t, s = program(i, tile.full((), 1, tile.int32), x, n)",
            "    tile.store(out + i, t)",
            "    tile.store(out + N, s)",
        ]
    )
    name = f"drawn_{zlib.crc32(text.encode()):08x}"
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tmp_path_factory.mktemp("drawn")


@given(body=bodies, n=st.integers(0, 6))
@settings(light, max_examples=40)
def test_random_control_flow_is_pythons(place: str, folder: Any, body: Any, n: int) -> None:
    module = write_module(folder, body)
    x = whole(tile.int32, 600, 4, 50)
    out = poisoned(9, tile.int32)
    module.kernel[1,](x, out, n, N=8)

    module.load = lambda p: x[p]
    with np.errstate(over="ignore"):
        t, s = module.program(np.arange(8, dtype=np.int32), np.int32(1), 0, np.int32(n))
    expected = np.append(np.asarray(t), s).astype(np.int32)
    check(out, expected, "\n".join(source_of(body, 0, 0)))
