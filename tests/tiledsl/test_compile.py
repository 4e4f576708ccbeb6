"""Ahead-of-time compilation: levels, stages, dumps, messages."""

# Kernels are traced, not typed.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

from pathlib import Path

import pytest

import tiledsl as tile
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.target import find, target

SIGNATURE = {"x": "*fp32:16", "out": "*fp32:16", "n": "i32"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TILEDSL_CACHE", raising=False)


@tile.jit
def double(x, out, n, BLOCK: tile.constexpr):
    i = tile.arange(0, BLOCK)
    tile.store(out + i, tile.load(x + i, mask=i < n) * 2, mask=i < n)


@pytest.mark.parametrize(
    ("chip", "levels"),
    [
        ("sm_80", ["tile", "tgpu", "machine", "llvm", "ptx"]),
        ("gfx942", ["tile", "tgpu", "machine", "llvm", "amdgcn", "hsaco"]),
        ("host", ["tile", "machine", "llvm", "object"]),
    ],
)
def test_every_level_can_be_read(chip: str, levels: list[str]) -> None:
    compiled = tile.compile(double, SIGNATURE, {"BLOCK": 64}, chip)
    names = [name for name in compiled.asm if name != "cubin"]
    assert names == levels
    assert all(len(compiled.asm[name]) > 100 for name in names)
    assert "double" in str(compiled.asm["llvm"])
    with pytest.raises(KeyError, match="expected a level among tile"):
        compiled.asm["sass"]


def test_stages_are_the_passes_in_order() -> None:
    compiled = tile.compile(double, SIGNATURE, {"BLOCK": 64}, "sm_90a", num_warps=2)
    names = [name for name, _ in compiled.stages]
    owner, chip = find("sm_90a")
    assert names == ["trace", *(s.name for s in owner.pipeline(chip, compiled.request.options))]
    assert "tile.load" in compiled.stages[0][1]
    assert "llvm.func" in compiled.stages[-1][1]


def test_what_came_from_disk_reads_the_same() -> None:
    first = tile.compile(double, SIGNATURE, {"BLOCK": 32}, "gfx1100")
    double._compiled.clear()  # pyright: ignore[reportPrivateUsage] (as a new process)
    again = tile.compile(double, SIGNATURE, {"BLOCK": 32}, "gfx1100")
    assert again is not first
    assert first.seconds
    assert not again.seconds
    assert dict(again.asm) == dict(first.asm)
    assert again.resources == first.resources
    assert again.resources.shared_bytes == 0
    assert again.resources.registers


def test_a_dump_has_a_file_for_every_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_DUMP", str(tmp_path / "dump"))
    for block in (16, 32):
        tile.compile(double, SIGNATURE, {"BLOCK": block}, "sm_86")
    folders = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert folders == ["000-double-sm_86", "001-double-sm_86"]
    files = sorted(path.name for path in (tmp_path / "dump" / folders[0]).iterdir())
    assert files[0] == "00-trace.mlir"
    assert any(name.endswith("code.ptx") for name in files)
    steps = target("nvptx").pipeline(
        "sm_86", tile.compile(double, SIGNATURE, {"BLOCK": 16}, "sm_86").request.options
    )
    assert sum(name.endswith(".mlir") for name in files) == 1 + len(steps)


def test_a_dump_that_cannot_be_written_is_said_before_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("TILEDSL_DUMP", str(file))
    with pytest.raises(KernelError, match="TILEDSL_DUMP: expected a folder that can be written"):
        tile.compile(double, SIGNATURE, {"BLOCK": 16}, "sm_89")


@pytest.mark.parametrize(
    ("signature", "constexprs", "chip", "message"),
    [
        (SIGNATURE, {}, "sm_80", "kernel `double`: constexpr `BLOCK` is missing"),
        ({"x": "*fp32"}, {"BLOCK": 64}, "sm_80", "kernel `double`: type of `out` is missing"),
        (SIGNATURE, {"BLOCK": 64, "Z": 1}, "sm_80", "kernel `double`: no parameter is called `Z`"),
    ],
)
def test_a_wrong_request_says_what_is_wrong(
    signature: dict[str, str], constexprs: dict[str, object], chip: str, message: str
) -> None:
    with pytest.raises(KernelError) as raised:
        tile.compile(double, signature, constexprs, chip)
    assert str(raised.value) == message


def test_an_unknown_target_lists_the_known_ones() -> None:
    with pytest.raises(
        KernelError, match=r"expected a target among host, sm_80, .*gfx1201, found 'sm_70'"
    ):
        tile.compile(double, SIGNATURE, {"BLOCK": 64}, "sm_70")


@tile.jit
def exponentials(x, out, M: tile.constexpr, N: tile.constexpr):
    i = tile.arange(0, M)[:, None] * N + tile.arange(0, N)[None, :]
    tile.store(out + i, tile.exp(tile.load(x + i)))


@pytest.mark.parametrize("chip", ["sm_90a", "gfx1100"])
def test_a_tile_too_large_for_its_threads_is_said_at_once(chip: str) -> None:
    arguments = {"x": "*fp32:16", "out": "*fp32:16"}, {"M": 1024, "N": 64}, chip
    with pytest.raises(KernelError) as raised:
        tile.compile(exponentials, *arguments, num_warps=1)
    assert raised.value.message == (
        "expected at most 512 elements of 32 bits in each thread, found 2048, of a tile of shape "
        "(1024, 64) over 1 warp"
    )
    assert raised.value.span is not None
    assert raised.value.hint == "use more warps (num_warps) or a smaller tile"


@tile.jit
def apply_all(x, out, FUNCTIONS: tile.constexpr, BLOCK: tile.constexpr):
    i = tile.arange(0, BLOCK)
    value = tile.load(x + i)
    for row, function in enumerate(FUNCTIONS):
        tile.store(out + row * BLOCK + i, function(value))


FUNCTIONS = tuple(
    getattr(tile, name)
    for name in (
        *("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "sigmoid"),
        *("floor", "ceil"),
    )
)


@pytest.mark.parametrize("chip", ["sm_80", "sm_120", "gfx90a", "gfx1201"])
@pytest.mark.parametrize("dtype", ["fp16", "fp32", "fp64"])
def test_every_function_compiles_fast_and_exact(chip: str, dtype: str) -> None:
    """An intrinsic that LLVM does not know would end this process."""
    signature = {"x": f"*{dtype}:16", "out": f"*{dtype}:16"}
    for fast_math in (False, True):
        tile.compile(
            apply_all, signature, {"FUNCTIONS": FUNCTIONS, "BLOCK": 64}, chip, fast_math=fast_math
        )
