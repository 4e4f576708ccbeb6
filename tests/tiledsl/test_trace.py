"""The front end's seam: the module of a kernel, its locations, and every message with its carets."""

from __future__ import annotations

import linecache
import textwrap
from typing import Any

import pytest
from mlir import ir

from tiledsl.descriptor import parse_signature
from tiledsl.dialects import contracts
from tiledsl.dialects.diagnostics import CompilerBug, KernelError, Span
from tiledsl.targets.target import Options
from tiledsl.trace import trace

HEAD = "import math, numpy as np, tiledsl as tile\n"


def kernel_of(source: str, name: str = "kernel") -> Any:
    """Return the function of a source text that stands in a file `kernel.py`, tile imported."""
    text = HEAD + textwrap.dedent(source).strip() + "\n"
    linecache.cache["kernel.py"] = (len(text), None, text.splitlines(True), "kernel.py")
    space: dict[str, Any] = {}
    exec(compile(text, "kernel.py", "exec"), space)
    return space[name]


def traced(
    source: str, signature: dict[str, str], options: Options | None = None, **constexprs: object
) -> ir.Module:
    return trace(kernel_of(source), parse_signature(signature)[0], constexprs, options or Options())


def failure(source: str, signature: dict[str, str] | None = None, **constexprs: object) -> str:
    with pytest.raises(KernelError) as found:
        traced(source, signature or {"x": "*fp32:16", "n": "i32"}, None, **constexprs)
    return str(found.value)


def test_a_kernel_is_a_function_with_named_arguments() -> None:
    module = traced(
        """
        def kernel(x, n, flag, BLOCK, u):
            i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
            tile.store(x + i, tile.load(x + i, mask=i < n), mask=i < n)
        """,
        {"x": "*fp32:16", "n": "i32:16", "flag": "i1", "u": "u64"},
        Options(num_warps=8, num_stages=2),
        BLOCK=16,
    )
    head = str(module).splitlines()[1]
    assert head == (
        "  func.func @kernel(%arg0: !tile.ptr<f32> {tile.divisibility = 16 : i64, tile.name = "
        '"x"}, %arg1: i32 {tile.divisibility = 16 : i64, tile.name = "n", tile.signed = true}, '
        '%arg2: i1 {tile.name = "flag"}, %arg3: i64 {tile.name = "u", tile.signed = false}) '
        "attributes {tile.num_stages = 2 : i64, tile.num_warps = 8 : i64} {"
    )
    assert str(module).count("arith.constant") == 1


def test_an_argument_of_a_known_value_is_a_constant_of_its_type() -> None:
    source = """
        def kernel(out, n):
            tile.store(out, n * 3 + (n == 1))
        """
    module = traced(source, {"out": "*i64", "n": "1"})
    assert "arith.constant 1 : i32" in str(module)
    assert "%arg1: i32" in str(module)


def test_every_op_carries_its_expression() -> None:
    module = traced(
        """
        def double(v):
            return v + v

        def kernel(x, n):
            tile.store(x, double(tile.load(x)) * tile.load(x + n))
        """,
        {"x": "*fp32", "n": "i32"},
    )
    places: dict[str, list[tuple[int, int, int]]] = {}
    for op in contracts.operations(module.operation):
        span = Span.of(op.location)
        assert span is not None
        assert span.file == "kernel.py"
        places.setdefault(op.operation.name, []).append((span.line, span.column, span.end_column))
    assert places["tile.load"] == [(6, 26, 38), (6, 42, 58)]
    assert places["arith.addf"] == [(3, 12, 17)]
    assert places["tile.addptr"] == [(6, 52, 57)]
    assert places["arith.mulf"] == [(6, 19, 58)]
    add = next(
        o for o in contracts.operations(module.operation) if o.operation.name == "arith.addf"
    )
    assert add.location.is_a_callsite()


def test_a_call_over_several_lines_begins_where_its_function_is_named() -> None:
    module = traced(
        """
        def kernel(x, n):
            offsets = tile.arange(0, 16)
            y = tile.load(
                x + offsets,
                mask=(
                    offsets
                    < n
                ),
            )
            z = (
                y
                .to(tile.float32)
                .to(
                    tile.float16
                )
            )
            tile.store(
                x + offsets,
                z.to(tile.float32),
            )
        """,
        {"x": "*fp32:16", "n": "i32"},
    )
    places: dict[str, list[tuple[int, int, int]]] = {}
    for op in contracts.operations(module.operation):
        span = Span.of(op.location)
        assert span is not None
        places.setdefault(op.operation.name, []).append((span.line, span.column, span.end_line))
    assert places["tile.load"] == [(4, 9, 10)]
    assert places["arith.cmpi"] == [(7, 13, 8)]
    assert places["tile.cast"] == [(14, 10, 16)]
    assert places["tile.store"] == [(18, 5, 21)]


