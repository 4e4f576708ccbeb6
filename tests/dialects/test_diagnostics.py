"""Messages, whole."""

from pathlib import Path

from mlir import ir

from tiledsl.dialects.context import context
from tiledsl.dialects.diagnostics import CompilerBug, KernelError, Span


def test_a_message_shows_the_expression_and_a_hint(tmp_path: Path) -> None:
    file = tmp_path / "softmax.py"
    file.write_text("\n" * 13 + "    y = x + row\n")
    error = KernelError(
        "expected operands of `+` to broadcast, found (128, 64) and (128,)",
        Span(str(file), 14, 9, 14, 16),
        "row[:, None] has shape (128, 1)",
    )
    assert str(error) == (
        "expected operands of `+` to broadcast, found (128, 64) and (128,)\n"
        f"    --> {file}:14:9\n"
        "     |\n"
        "  14 |     y = x + row\n"
        "     |         ^^^^^^^\n"
        "  hint: row[:, None] has shape (128, 1)"
    )


def test_a_span_without_source_still_shows_its_position() -> None:
    assert str(KernelError("no", Span("gone.py", 3, 1, 3, 2))) == "no\n  --> gone.py:3:1"


def test_a_span_survives_the_trip_through_a_location() -> None:
    span = Span("a.py", 3, 5, 4, 9)
    location = span.location(context())
    assert Span.of(location) == span
    assert Span.of(ir.Location.name("x", location, context())) == span
    caller = Span("b.py", 1, 1, 1, 2).location(context())
    assert Span.of(ir.Location.callsite(location, [caller], context())) == span
    assert Span.of(ir.Location.unknown(context())) is None


def test_an_error_keeps_the_first_span_it_gets() -> None:
    first, second = Span("a.py", 1, 1, 1, 2), Span("b.py", 1, 1, 1, 2)
    assert KernelError("no").at(first).at(second).span == first


def test_a_bug_names_its_reproducer() -> None:
    assert str(CompilerBug("after x: y", "repro.mlir")) == "after x: y\n  reproducer: repro.mlir"
