"""What `import tiledsl as tile` offers."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import tiledsl as tile


def _type_checkers_view() -> dict[str, str]:
    """Return the module of each name imported for type checkers alone."""
    tree = ast.parse(Path(str(tile.__file__)).read_text())
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.If):
            for inner in node.body:
                assert isinstance(inner, ast.ImportFrom)
                assert inner.module is not None
                for alias in inner.names:
                    found[alias.name] = inner.module
    return found


def test_type_checkers_see_what_there_is() -> None:
    view = _type_checkers_view()
    assert view.pop("math") == "tiledsl.language"
    for name, module in view.items():
        assert getattr(tile, name) is getattr(import_module(module), name), name
    assert set(view) <= set(tile.__all__)


def test_every_name_is_there_and_documented() -> None:
    assert len(set(tile.__all__)) == len(tile.__all__)
    for name in tile.__all__:
        found = getattr(tile, name)
        if callable(found):
            assert found.__doc__, name
        assert name in dir(tile)


def test_functions_stay_functions_though_modules_share_their_names() -> None:
    for name in ("autotune", "compile", "device", "emulate", "heuristics", "jit"):
        import_module(f"tiledsl.{name}")
        assert callable(getattr(tile, name)), name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"^module `tiledsl` has no attribute `lode`$"):
        tile.lode  # noqa: B018  # pyright: ignore
    with pytest.raises(AttributeError, match=r"`sqroot`: did you mean `sqrt`\?$"):
        tile.sqroot  # noqa: B018  # pyright: ignore


def test_names_of_triton_say_what_to_use() -> None:
    with pytest.raises(AttributeError, match=r"`round`: use tile\.rint$"):
        tile.round  # noqa: B018  # pyright: ignore
    for name, words in tile._INSTEAD.items():  # pyright: ignore[reportPrivateUsage]
        assert not hasattr(tile, name)
        for used in re.findall(r"tile\.(\w+)", words):
            assert hasattr(tile, used), (name, used)


def test_importing_does_not_import_mlir() -> None:
    code = "import sys, tiledsl; assert 'mlir' not in sys.modules, 'mlir'"
    subprocess.run([sys.executable, "-c", code], check=True)
