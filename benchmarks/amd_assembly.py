"""Our AMD assembly beside Triton's for the same kernels: what their main loops are made of.

    python -m benchmarks.amd_assembly [--json FILE] [--keep FOLDER] [CHIP ...]

Compiles only; no GPU is needed, as Triton's wheel compiles for AMD on any machine (without one our
half is shown). The last results are in benchmarks/results/amd_assembly.json; a test holds two of
our kernels to Triton's figures there. A share says less where the compilers chose matrix
instructions of other sizes, as the counts show; `instructions` are those of the same tiles.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tiledsl as tile
from benchmarks.amd_loops import main_loop

CHIPS = ("gfx942", "gfx950", "gfx1100", "gfx1201")


@tile.jit
def matmul(
    a, b, c, M, N, K, sa, sb, sc,
    BM: tile.constexpr, BN: tile.constexpr, BK: tile.constexpr, ACC: tile.constexpr,
):  # fmt: skip
    """Multiply row-major matrices."""
    m = tile.program_id(0) * BM + tile.arange(0, BM)
    n = tile.program_id(1) * BN + tile.arange(0, BN)
    k = tile.arange(0, BK)
    acc = tile.zeros((BM, BN), ACC)
    for start in range(0, K, BK):
        rest = K - start
        x = tile.load(
            a + m[:, None] * sa + (start + k)[None, :], mask=(m[:, None] < M) & (k[None, :] < rest)
        )
        y = tile.load(
            b + (start + k)[:, None] * sb + n[None, :], mask=(k[:, None] < rest) & (n[None, :] < N)
        )
        acc = tile.dot(x, y, acc)
    inside = (m[:, None] < M) & (n[None, :] < N)
    tile.store(c + m[:, None] * sc + n[None, :], acc.to(c.dtype.element_ty), mask=inside)


@tile.jit(fast_math=True)
def attention(
    q, k, v, out, length, scale, BM: tile.constexpr, BN: tile.constexpr, D: tile.constexpr
):
    """Attend with one head's queries to all its keys; `scale` is that of base 2.

    With `fast_math`, as Triton's exp2 is: what is less than 2^-126 may be 0.
    """
    m = tile.program_id(0) * BM + tile.arange(0, BM)
    n, d = tile.arange(0, BN), tile.arange(0, D)
    head = tile.program_id(1) * length * D
    x = tile.load(q + head + m[:, None] * D + d[None, :], mask=m[:, None] < length)
    top = tile.full((BM,), float("-inf"), tile.float32)
    total = tile.zeros((BM,), tile.float32)
    acc = tile.zeros((BM, D), tile.float32)
    for start in range(0, length, BN):
        inside = start + n < length
        y = tile.load(k + head + (start + n)[None, :] * D + d[:, None], mask=inside[None, :])
        s = tile.where(inside[None, :], tile.dot(x, y) * scale, float("-inf"))
        highest = tile.maximum(top, tile.max(s, 1))
        p = tile.exp2(s - highest[:, None])
        shrink = tile.exp2(top - highest)
        total = total * shrink + tile.sum(p, 1)
        z = tile.load(v + head + (start + n)[:, None] * D + d[None, :], mask=inside[:, None])
        acc = tile.dot(p.to(q.dtype.element_ty), z, acc * shrink[:, None])
        top = highest
    result = (acc / total[:, None]).to(out.dtype.element_ty)
    tile.store(out + head + m[:, None] * D + d[None, :], result, mask=m[:, None] < length)


@dataclass(frozen=True)
class Case:
    """One kernel, with what it is compiled for; `amd_triton` has one of the same name.

    Attributes:
        signature: As `tile.compile` takes it.
        constexprs: Likewise; types by their names.
        chips: Those that it is compared on: for fp8, those that multiply it.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, int | str]
    num_warps: int = 4
    num_stages: int = 2
    chips: tuple[str, ...] = CHIPS


_SIZES = dict.fromkeys(("M", "N", "K", "sa", "sb", "sc"), "i32:16")
_HEADS = {**dict.fromkeys(("q", "k", "v", "out"), "*bf16:16"), "length": "i32:16", "scale": "fp32"}