def test_columns_count_characters_not_bytes() -> None:
    source = """
        def kernel(x, n):
            "äöü"; tile.arange(0, 4) + tile.arange(0, 8)
        """
    assert failure(source) == (
        "expected operands of `+` to broadcast, found (4,) and (8,)\n"
        "   --> kernel.py:3:12\n"
        "    |\n"
        '  3 |     "äöü"; tile.arange(0, 4) + tile.arange(0, 8)\n'
        "    |            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^"
    )


def test_shapes_that_do_not_broadcast_are_shown_with_a_hint() -> None:
    assert failure(
        """
        def kernel(x, n):
            row = tile.arange(0, 16)
            y = tile.zeros((16, 8)) + row
        """
    ) == (
        "expected operands of `+` to broadcast, found (16, 8) and (16,)\n"
        "   --> kernel.py:4:9\n"
        "    |\n"
        "  4 |     y = tile.zeros((16, 8)) + row\n"
        "    |         ^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "  hint: row[:, None] has shape (16, 1)"
    )


def test_the_calls_that_led_to_a_mistake_are_shown() -> None:
    assert failure(
        """
        def inner(p):
            return p * 2

        def outer(p):
            return [inner(q) for q in (p,)]

        def kernel(x, n):
            outer(x)
        """
    ) == (
        "expected operands of `*` that are numbers, found pointer<float32> scalar\n"
        "   --> kernel.py:3:12\n"
        "    |\n"
        "  3 |     return p * 2\n"
        "    |            ^^^^^\n"
        "  called from `outer`\n"
        "   --> kernel.py:6:13\n"
        "    |\n"
        "  6 |     return [inner(q) for q in (p,)]\n"
        "    |             ^^^^^^^^\n"
        "  called from `kernel`\n"
        "   --> kernel.py:9:5\n"
        "    |\n"
        "  9 |     outer(x)\n"
        "    |     ^^^^^^^^\n"
        "  hint: an array is a pointer in a kernel: tile.load(x) reads what x points to"
    )


def test_undefined_names() -> None:
    assert failure(
        """
        def kernel(x, n):
            tile.store(x + lane, 1.0)
        """
    ) == (
        "expected a defined name, found `lane`\n"
        "   --> kernel.py:3:20\n"
        "    |\n"
        "  3 |     tile.store(x + lane, 1.0)\n"
        "    |                    ^^^^"
    )


def test_variables_set_in_one_branch_only() -> None:
    assert failure(
        """
        def kernel(x, n):
            if n > 0:
                y = n + 1
            tile.store(x, y)
        """
    ) == (
        "expected `y` to have a value: it is set on one side only of a run-time branch\n"
        "   --> kernel.py:5:19\n"
        "    |\n"
        "  5 |     tile.store(x, y)\n"
        "    |                   ^\n"
        "  hint: give `y` a value before the branch, as y = 0"
    )


def test_variables_of_two_types_after_a_branch() -> None:
    assert failure(
        """
        def kernel(x, n):
            y = 1.5
            if n > 0:
                y = tile.arange(0, 4)
            tile.store(x, y)
        """
    ) == (
        "expected `y` to have one type after a run-time branch, found int32 tile of shape (4,) and "
        "float32 scalar\n"
        "   --> kernel.py:6:19\n"
        "    |\n"
        "  6 |     tile.store(x, y)\n"
        "    |                   ^\n"
        "  hint: give `y` one type and shape on both sides"
    )


