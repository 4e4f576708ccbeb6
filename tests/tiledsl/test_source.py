"""Fingerprints: equal for equal sources and captures, different where anything reached differs."""

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tiledsl.source import reach

SCALE = 2
TABLE = {"a": 1}


def scaled(x: int) -> int:
    return x * SCALE


def looked_up(x: int) -> int:
    return x + TABLE["a"]


def make(k: int) -> Callable[[int], int]:
    def inner(x: int) -> int:
        return x + k

    return inner


def test_a_digest_repeats() -> None:
    assert reach(scaled).digest == reach(scaled).digest
    assert reach(make(2)).digest == reach(make(2)).digest


def test_closures_and_defaults_count() -> None:
    assert reach(make(2)).digest != reach(make(3)).digest
    digests = {reach(functools.partial(scaled, n)).digest for n in (1, 2, True)}
    assert len(digests) == 3


def test_lambdas_of_one_line_differ() -> None:
    pair: list[Callable[[int], int]] = [lambda x: x + 1, lambda x: x + 2]
    assert reach(pair[0]).digest != reach(pair[1]).digest


def test_the_place_of_a_function_counts() -> None:
    text = "def kernel(x):\n    return x + 1\n"

    def digest(source: str, file: str) -> str:
        space: dict[str, Any] = {"__name__": "made"}
        exec(compile(source, file, "exec"), space)
        return reach(space["kernel"]).digest

    assert digest(text, "one.py") == digest(text, "one.py")
    places = [(text, "one.py"), (text, "two.py"), ("\n" + text, "one.py")]
    places.append((text.replace("return ", "return  "), "one.py"))
    assert len({digest(source, file) for source, file in places}) == 4


def test_a_function_of_no_module_is_digested() -> None:
    spaces: list[dict[str, Any]] = [{}, {}]
    for space, number in zip(spaces, (1, 2), strict=True):
        exec(f"def kernel(x):\n    return x + {number}\n", space)
    one, two = (reach(space["kernel"]).digest for space in spaces)
    assert one != two


def test_a_rebound_global_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reach(scaled)
    assert not found.changed()
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 3)
    assert found.changed()
    assert reach(scaled).digest != found.digest


def test_a_mutated_global_container_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reach(looked_up)
    monkeypatch.setitem(TABLE, "a", 2)
    assert found.changed()
    assert reach(looked_up).digest != found.digest


def test_recursion_ends() -> None:
    def again(n: int) -> int:
        return again(n - 1) if n else 0

    assert reach(again).stable


class Opaque:
    __slots__ = ("x",)


def test_an_object_without_a_description_is_not_stable() -> None:
    opaque = Opaque()

    def uses(x: int) -> object:
        return (x, opaque)

    assert not reach(uses).stable
    assert reach(scaled).stable


KERNEL = "import helpers\nimport picked\ndef kernel(x):\n    return helpers.outer(x) + getattr(picked, 'f')(x)\n"
DIGEST = (
    "import sys; sys.path.insert(0, sys.argv[1]); import kernel; from tiledsl.source import reach;"
    "r = reach(kernel.kernel); print(r.digest, r.stable)"
)


def digest_of(folder: Path, outer: str, inner: str, picked: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "kernel.py").write_text(KERNEL)
    (folder / "deep.py").write_text(f"def inner(x):\n    return {inner}\n")
    (folder / "helpers.py").write_text(
        f"import deep\ndef outer(x):\n    return deep.inner(x){outer}\n"
    )
    (folder / "picked.py").write_text(f"def f(x):\n    return {picked}\n")
    done = subprocess.run(
        [sys.executable, "-B", "-c", DIGEST, str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    digest, stable = done.stdout.split()
    assert stable == "True"
    return digest


def test_helpers_two_modules_deep_count_in_a_new_process(tmp_path: Path) -> None:
    base = digest_of(tmp_path / "a", "", "x * 2", "x")
    assert digest_of(tmp_path / "a", "", "x * 2", "x") == base
    assert digest_of(tmp_path / "a", "", "x + 2", "x") != base
    assert digest_of(tmp_path / "a", " + 1", "x * 2", "x") != base
    assert digest_of(tmp_path / "a", "", "x * 2", "x + 1") != base
