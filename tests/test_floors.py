"""The four floors: linked into one package, importing only from below, light to import."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = ["dialects", "transforms", "targets"]
"""From the bottom up; the package's own modules stand on top."""


@pytest.mark.parametrize("floor", FLOORS)
def test_a_floor_is_a_relative_link_in_the_package(floor: str) -> None:
    link = ROOT / "tiledsl" / floor
    assert link.is_symlink()
    assert link.readlink() == Path("..") / floor
    assert (ROOT / floor / "__init__.py").is_file()


def imports(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: expected absolute imports"
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("floor", FLOORS)
def test_a_floor_imports_only_from_below(floor: str) -> None:
    allowed = {f"tiledsl.{name}" for name in FLOORS[: FLOORS.index(floor) + 1]}
    for path in (ROOT / floor).rglob("*.py"):
        for name in imports(path):
            if name.startswith("tiledsl.") and name != "tiledsl":
                above = ".".join(name.split(".")[:2])
                assert above in allowed, f"{path.relative_to(ROOT)} imports {name}"


TARGETS = ["nvptx", "amdgpu", "host"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_imports_nothing_of_another(target: str) -> None:
    others = tuple(f"tiledsl.targets.{name}" for name in TARGETS if name != target)
    for path in (ROOT / "targets" / target).rglob("*.py"):
        for name in imports(path):
            assert not name.startswith(others), f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize(
    "module", ["tiledsl", "tiledsl.jit", "tiledsl.launch", "tiledsl.targets.target"]
)
def test_importing_the_package_loads_no_compiler(module: str) -> None:
    program = f"import sys, {module}; print([m for m in ('mlir', 'torch', 'llvmlite.binding') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