def test_variables_set_only_in_a_loop() -> None:
    assert failure(
        """
        def kernel(x, n):
            for i in range(n):
                y = i
            tile.store(x, y)
        """
    ) == (
        "expected `y` to have a value: it is set only inside a run-time loop, which may make no "
        "trip\n"
        "   --> kernel.py:5:19\n"
        "    |\n"
        "  5 |     tile.store(x, y)\n"
        "    |                   ^\n"
        "  hint: give `y` a value before the loop, as y = 0"
    )


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("tile.arange(0, 4) * 0.5", "y = tile.zeros((4,), tile.float32)"),
        ("n.to(tile.int64)", "y = tile.zeros((), tile.int64)"),
        ("n > 0", "y = False"),
        ("tile.arange(0, 4) > 0", "y = tile.zeros((4,), tile.int1)"),
        ("n * 0.5", "y = 0.0"),
    ],
)
def test_the_hint_gives_a_value_of_the_right_type(value: str, hint: str) -> None:
    kernel = """
        def kernel(x, n):
            {}
            for i in range(n):
                y = {}
            tile.store(x + tile.arange(0, 4), y)
    """
    assert failure(kernel.format("pass", value)).endswith(
        f"\n  hint: give `y` a value before the loop, as {hint}"
    )
    traced(kernel.format(hint, value), {"x": "*fp64", "n": "i32"})


def test_a_pointer_has_no_zero_to_begin_with() -> None:
    message = failure(
        "def kernel(x, n):\n    for i in range(n):\n        y = x\n    tile.store(y, 1)"
    )
    assert message.endswith("give `y` a value before the loop: pointer<float32> scalar")


def test_variables_read_in_a_loop_before_they_are_set() -> None:
    assert failure(
        """
        def kernel(x, n):
            for i in range(n):
                if i > 0:
                    tile.store(x, last)
                last = i
        """
    ) == (
        "expected `last` to have a value: it has none before the run-time loop that sets it\n"
        "   --> kernel.py:5:27\n"
        "    |\n"
        "  5 |             tile.store(x, last)\n"
        "    |                           ^^^^\n"
        "  hint: give `last` a value before the loop, of the type that it gets there"
    )


def test_variables_that_change_type_in_a_loop() -> None:
    assert failure(
        """
        def kernel(x, n):
            acc = 0.0
            for i in range(n):
                acc += tile.arange(0, 4)
            tile.store(x, acc)
        """
    ) == (
        "expected `acc` to keep its type in a run-time loop, found float32 scalar before it and "
        "float32 tile of shape (4,) after a trip\n"
        "   --> kernel.py:4:14\n"
        "    |\n"
        "  4 |     for i in range(n):\n"
        "    |              ^^^^^^^^\n"
        "  hint: start it as tile.full((4,), 0.0, tile.float32)"
    )


def test_variables_never_set() -> None:
    assert failure(
        """
        def kernel(x, n):
            if False:
                y = 1
            tile.store(x, y)
        """
    ) == (
        "expected `y` to have a value here, found none\n"
        "   --> kernel.py:5:19\n"
        "    |\n"
        "  5 |     tile.store(x, y)\n"
        "    |                   ^"
    )


def test_values_returned_of_two_types() -> None:
    assert failure(
        """
        def picked(n):
            if n > 0:
                return 1.5
            return tile.arange(0, 4)

        def kernel(x, n):
            tile.store(x, picked(n))
        """
    ).splitlines()[0] == (
        "expected both sides of a run-time branch to return one type, found float32 scalar and "
        "int32 tile of shape (4,)"
    )


def test_return_of_a_kernel() -> None:
    assert failure(
        """
        def kernel(x, n):
            return n
        """
    ) == (
        "expected kernel `kernel` to return nothing, found int32 scalar\n"
        "   --> kernel.py:2:1\n"
        "    |\n"
        "  2 | def kernel(x, n):\n"
        "    | ^\n"
        "  hint: store results through a pointer"
    )


def test_python_exceptions_of_the_authors_code() -> None:
    assert failure(
        """
        def kernel(x, n):
            [1, 2][5]
        """
    ) == (
        "IndexError: list index out of range\n"
        "   --> kernel.py:3:5\n"
        "    |\n"
        "  3 |     [1, 2][5]\n"
        "    |     ^^^^^^^^^"
    )
    assert failure(
        """
        def kernel(x, n):
            tile.load(x, musk=n > 0)
        """
    ) == (
        "TypeError: load() got an unexpected keyword argument 'musk'\n"
        "   --> kernel.py:3:5\n"
        "    |\n"
        "  3 |     tile.load(x, musk=n > 0)\n"
        "    |     ^^^^^^^^^^^^^^^^^^^^^^^^"
    )
    assert failure(
        """
        def kernel(x, n):
            for a, b in [1]:
                pass
        """
    ).startswith("TypeError: cannot unpack non-iterable int object\n   --> kernel.py:3:9\n")


