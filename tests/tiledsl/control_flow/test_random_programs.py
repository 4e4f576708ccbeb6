"""Random programs of branches, loops and jumps give at run time what they give in plain Python."""

from __future__ import annotations

import itertools
import linecache
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiledsl.control_flow.oracle import agrees

CONDITIONS = ["x > {}", "y % 3 == {}", "x < y or total > {}", "not x == {}", "0 < x <= {}",
              "x > {} and pair[0] != y"]  # fmt: skip
SIMPLE = [
    "total = (total * 3 + 1) % 997",
    "x += 1",
    "y = (x - y) % 100",
    "x = y if total > 5 else x - 1",
    "pair = pair[1], x % 50",
    "box[0] = box[0] + y",
    "return x, y, total, pair, box",
    "break",
    "continue",
    "helper()",
    "y = picked(y)",
]
HEADS = [
    *(f"if {c}:" for c in CONDITIONS),
    *(f"while fuel > 0 and ({c}):" for c in CONDITIONS[:3]),
    "for i in range(x % 5):",
    "for i in range(3, y % 7, -1):",
    "for i in range({}):",
]
FRAME = """
def program(x, y):
    total, fuel, pair, box, i = 0, 20, (0, 1), [y], -1
    def helper():
        nonlocal total
        if x > 2:
            total = (total + x) % 100
    def picked(v):
        for k in range(4):
            if v % 5 == k:
                return v + k
        return v
{body}
    return x, y, total, pair, box
"""


def blocks(depth: int) -> st.SearchStrategy[Any]:
    simple = st.sampled_from(SIMPLE)
    if depth == 0:
        return st.lists(simple, min_size=1, max_size=2)
    inner = blocks(depth - 1)
    compound = st.tuples(st.sampled_from(HEADS), inner, st.one_of(st.just([]), inner))
    return st.lists(st.one_of(simple, compound), min_size=1, max_size=2)


def lines_of(body: Any, depth: int, in_loop: bool, numbers: Any) -> list[str]:
    pad, lines = "    " * depth, list[str]()
    for part in body:
        if isinstance(part, str):
            jump = part in ("break", "continue") and not in_loop
            lines.append(pad + ("pass" if jump else part))
            continue
        head, first, second = part
        lines.append(pad + head.format(next(numbers)))
        if head.startswith("while"):
            lines.append(pad + "    fuel -= 1")
        lines += lines_of(first, depth + 1, in_loop or not head.startswith("if"), numbers)
        if second:
            lines.append(pad + "else:")
            lines += lines_of(second, depth + 1, in_loop, numbers)
    return lines


def program_of(body: Any) -> tuple[Any, str]:
    text = "\n".join(lines_of(body, 1, False, itertools.cycle([1, 4, 2, 0, 3])))
    source = FRAME.replace("{body}", text)
    name = f"random-{abs(hash(source))}.py"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space: dict[str, Any] = {}
    exec(compile(source, name, "exec"), space)
    return space["program"], source


@settings(max_examples=25, deadline=None)
@given(blocks(3), st.integers(-3, 8), st.integers(-3, 8))
def test_random_programs_agree_with_python(body: Any, x: int, y: int) -> None:
    program, _ = program_of(body)
    agrees(program, x, y)
