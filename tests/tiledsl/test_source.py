"""Fingerprints: equal for equal sources and captures, different where anything reached differs."""

import functools
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiledsl.source import Reach, reach

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


class Settings:
    rate: object = 1

    def __init__(self, rate: object) -> None:
        self.rate = rate


class Slotted:
    __slots__ = ("rate",)

    def __init__(self, rate: object) -> None:
        self.rate = rate


class Derived(Settings):
    pass


class Nested:
    def __init__(self) -> None:
        self.inner = (Settings(1),)


HELD = Settings(1)


def reads_held(x: int) -> object:
    return (x, HELD.rate)


@pytest.mark.parametrize(
    "owner",
    [
        Settings(1),
        Slotted(1),
        Derived,
        types.SimpleNamespace(rate=1),
        types.ModuleType("picked_settings"),
    ],
    ids=lambda owner: type(owner).__name__,
)
def test_an_attribute_that_the_code_mentions_counts(owner: Any) -> None:
    def uses(x: int) -> object:
        return (x, owner.rate)

    def by_text(x: int) -> object:
        return (x, getattr(owner, "rate"))  # noqa: B009

    def of_a_constant(x: int, given: Any) -> object:
        return (x, given.rate)

    def constant() -> Reach:
        return reach(functools.partial(of_a_constant, given=owner), {"rate"})

    for read in (lambda: reach(uses), lambda: reach(by_text), constant):
        owner.rate = 1
        found = read()
        assert not found.changed()
        owner.rate = 1
        assert not found.changed()
        owner.rate = 2
        assert found.changed()
        assert read().digest != found.digest


def test_an_attribute_of_an_attribute_and_of_an_item_counts() -> None:
    nested = Nested()

    def uses(x: int) -> object:
        return (x, nested.inner[0].rate)

    found = reach(uses)
    nested.inner[0].rate = 2
    assert found.changed()


def test_an_attribute_that_no_code_mentions_does_not_count() -> None:
    settings: Any = Settings(1)

    def uses(x: int) -> object:
        return (x, settings.rate)

    found = reach(uses)
    settings.launches = 5
    assert not found.changed()


def test_an_attribute_counts_where_a_helper_mentions_it() -> None:
    def uses(x: int) -> object:
        return reads_held(x)

    found = reach(uses)
    HELD.rate = 2
    try:
        assert found.changed()
    finally:
        HELD.rate = 1
    assert not found.changed()


def test_a_property_is_not_run_but_counts() -> None:
    def limited(limit: int) -> type:
        class Limited:
            @property
            def rate(self) -> int:
                assert limit != 3, "run"
                return limit

        return Limited

    def digest(limit: int) -> str:
        owner: Any = limited(limit)()

        def uses(x: int) -> object:
            return (x, owner.rate)

        assert not reach(uses).changed()
        return reach(uses).digest

    assert digest(3) != digest(4)


def test_methods_of_a_base_class_count() -> None:
    def derived(number: int) -> type:
        class Base:
            def method(self) -> int:
                return number

        class Derived(Base):
            pass

        return Derived

    one, two = (reach(functools.partial(print, derived(number))).digest for number in (1, 2))
    assert one != two


@pytest.mark.parametrize("length", [16, 5000])
def test_elements_of_arrays_count(length: int) -> None:
    def digest(array: np.ndarray[Any, Any]) -> Reach:
        def uses(x: int) -> object:
            return (x, array[0])

        return reach(uses)

    table = np.zeros(length, np.float32)
    other = table.copy()
    other[length // 2] = 1e-9
    found = digest(table)
    assert digest(table).digest == found.digest != digest(other).digest
    table[:] = other
    assert found.changed() == (length == 16)


def test_a_list_in_a_tuple_is_looked_into() -> None:
    table = ([1],)

    def uses(x: int) -> object:
        return (x, table[0][0])

    found = reach(uses)
    table[0][0] = 2
    assert found.changed()


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