def test_assertions_known_at_compile_time() -> None:
    source = """
        def kernel(x, n, BLOCK):
            assert BLOCK == 4, f"BLOCK is {BLOCK}"
        """
    assert failure(source, BLOCK=8) == (
        "assertion failed: BLOCK is 8\n"
        "   --> kernel.py:3:12\n"
        "    |\n"
        '  3 |     assert BLOCK == 4, f"BLOCK is {BLOCK}"\n'
        "    |            ^^^^^^^^^^"
    )
    traced(source, {"x": "*fp32", "n": "i32"}, BLOCK=4)


def test_assertions_of_run_time_are_ops_when_debugging() -> None:
    source = """
        def kernel(x, n):
            assert n > 0 and n < 9, "n is small"
        """
    signature = {"x": "*fp32", "n": "i32"}
    assert "tile.assert" not in str(traced(source, signature))
    module = traced(source, signature, Options(debug=True))
    assert 'message = "kernel.py:3: assertion failed: n is small"' in str(module)


def test_static_assertions_and_conditions() -> None:
    assert failure(
        """
        def kernel(x, n):
            tile.static_assert(1 > 2, "never")
        """
    ) == (
        "static_assert: never\n"
        "   --> kernel.py:3:5\n"
        "    |\n"
        '  3 |     tile.static_assert(1 > 2, "never")\n'
        "    |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^"
    )


POINTER = "an array is a pointer in a kernel: tile.load(x) reads what x points to"


