"""The expression that begins at a place."""

from pathlib import Path

import pytest

from tiledsl.targets.gpu.expressions import expression_at

_SOURCE = """\
y = tile.load(x + i) + 1
z = a + b * c
w = first(
    second)
"""


@pytest.mark.parametrize(
    ("line", "column", "text"),
    [
        (1, 5, "tile.load(x + i)"),
        (1, 15, "x + i"),
        (2, 5, "a + b * c"),
        (2, 9, "b * c"),
        (4, 5, "second"),
    ],
)
def test_it_is_the_call_or_else_the_longest(
    tmp_path: Path, line: int, column: int, text: str
) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(_SOURCE)
    span = expression_at(str(file), line, column)
    assert _SOURCE.splitlines()[line - 1][span.column - 1 : span.end_column - 1] == text


def test_an_expression_may_end_on_another_line(tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(_SOURCE)
    assert expression_at(str(file), 3, 5).end_line == 4


def test_what_cannot_be_read_is_one_character() -> None:
    span = expression_at("/nowhere.py", 3, 0)
    assert (span.line, span.column, span.end_column) == (3, 1, 2)
