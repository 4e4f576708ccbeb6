"""Which variables are live at branches and loops."""

from __future__ import annotations

import ast
import textwrap

from tiledsl.control_flow import liveness
from tiledsl.control_flow.liveness import Live, Liveness


def analyzed(source: str) -> tuple[Liveness, list[Live]]:
    """Return the analysis, and the liveness at each branch and loop in the order of the text."""
    function = ast.parse(textwrap.dedent(source)).body[0]
    assert isinstance(function, ast.FunctionDef)
    result = liveness.analyze(function)
    nodes = [n for n in ast.walk(function) if isinstance(n, ast.If | ast.For | ast.While)]
    return result, [result.at[n] for n in sorted(nodes, key=lambda n: n.lineno)]


def test_after_a_branch_only_what_is_read_is_live() -> None:
    _, (live,) = analyzed(
        """
        def f(c, x, y):
            if c:
                x = 1
                t = 2
            else:
                y = x
                t = y
            return x
        """
    )
    assert live.after == {"x"}
    assert live.start == {"x"}


def test_a_loop_carries_what_a_later_trip_reads() -> None:
    _, (live,) = analyzed(
        """
        def f(n, p):
            acc = 0
            for i in range(n):
                t = p + i
                acc = acc + t
            return 1
        """
    )
    assert live.after == frozenset()
    assert live.start == {"acc", "p", "i"}


def test_what_every_trip_sets_first_is_not_carried() -> None:
    _, (live,) = analyzed(
        """
        def f(n):
            x = None
            while n > 0:
                x = n
                n = n - x
            return 0
        """
    )
    assert live.start == {"n"}


def test_jumps_are_edges() -> None:
    _, lives = analyzed(
        """
        def f(n, a, b):
            for i in n:
                if i:
                    x = 1
                    continue
                x = 2
                break
            return a
        """
    )
    assert lives[1].after == {"a"}
    assert lives[0].after == {"a"}
    _, (loop, _) = analyzed(
        """
        def f(n, a):
            for i in n:
                with i:
                    if i:
                        break
                a = 1
            return a
        """
    )
    assert "a" in loop.start


def test_captured_variables_are_always_live() -> None:
    result, (live,) = analyzed(
        """
        def f(c):
            x = y = 0
            def g():
                nonlocal y
                y = x
            if c:
                x = y = 1
            return g
        """
    )
    assert {"x", "y"} <= live.after
    assert result.shared == {"y"}


def test_globals_are_not_the_functions() -> None:
    result, _ = analyzed("def f():\n    global G\n    G = 1\n")
    assert result.outside == {"G"}


def test_variables_of_others_are_live_to_the_end() -> None:
    function = ast.parse("def f():\n    nonlocal_ = 0\n    def g(c):\n        nonlocal nonlocal_\n"
                         "        if c:\n            nonlocal_ = 1\n").body[0]  # fmt: skip
    assert isinstance(function, ast.FunctionDef)
    inner = function.body[1]
    assert isinstance(inner, ast.FunctionDef)
    branch = inner.body[1]
    assert isinstance(branch, ast.If)
    assert "nonlocal_" in liveness.analyze(inner).at[branch].after


def test_what_a_statement_binds() -> None:
    module = ast.parse(
        "import a.b as c, d.e\n(x, *y), z[0], w.v = 1\nfor i in j: k = 1\n"
        "with m as n: pass\n[u := t for t in s]\ndef f(p): q = 1\nclass G: r = 1\n"
        "lambda o: o\ndel x1\ntry: pass\nexcept E as err: pass\n"
        "match v1:\n    case {'a': v2, **v3} | [v4, *v5] as v6: pass\n"
    )
    assert liveness.writes(module.body) == {
        *("c", "d", "x", "y", "i", "k", "n", "u", "f", "G", "x1", "err", "v2", "v3", "v4", "v5"),
        "v6",
    }


def test_what_a_statement_changes_in_place() -> None:
    module = ast.parse("a.b.c = 1\nd[0] += 2\ne = 3\nf(g.h)\nfor i.j in k: pass\n")
    assert liveness.mutated(module.body) == {"a", "d", "i"}
