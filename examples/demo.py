"""The tour of `make demo`: run every example here, then follow one kernel to other machines.

Writes the PTX, the AMDGPU assembly and the IR after every pass of the tutorial's matmul into
`build/demo`, and prints what each pass changed.
"""

import difflib
import os
import re
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table

import tiledsl as tile
from tiledsl.compile import Usage
from tiledsl.targets.target import find, target

HERE = Path(__file__).parent
OUT = HERE.parent / "build" / "demo"
EXAMPLES = (
    "ex01_vector_add", "ex02_softmax", "ex03_layer_norm", "ex04_matmul", "ex05_attention",
    "ex06_fast_matmul", "ex07_fp8_matmul",
)  # fmt: skip
CHIPS = ("sm_80", "sm_90a", "gfx942", "gfx1201")
BLOCKS = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32}

_OP = re.compile(r"(?:= |^\s*)\"?((?:tile|tgpu|arith|math|scf|llvm|nvvm|rocdl|vector|cf)\.[\w.]+)")

_SHOWN = re.compile(r"mma\.sync|ldmatrix|cp\.async\.c[ag]|v_mfma|v_wmma|ds_(?:read|load)_b128")
"""Instructions whose number the tour prints."""


def op_counts(ir: str) -> Counter[str]:
    """Count the ops of each name in a module's text."""
    return Counter(match[1] for line in ir.splitlines() if (match := _OP.search(line)))


def change(before: str, after: str) -> tuple[str, str]:
    """Say how a pass changed a module: lines added and removed, and the ops that came and went."""
    diff = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))
    added = sum(line.startswith("+") and not line.startswith("+++") for line in diff)
    removed = sum(line.startswith("-") and not line.startswith("---") for line in diff)
    old, new = op_counts(before), op_counts(after)
    moved = {name: new[name] - old[name] for name in {*old, *new} if new[name] != old[name]}
    largest = sorted(moved.items(), key=lambda item: -abs(item[1]))[:4]
    words = ", ".join(f"{count:+d} {name}" for name, count in largest)
    return (f"+{added} -{removed}" if added or removed else "none", words)


def usage(taken: Usage) -> str:
    """Say what a program takes of its chip."""
    spills = f"{taken.spills} bytes spilled" if taken.spills else "no spills"
    occupancy = "unknown" if taken.occupancy is None else f"{taken.occupancy:.0%}"
    return (
        f"{taken.shared_bytes >> 10} KiB of shared memory, {taken.registers} registers a thread, "
        f"{spills}, occupancy {occupancy}"
    )


def place() -> str:
    """Return where the examples run: as TILEDSL_DEVICE says, else on a GPU, else on the host."""
    if chosen := os.environ.get("TILEDSL_DEVICE"):
        return chosen
    for name, spec in (("nvptx", "cuda:0"), ("amdgpu", "hip:0")):
        try:
            devices = target(name).driver().devices()
            if devices and find(devices[0].chip):
                return spec
        except tile.KernelError:  # No driver, or a chip that nothing here compiles for.
            continue
    return "host"


def follow(chip: str, console: Console) -> None:
    """Compile the tutorial's matmul for `chip`, write every level, print what each pass did."""
    matmul = import_module("ex04_matmul").matmul
    signature = dict.fromkeys("abc", "*fp16:16")
    signature |= dict.fromkeys(("M", "N", "K", "stride_am", "stride_bk", "stride_cm"), "i32:16")
    signature |= dict.fromkeys(("stride_ak", "stride_bn", "stride_cn"), "1")
    constexprs = {"bias": None, "FUSED": False, **BLOCKS}
    compiled = tile.compile(matmul, signature, constexprs, chip, num_warps=4, num_stages=3)
    folder = OUT / chip
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for name, text in compiled.asm.items():
        data = text.encode() if isinstance(text, str) else text
        (folder / f"matmul.{name}").write_bytes(data)
    table = Table("pass", "lines", "ops", title=f"matmul for {chip}")
    for number, (name, ir) in enumerate(compiled.stages):
        (folder / f"{number:02}-{name}.mlir").write_text(ir)
        if number:
            table.add_row(name, *change(compiled.stages[number - 1][1], ir))
    console.print(table)
    code = "ptx" if chip.startswith("sm") else "amdgcn"
    instructions = Counter(_SHOWN.findall(str(compiled.asm[code])))
    found = ", ".join(f"{count} {name}" for name, count in instructions.items())
    last = f"{len(compiled.stages) - 1:02}-{compiled.stages[-1][0]}"
    lines = (
        f"instructions: {found}",
        usage(compiled.resources),
        f"code: build/demo/{chip}/matmul.{code}",
        f"IR:   build/demo/{chip}/00-trace.mlir to {last}.mlir\n",
    )
    console.print(*(f"  {line}" for line in lines), sep="\n", highlight=False, soft_wrap=True)


def main() -> None:
    sys.path.insert(0, str(HERE))
    console = Console()
    where = place()
    console.print(f"The examples, each checked against NumPy, on {where}:\n", highlight=False)
    with tile.device(where):
        for name in EXAMPLES:
            import_module(name).main()
    console.print("\nThe same matmul, for machines that need not be here:\n")
    for chip in CHIPS:
        follow(chip, console)


if __name__ == "__main__":
    main()
