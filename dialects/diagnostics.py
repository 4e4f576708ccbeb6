"""The two kinds of error, and the source spans that they point at.

`KernelError` is the author's mistake: it says what was expected and found, and shows the
expression. `CompilerBug` is ours: it names the pass and, where there is one, the reproducer.
No other exception leaves this package on purpose. A span travels in MLIR locations
(`Span.location`, `Span.of`), so that a late pass still points at the author's expression.
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlir import ir


@dataclass(frozen=True)
class Span:
    """A range of source text: lines and columns count from 1, `end_column` is one past the last."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int

    def location(self, context: ir.Context) -> ir.Location:
        """Return the MLIR location that carries this span."""
        from mlir import ir

        return ir.Location.file(
            self.file, self.line, self.column, self.end_line, self.end_column, context
        )

    @staticmethod
    def of(location: ir.Location) -> Span | None:
        """Return the span in `location`: the innermost of a call site, the first of a fusion."""
        if location.is_a_callsite():
            return Span.of(location.callee) or Span.of(location.caller)
        if location.is_a_name():
            return Span.of(location.child_loc)
        if location.is_a_fused():
            return next((span for part in location.locations if (span := Span.of(part))), None)
        if not location.is_a_file():
            return None
        return Span(
            location.filename,
            location.start_line,
            location.start_col,
            location.end_line,
            location.end_col,
        )

    def excerpt(self) -> list[str]:
        """Return the lines that show this span: position, source line, carets."""
        shown = [f"--> {self.file}:{self.line}:{self.column}"]
        source = linecache.getline(self.file, self.line).rstrip("\n")
        if not source:
            return shown
        end = self.end_column if self.end_line == self.line else len(source) + 1
        width = max(1, min(end, len(source) + 1) - self.column)
        number = str(self.line)
        gutter = " " * len(number)
        carets = " " * (self.column - 1) + "^" * width
        return [
            gutter + shown[0],
            f"{gutter} |",
            f"{number} | {source}",
            f"{gutter} | {carets}",
        ]


class KernelError(Exception):
    """A mistake in a kernel or its call, shown at the expression that made it.

    Args:
        message: What is wrong, as "expected X, found Y" where that fits.
        span: The expression at fault, where one is known.
        hint: What to do instead, where there is one answer.
        notes: Further spans with a word each, as the call chain through helper functions.
    """

    def __init__(
        self,
        message: str,
        span: Span | None = None,
        hint: str | None = None,
        notes: tuple[tuple[str, Span], ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.span = span
        self.hint = hint
        self.notes = notes

    def at(self, span: Span | None) -> KernelError:
        """Return this error pointing at `span`, unless it already points somewhere."""
        if self.span is not None or span is None:
            return self
        return type(self)(self.message, span, self.hint, self.notes)

    def __str__(self) -> str:
        lines = [self.message]
        if self.span is not None:
            lines += ["  " + line for line in self.span.excerpt()]
        for word, span in self.notes:
            lines += [f"  {word}"] + ["  " + line for line in span.excerpt()]
        if self.hint is not None:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class CompilerBug(Exception):
    """A fault of this compiler, not of the kernel: please report it with the reproducer.

    Args:
        message: What went wrong, beginning with the place, as "after swizzle_shared: ...".
        reproducer: The file that holds the IR and options to see it again.
    """

    def __init__(self, message: str, reproducer: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reproducer = reproducer

    def __str__(self) -> str:
        if self.reproducer is None:
            return self.message
        return f"{self.message}\n  reproducer: {self.reproducer}"
