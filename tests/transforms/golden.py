"""Golden tests: IR with its `// CHECK` lines, a pass to run on it, filecheck to compare."""

from __future__ import annotations

import io
from collections.abc import Callable

from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser, pattern_for_opts
from mlir import ir

from tiledsl.dialects import contracts
from tiledsl.dialects.context import parse
from tiledsl.dialects.contracts import TILE, Level


def golden(
    text: str, run: Callable[[ir.Module], object], level: Level = TILE, checks: str | None = None
) -> str:
    """Run a pass on IR and compare the result with the CHECK lines beside it; return the result.

    Args:
        text: The IR, with CHECK lines in comments.
        run: The pass.
        level: The level that must hold before and after.
        checks: The CHECK lines, where they do not stand in `text`.
    """
    module = parse(text)
    contracts.check(module, level)
    with module.context, ir.Location.unknown():
        run(module)
    contracts.check(module, level)
    found = str(module)
    options = Options("golden")
    lines = Parser(options, io.StringIO(checks or text), *pattern_for_opts(options))
    matcher = Matcher(options, FInput("golden", found), lines)
    matcher.stderr = io.StringIO()
    assert matcher.run() == 0, f"{matcher.stderr.getvalue()}\n{found}"
    return found