@pytest.mark.parametrize(
    ("line", "message", "carets", "hint"),
    [
        (
            "tile.arange(0, 5)",
            "expected tile sizes that are powers of two, found (5,)",
            "tile.arange(0, 5)",
            "take 8 and mask the elements past 5",
        ),
        (
            "tile.arange(0, n)",
            "expected `end` of arange to be an integer known at compile time, found int32 scalar",
            "tile.arange(0, n)",
            "make it a parameter annotated `tile.constexpr`",
        ),
        (
            "tile.arange(4, 4)",
            "expected `end` of arange above `start`, found 4 to 4",
            "tile.arange(4, 4)",
            None,
        ),
        ("n[0]", "expected `None` and `:` as indices of a tile, found Python int 0", "n[0]",
         "elements are picked while they are loaded, by their pointers"),
        ("tile.arange(0, 4)[:, :]", "expected at most 1 indices of int32 tile of shape (4,), found 2",
         "tile.arange(0, 4)[:, :]", None),
        ("tile.program_id(3)", "expected `axis` of program_id to be 0, 1 or 2, found 3",
         "tile.program_id(3)", None),
        ("n @ n", "expected an elementwise operator, found `@`", "n @ n", "use tile.dot(a, b)"),
        ("n.to(3)", "expected a dtype, found 3", "n.to(3)",
         "dtypes are spelled `tile.float32`, `tile.int8`"),
        ("n ** n", "expected `**` with a run-time base and an exponent known at compile time, found "
         "int32 scalar ** int32 scalar", "n ** n",
         "x ** y of positive floats is tile.exp2(y * tile.log2(x))"),
        ("n + 2**40", "expected a number that fits int32 (-2147483648 to 2147483647), found "
         "1099511627776", "n + 2**40", "convert the other operand first, as x.to(tile.int64)"),
        ("n.shapes", "expected an attribute of int32 scalar, found `shapes`", "n.shapes",
         "did you mean `shape`?"),
        ("n(3)", "expected a function, found int32 scalar", "n(3)", "`*` multiplies tiles"),
        ("math.sqrt(n)", "expected a function of tiles, found `math.sqrt` called with int32 scalar",
         "math.sqrt(n)", "use tile.sqrt"),
        ("np.sqrt(n)", "expected a function of tiles, found `numpy.sqrt` called with int32 scalar",
         "np.sqrt(n)", "use tile.sqrt"),
        ("np.stack([n, n])", "expected a function of tiles, found `numpy.stack` called with int32 "
         "scalar", "np.stack([n, n])", "use tile.join(a, b)"),
        ("round(n)", "expected a number known at compile time, found run-time int32", "round(n)",
         "use tile.rint(x)"),
        ("np.float16(n)", "expected a function of tiles, found `numpy.float16` called with int32 "
         "scalar", "np.float16(n)", "use x.to(tile.float16)"),
        ("list(map(np.cbrt, [n]))", "expected a function of tiles, found `numpy.cbrt` called with "
         "int32 scalar", "list(map(np.cbrt, [n]))", None),
        ("int(n)", "expected a number known at compile time, found run-time int32", "int(n)",
         "a conversion at run time is x.to(tile.int32)"),
        ("[1, 2][n]", "expected an integer known at compile time, found run-time int32",
         "[1, 2][n]", None),
        ("list(range(n))", "expected a range known at compile time: only a `for` statement "
         "of the kernel runs over a run-time range", "list(range(n))", None),
        ("sorted([n, n])", "expected a value known at compile time: Python asks here whether a "
         "run-time bool is true", "sorted([n, n])",
         "write the condition as an `if`, `while`, `and`, `or`, `not` of the kernel itself"),
        ("list(n)", "expected something to iterate over, found int32 scalar", "list(n)", None),
        ("x + x", "expected a pointer and an integer, found the sum of two pointers", "x + x", None),
        ("x + 1.5", "expected an integer on a side of `+` with a pointer, found float32 scalar",
         "x + 1.5", None),
        ("n - x", "expected a pointer on the left of `-`, found int32 scalar", "n - x", None),
        ("-x", "expected a number after `-`, found pointer<float32> scalar", "-x", POINTER),
        ("n < x", "expected pointers on both sides of `<`, found int32 scalar", "n < x", POINTER),
        ("tile.range(x)", "expected integers as bounds of a range, found pointer<float32> scalar",
         "tile.range(x)", POINTER),
        ("tile.store(x, x)", "expected a pointer to become another pointer or a 64-bit integer, "
         "found pointer<float32> to float32", "tile.store(x, x)", POINTER),
        ("(n > 0) - (n > 1)", "expected operands of `-` that are numbers, found bools",
         "(n > 0) - (n > 1)", "a ^ b is true where they differ"),
        ("n << -1", "expected a shift by at least 0, found -1", "n << -1", None),
        ("n // 0", "expected a divisor other than 0, found int32 scalar // 0", "n // 0", None),
        ("tile.max_contiguous(tile.arange(0, 4), 3)",
         "expected `values` of max_contiguous to be powers of two, found 3",
         "tile.max_contiguous(tile.arange(0, 4), 3)", None),
        ("tile.multiple_of(n, -7)", "expected `values` of multiple_of to be at least 1, found -7",
         "tile.multiple_of(n, -7)", None),
        ("n.to(tile.float8e5m2) + n.to(tile.float16)", "expected operands of `+` to have a common "
         "type, found float8e5m2 and float16", "n.to(tile.float8e5m2) + n.to(tile.float16)",
         "8-bit floats convert only when told to: x.to(tile.float16)"),
        ("x == 1", "expected pointers on both sides of `==`, found Python int 1", "x == 1", POINTER),
        ("~n.to(tile.float32)", "expected an integer or bool after `~`, found float32 scalar",
         "~n.to(tile.float32)", None),
    ],
)  # fmt: skip
def test_messages(line: str, message: str, carets: str, hint: str | None) -> None:
    column = line.index(carets)
    wanted = (
        f"{message}\n"
        f"   --> kernel.py:3:{5 + column}\n"
        "    |\n"
        f"  3 |     {line}\n"
        f"    |     {' ' * column}{'^' * len(carets)}"
    )
    wanted += f"\n  hint: {hint}" if hint else ""
    assert failure(f"def kernel(x, n):\n    {line}") == wanted


def test_an_expression_may_have_thousands_of_terms() -> None:
    terms = " + ".join(["n"] * 2000)
    module = traced(f"def kernel(x, n):\n    tile.store(x, {terms})", {"x": "*i32", "n": "i32"})
    assert str(module).count("arith.addi") == 1999


def test_a_chain_of_conditions_is_as_deep_as_it_is_long() -> None:
    chain = "{} and ".format("n > 0") * 400 + "n > 1"
    signature = {"x": "*i1", "n": "i32"}
    module = traced(f"def kernel(x, n):\n    tile.store(x, {chain})", signature)
    assert str(module).count("scf.if") > 390
    message = failure(f"def kernel(x, n):\n    tile.store(x, {chain} and {chain})", signature)
    assert message.startswith(
        "expected at most 500 run-time branches and loops within each other\n   --> kernel.py:3:"
    )
    assert message.endswith(
        "\n  hint: a long chain of `and`, `or` or `elif` nests as deeply as it has parts"
    )


