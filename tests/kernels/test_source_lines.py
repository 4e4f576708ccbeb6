"""Assembly text names the author's lines: what each line says that it does, and nothing else.

A kernel's comments name the kinds of instruction that the line may become. Every instruction of
such a kind in the text, for any chip, must come from a line that names it, whatever pass moved,
copied or invented it; and the kind that a line names first must show in the text, unless "perhaps".
"""

import functools
import inspect
import linecache
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import tiledsl as tile
from tiledsl.targets.amdgpu.elf import SHT_DYNSYM, ElfFile
from tiledsl.targets.gpu.source_lines import source_lines

CHIPS = ("sm_80", "sm_90a", "gfx942", "gfx1201")

KINDS = {
    "global": r"(ld|st|atom|red|cp)\S*\.global\b|(global|flat|buffer)_(?!wbl2|inv|wb\b)",
    "shared": r"(ld|st|atom|red)\S*\.shared\b|(ld|st)matrix|ds_(?!bpermute|swizzle|permute)",
    "barrier": r"bar\.|barrier\.|(fence|membar)\b|s_barrier|buffer_(wbl2|inv)|global_(inv|wb)\b",
    "copy": r"cp\.async\.(commit|wait)",
    "matrix": r"mma\.|wgmma\.|v_(mfma|wmma)",
    "shuffle": r"shfl|vote|ds_bpermute|ds_swizzle|v_permlane|v_\w+_dpp\b",
    "trap": r"trap|s_trap",
    "print": r"call\.",
}
"""How each kind of instruction is spelled, NVIDIA's and AMD's."""

ONLY_NVIDIAS = {"copy", "print"}


@tile.jit
def scaled(x, factor):
    y = x * factor
    return tile.sum(y, axis=1)  # sum: shuffle shared barrier


@tile.jit
def product(
    a, b, c, M, N, K, BLOCK_M: tile.constexpr, BLOCK_N: tile.constexpr, BLOCK_K: tile.constexpr,
):  # fmt: skip
    m = tile.program_id(0) * BLOCK_M + tile.arange(0, BLOCK_M)
    n = tile.program_id(1) * BLOCK_N + tile.arange(0, BLOCK_N)
    k = tile.arange(0, BLOCK_K)
    acc = tile.zeros((BLOCK_M, BLOCK_N), tile.float32)
    for k0 in range(0, K, BLOCK_K):  # loop: copy
        x = tile.load(  # left: global shared barrier
            a + m[:, None] * K + (k0 + k)[None, :],
            mask=(k0 + k)[None, :] < K,
        )
        y = tile.load(  # right: global shared barrier
            b
            + (k0 + k)[:, None] * N
            + n[None, :]
        )  # fmt: skip
        acc = tile.dot(x, y, acc)  # product: matrix
    tile.store(  # result: global
        c + m[:, None] * N + n[None, :],
        acc.to(tile.float16),  # rounded: perhaps shared barrier
    )


@tile.jit
def rows(x, out, sums, counts, n, ROWS: tile.constexpr, COLUMNS: tile.constexpr):
    i = tile.arange(0, ROWS)
    j = tile.arange(0, COLUMNS)
    tiles = tile.load(x + i[:, None] * COLUMNS + j[None, :])  # read: global shared barrier
    sums_of_rows = scaled(tiles, 2.0)
    tile.store(sums + i, sums_of_rows)  # sums: global
    steps = tile.cumsum(tiles, axis=1)  # scan: shuffle shared barrier
    tile.store(out + j[:, None] * ROWS + i[None, :], steps.trans())  # moved: global shared barrier
    most = tile.max(tile.max(tiles, axis=1), axis=0)  # most: shuffle shared barrier
    place = tile.atomic_add(counts + i, 1)  # taken: global shared barrier
    tile.store(sums + n + place, most)  # most: global


@tile.jit
def turns(x, lock, n, PRINTS: tile.constexpr, BLOCK: tile.constexpr):
    i = tile.arange(0, BLOCK)
    while tile.atomic_cas(lock, 0, 1) != 0:  # lock: global shared barrier
        pass
    value = tile.load(x + i, mask=i < n)  # read: global barrier
    tile.device_assert(value >= 0, "not negative", mask=i < n)  # check: trap print
    if PRINTS and tile.program_id(0) == 3:
        tile.device_print("value", value)  # shown: print
    tile.debug_barrier()  # wait: barrier
    for k in range(n):
        value = value + tile.load(x + k)  # one: global
    tile.store(x + i, value, mask=i < n)  # write: global barrier
    tile.atomic_xchg(lock, 0)  # unlock: global barrier


KERNELS: dict[str, tuple[Any, dict[str, str], dict[str, Any]]] = {
    "product": (
        product,
        {**dict.fromkeys("abc", "*fp16:16"), **dict.fromkeys("MNK", "i32:16")},
        {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32},
    ),
    "rows": (
        rows,
        {**dict.fromkeys(("x", "out", "sums"), "*fp32:16"), "counts": "*i32:16", "n": "i32"},
        {"ROWS": 16, "COLUMNS": 256},
    ),
    "turns": (turns, {"x": "*fp32:16", "lock": "*i32:16", "n": "i32"}, {"BLOCK": 256}),
}


def kinds_of(instruction: str) -> list[str]:
    """Return the kinds that a line of assembly text is of."""
    operation = re.sub(r"^\s*(@!?\S+\s+)?", "", instruction)
    return [kind for kind, spelled in KINDS.items() if re.match(spelled, operation)]