def _matmul(bm: int, bn: int, bk: int, warps: int = 4, element: str = "bf16") -> Case:
    result = {"i8": "i32", "fp8e4m3": "fp32"}.get(element, element)
    acc = "int32" if element == "i8" else "float32"
    pointers = {"a": f"*{element}:16", "b": f"*{element}:16", "c": f"*{result}:16"}
    name = f"matmul {element} {bm}x{bn}x{bk}, {warps} warps"
    blocks = {"BM": bm, "BN": bn, "BK": bk, "ACC": acc}
    chips = ("gfx950", "gfx1201") if element.startswith("fp8") else CHIPS
    return Case(name, matmul, {**pointers, **_SIZES}, blocks, warps, chips=chips)


def _attention(bm: int, bn: int, d: int, warps: int = 4) -> Case:
    name = f"attention {bm}x{bn}, d {d}, {warps} warps"
    return Case(name, attention, _HEADS, {"BM": bm, "BN": bn, "D": d}, warps)


CASES = (
    _matmul(128, 128, 64),
    _matmul(128, 128, 64, 8),
    _matmul(256, 128, 32, 8),
    _matmul(128, 128, 64, 8, "fp16"),
    _matmul(128, 128, 128, 8, "i8"),
    _matmul(128, 128, 128, 8, "fp8e4m3"),
    _attention(128, 64, 64),
    _attention(128, 64, 128, 8),
)


def our_assembly(case: Case, chip: str) -> str:
    """Compile our kernel."""
    made = tile.compile(
        case.kernel,
        signature=case.signature,
        constexprs={name: getattr(tile, str(v), v) for name, v in case.constexprs.items()},
        target=chip,
        num_warps=case.num_warps,
        num_stages=case.num_stages,
    )
    return str(made.asm["amdgcn"])


def triton_assembly(case: Case, chip: str) -> str:
    """Compile Triton's."""
    from benchmarks import amd_triton

    return amd_triton.assembly(
        case.kernel.name, chip, case.signature, case.constexprs, case.num_warps, case.num_stages
    )


COMPILERS = {"ours": our_assembly, "triton": triton_assembly}


def measure(case: Case, chip: str, who: str, keep: Path | None) -> dict[str, Any]:
    """Compile one case one way and count."""
    text = COMPILERS[who](case, chip)
    if keep is not None:
        name = re.sub(r"\W+", "_", f"{case.name} {chip} {who}")
        (keep / f"{name}.s").write_text(text)
    loop = main_loop(text)
    return {
        "share": round(loop.share, 3),
        "instructions": loop.instructions,
        "vgprs": loop.vgprs,
        "spilled": loop.spilled,
        "trip": dict(loop.counts),
    }


def main() -> None:
    """Compile, count and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chips", nargs="*", default=CHIPS)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="a folder for the assembly texts")
    options = parser.parse_args()
    compilers = list(COMPILERS) if find_spec("triton") else ["ours"]
    rows: list[dict[str, Any]] = []
    print(f"{'kernel':36} {'chip':8} {'':7} {'share':>6} {'in all':>7} {'vgprs':>6} {'spills':>7}")
    for case in CASES:
        if options.only not in case.name:
            continue
        for chip in (chip for chip in options.chips if chip in case.chips):
            row: dict[str, Any] = {"kernel": case.name, "chip": chip}
            rows.append(row)
            for who in compilers:
                try:
                    it = row[who] = measure(case, chip, who, options.keep)
                except Exception as error:  # the other compiler's result is still wanted
                    row[who] = {"error": str(error).strip().splitlines()[-1]}
                    print(f"{case.name:36} {chip:8} {who:7} {row[who]['error']}")
                    continue
                print(
                    f"{case.name:36} {chip:8} {who:7} {it['share']:6.3f} {it['instructions']:7} "
                    f"{it['vgprs']:6} {it['spilled']:7}   {it['trip']}",
                    flush=True,
                )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