def test_a_kernel_without_source_is_an_error() -> None:
    space: dict[str, Any] = {}
    exec(compile("def kernel(x):\n    pass\n", "nowhere.py", "exec"), space)
    with pytest.raises(KernelError) as found:
        trace(space["kernel"], parse_signature({"x": "i32"})[0], {}, Options())
    assert str(found.value) == (
        "expected the source of `kernel`, found none in nowhere.py\n"
        "  hint: kernels are read from their file: define them in a module or a notebook cell"
    )


def test_what_goes_wrong_in_this_package_is_a_compiler_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    from tiledsl.language import casts

    monkeypatch.setattr(casts, "compare", None)
    with pytest.raises(CompilerBug, match="while tracing `kernel`"):
        traced("def kernel(n):\n    n > 1", {"n": "i32"})


def test_a_failed_trace_leaves_nothing_behind() -> None:
    for _ in range(2):
        failure("def kernel(x, n):\n    if n > 0:\n        for i in range(n):\n            y")
    module = traced("def kernel(n):\n    n + 1", {"n": "i32"})
    assert module.operation.verify()


def test_parameters_may_be_positional_only() -> None:
    module = traced(
        """
        def kernel(x, /, n, *, m):
            tile.store(x, n + m)
        """,
        {"x": "*i32", "n": "i32", "m": "i32"},
    )
    assert "arith.addi %arg1, %arg2" in str(module)


def test_a_function_that_the_package_lacks_is_the_authors_mistake() -> None:
    assert failure("def kernel(x, n): tile.store(x, tile.zeroes(4))") == (
        "AttributeError: module `tiledsl` has no attribute `zeroes`: did you mean `zeros`?\n"
        "   --> kernel.py:2:33\n"
        "    |\n"
        "  2 | def kernel(x, n): tile.store(x, tile.zeroes(4))\n"
        "    |                                 ^^^^^^^^^^^"
    )


def test_endless_recursion_shows_the_calls_at_both_ends() -> None:
    message = failure(
        """
        def deeper(i):
            return i * deeper(i - 1) if i > 1 else 1

        def kernel(x, n):
            tile.store(x, deeper(n))
        """
    )
    assert message.startswith(
        "expected calls and expressions nested less deeply than Python's recursion limit\n"
    )
    assert message.count("called from") == 8
    assert "calls left out)" in message
    assert message.endswith(
        "  hint: a function that calls itself must stop by a condition known at compile time"
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "for i in range(2.5): pass",
            "expected the bounds of a range to be an integer known at compile time, "
            "found Python float 2.5",
        ),
        ("for i in range(): pass", "expected one to three bounds of a range, found 0"),
        ("for i in range(0, 5, 0): pass", "expected a step other than 0"),
        ("for i in tile.static_range(0, 5, 0): pass", "expected a step other than 0"),
        ("for i in tile.static_range(): pass", "expected one to three bounds of a range, found 0"),
        ("while True: pass", "expected a loop known at compile time to end within 1000 trips"),
        (
            "tile.arange(0, 1 << 20)[:, None] + tile.arange(0, 2)",
            "expected a tile of at most 1048576 elements, found 2097152 in (1048576, 2)",
        ),
        (
            "if n > 1: return n",
            "expected both sides of a run-time branch to return one type, "
            "found int32 scalar and None",
        ),
    ],
)
def test_a_wrong_kernel_is_the_authors_mistake(
    body: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiledsl.control_flow.loops.TRIP_LIMIT", 1000)
    found = failure(f"def kernel(x, n):\n    {body}")
    assert found.splitlines()[0] == message
    assert "__tile_" not in found


@pytest.mark.parametrize("change", ["total = 1.0", "total += 1.0"])
def test_a_global_changes_at_compile_time_only(change: str) -> None:
    head = "total = 0.0\ndef kernel(x, n):\n    global total\n"
    traced(head + f"    {change}", {"x": "*fp32", "n": "i32"})
    found = failure(head + f"    if n > 1:\n        {change}")
    assert found.splitlines()[0] == "expected no `global total` inside a run-time branch"