def kinds_named(line: int) -> list[str]:
    """Return the kinds that a line of this file names."""
    comment = linecache.getline(__file__, line).partition("# ")[2]
    return comment.partition(":")[2].split()


@functools.cache
def instructions(name: str, chip: str) -> list[tuple[str, str, int | None]]:
    """Return each instruction of some kind, the kind, and the line of this file that it is of."""
    kernel, signature, constants = KERNELS[name]
    if kernel is turns:  # AMD's kernels cannot print
        constants = {**constants, "PRINTS": chip.startswith("sm_")}
    asm = tile.compile(kernel, signature, constants, target=chip, debug=True, num_stages=3).asm
    text = asm["ptx" if chip.startswith("sm_") else "amdgcn"]
    assert isinstance(text, str)
    return [
        (line.strip(), kind, source.line if source and source.file == __file__ else None)
        for line, source in zip(text.splitlines(), source_lines(text), strict=True)
        for kind in kinds_of(line)
    ]


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_instruction_is_of_a_line_that_says_so(name: str, chip: str) -> None:
    assert [
        found
        for found in instructions(name, chip)
        if found[2] is None or found[1] not in kinds_named(found[2])
    ] == []


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_line_that_says_so_has_its_first_kind(name: str, chip: str) -> None:
    kernels = [KERNELS[name][0], *([scaled] if name == "rows" else [])]
    sources = [inspect.getsourcelines(kernel.fn) for kernel in kernels]
    lines = [first + i for text, first in sources for i in range(len(text))]
    expected = KINDS if chip.startswith("sm_") else KINDS.keys() - ONLY_NVIDIAS
    firsts = {(kind, line) for line in lines for kind in kinds_named(line)[:1]}
    wanted = {(kind, line) for kind, line in firsts if kind in expected}
    assert wanted - {(kind, line) for _, kind, line in instructions(name, chip)} == set()


@tile.jit
def apart(x, y, out, n, BLOCK: tile.constexpr):
    i = tile.arange(0, BLOCK)
    value = tile.load(x + i)  # load of x
    other = tile.load(y + i)  # load of y
    tile.store(out + i, value + other, mask=i < n)  # store


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "i64"])
@pytest.mark.parametrize("chip", CHIPS)
def test_a_load_that_is_used_element_by_element_keeps_its_own_line(dtype: str, chip: str) -> None:
    signature = {**dict.fromkeys(("x", "y", "out"), f"*{dtype}:16"), "n": "i32"}
    asm = tile.compile(apart, signature, {"BLOCK": 512}, target=chip).asm
    text = str(asm["ptx" if chip.startswith("sm_") else "amdgcn"])
    lines, first = inspect.getsourcelines(apart.fn)
    for word, form in (("load", r"ld\.global|global_load"), ("store", r"st\.global|global_store")):
        wanted = {first + at for at, line in enumerate(lines) if f"# {word}" in line}
        found = {
            source.line if source else None
            for line, source in zip(text.splitlines(), source_lines(text), strict=True)
            if re.search(form, line)
        }
        # LLVM's printer gives all loads of one of RDNA's clauses the position of the first.
        assert found == wanted or (chip == "gfx1201" and found == {min(wanted)})


SYMBOLIZER = shutil.which("llvm-addr2line")


@pytest.mark.skipif(SYMBOLIZER is None, reason="no llvm-addr2line")
@pytest.mark.parametrize("chip", ["gfx942", "gfx1201"])
def test_debuggers_find_the_lines_in_amds_code_objects(chip: str, tmp_path: Path) -> None:
    kernel, signature, constants = KERNELS["rows"]
    asm = tile.compile(kernel, signature, constants, target=chip).asm
    assert ".debug_" not in re.sub("cfi_sections.*", "", str(asm["amdgcn"]))
    binary = asm["hsaco"]
    assert isinstance(binary, bytes)
    (symbol,) = (s for s in ElfFile(binary).symbols(SHT_DYNSYM) if s.name == "rows")
    file = tmp_path / "rows.hsaco"
    file.write_bytes(binary)
    addresses = [hex(symbol.value + offset) for offset in range(0, symbol.size, 4)]
    command = [str(SYMBOLIZER), "-e", str(file), *addresses]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    found = {line.rpartition(":")[2] for line in told if line.startswith(__file__)}
    named = {str(line) for _, _, line in instructions("rows", chip)}
    assert named <= found


def test_a_kernel_that_moved_within_its_file_has_its_new_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEDSL_CACHE", "1")
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path))
    file = tmp_path / "moving.py"
    text = """
import tiledsl as tile

@tile.jit
def kernel(x):
    tile.store(x, 1)
"""

    def store_of(source: str) -> tuple[int, bool]:
        file.write_text(source)
        linecache.checkcache(str(file))
        kernel = runpy.run_path(str(file))["kernel"]
        compiled = tile.compile(kernel, {"x": "*i32:16"}, target="gfx942")
        assembly = str(compiled.asm["amdgcn"])
        places = dict(zip(assembly.splitlines(), source_lines(assembly), strict=True))
        (place,) = (p for line, p in places.items() if "global_store" in line)
        assert place is not None
        return place.line, compiled.seconds == []

    assert store_of(text) == (6, False)
    assert store_of(text) == (6, True)
    assert store_of("# a comment" + text) == (6, True)
    assert store_of("# two\n# more" + text) == (7, False)
