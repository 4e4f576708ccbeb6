"""Assemble PTX with NVIDIA's ptxas: machine code, and what it says about registers and spills.

The driver can translate PTX by itself, so ptxas is optional; with it compilation needs no GPU,
cached kernels load at once, and spills are known (the driver does not tell them).
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.targets.driver import Resources
from tiledsl.targets.nvptx.chips import Chip

OVERRIDE = "TILEDSL_PTXAS"
"""Names the ptxas to use."""

TOOLKIT = Path("/usr/local/cuda")
"""Where NVIDIA's installer puts the CUDA toolkit on Linux."""


@dataclass(frozen=True)
class Assembled:
    """What ptxas made of a module.

    Attributes:
        cubin: The machine code.
        resources: By entry point.
        log: Everything it printed, warnings (as of serialized wgmma) included.
    """

    cubin: bytes
    resources: dict[str, Resources]
    log: str

    @property
    def warnings(self) -> tuple[str, ...]:
        """The log's lines of warning and performance advice."""
        return tuple(
            line
            for line in self.log.splitlines()
            if "warning" in line or "Potential Performance Loss" in line
        )


def find_ptxas() -> Path | None:
    """Return the ptxas to use, or None.

    In order: TILEDSL_PTXAS, PATH, CUDA_HOME or CUDA_PATH, NVIDIA's Python packages (of CUDA 12 and
    13), the one inside Triton, /usr/local/cuda.

    Raises:
        KernelError: TILEDSL_PTXAS names something that cannot be run.
    """
    if chosen := os.environ.get(OVERRIDE):
        found = shutil.which(chosen)
        if found is None:
            raise KernelError(f"expected {OVERRIDE} to name a program, found {chosen!r}")
        return Path(found)
    if on_path := shutil.which("ptxas"):
        return Path(on_path)
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    candidates = [Path(home) / "bin" / "ptxas" for home in homes if home]
    candidates += _in_python_packages()
    candidates.append(TOOLKIT / "bin" / "ptxas")
    return next((p for p in candidates if os.access(p, os.X_OK)), None)


def _in_python_packages() -> list[Path]:
    """Where wheels put it: nvidia/cuda_nvcc (CUDA 12), nvidia/cu13 (CUDA 13), triton's own."""
    found: list[Path] = []
    for package, pattern in (("nvidia", "*/bin/ptxas"), ("triton", "backends/nvidia/bin/ptxas")):
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            found += sorted(Path(place).glob(pattern), reverse=True)
    return found


@cache
def version(ptxas: Path) -> tuple[int, int]:
    """Return the CUDA release that a ptxas comes from, as (12, 8)."""
    told = subprocess.run([ptxas, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"release (\d+)\.(\d+)", told)
    if found is None:
        raise KernelError(f"{ptxas} does not tell its version: is it NVIDIA's ptxas?")
    return int(found[1]), int(found[2])


def assemble(
    ptx: str,
    chip: Chip,
    *,
    options: str = "",
    max_registers: int | None = None,
    ptxas: Path | None = None,
) -> Assembled:
    """Assemble a module for one chip.

    Args:
        ptx: The text.
        chip: The chip; the text's `.target` must be no later.
        options: Further options, quoted as for a shell.
        max_registers: A limit of registers a thread.
        ptxas: The program; found if not given.

    Raises:
        KernelError: There is no ptxas, it is too old for the chip, or refuses the user's options;
            or a matrix instruction takes more registers than a thread may have.
        CompilerBug: It refuses the text; the message holds its words and the line.
    """
    program = ptxas or find_ptxas()
    if program is None:
        raise KernelError(
            "ptxas was not found",
            hint=f"install nvidia-cuda-nvcc, or set {OVERRIDE} to the program",
        )
    chosen = ["--gpu-name", chip.name]
    if max_registers is not None:
        chosen += ["--maxrregcount", str(max_registers)]
    cubin, log = _run(program, [*chosen, *_split(options)], ptx)
    if cubin is None:
        raise _refusal(log, ptx, chip, program, options)
    return Assembled(cubin, parse_resources(log), log)


def _split(options: str) -> list[str]:
    try:
        return shlex.split(options)
    except ValueError as error:
        raise KernelError(
            f"ptxas_options: expected options quoted as for a shell, found {options!r}: {error}"
        ) from None


def _run(program: Path, options: Sequence[str], ptx: str) -> tuple[bytes | None, str]:
    """Return the machine code, None if the program refuses the text, and what it printed."""
    try:
        with tempfile.TemporaryDirectory(prefix="tiledsl-") as folder:
            source, output = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
            source.write_text(ptx)
            # With the text's source lines, which profilers show; the instructions are the same.
            settings = ["-O3", "-v", "-lineinfo", *options]
            command = [program, *settings, "--output-file", output, source]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            log = (ran.stdout + ran.stderr).replace(str(source), "kernel.ptx")
            made = ran.returncode == 0 and output.exists()
            return output.read_bytes() if made else None, log
    except OSError as error:
        raise KernelError(
            f"{program} could not be run on a temporary file: {error}",
            hint="TMPDIR names another folder for temporary files",
        ) from error


def _refusal(
    log: str, ptx: str, chip: Chip, program: Path, options: str
) -> KernelError | CompilerBug:
    """Tell the text's faults, which are ours, from those of the user's tools and options."""
    words = "\n".join(line for line in log.splitlines() if "info" not in line) or "no message"
    if "not defined for option 'gpu-name'" in log or "Unsupported .version" in log:
        major, minor = version(program)
        return KernelError(
            f"{program} of CUDA {major}.{minor} is too old for {chip.name}: {words}",
            hint=f"install a later nvidia-cuda-nvcc, or set {OVERRIDE} to a later ptxas",
        )
    if options and re.search(r"Unknown option|Invalid value .* for option|Argument expected", log):
        return KernelError(f"ptxas refuses the options {options!r}: {words}")
    if few := _FEW_REGISTERS.search(words):
        return KernelError(
            f"a thread of this kernel takes {few[2]} registers or more, and can have {few[1]} "
            "beside so many others, or because of max_registers",
            hint="give a thread less: smaller blocks, or more warps",
        )
    line = re.search(r"line (\d+)", words)
    lines = ptx.splitlines()
    shown = ""
    if line and 0 < int(line[1]) <= len(lines):
        shown = f"\n  {lines[int(line[1]) - 1].strip()}"
    return CompilerBug(f"ptxas rejects the PTX made for {chip.name}: {words}{shown}")


_FEW_REGISTERS = re.compile(r"Insufficient registers \((\d+)\).* target of (\d+) or higher")
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_FUNCTION = re.compile(r"Function properties for (\S+)")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def parse_resources(log: str) -> dict[str, Resources]:
    """Read what `ptxas -v` (or the driver's verbose log) prints, by entry point.

    `spill_bytes` adds stores and loads: it is 0 exactly if nothing spills.
    """
    found: dict[str, Resources] = {}
    entry = function = ""
    local = spills = 0
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry, local, spills = match[1], 0, 0
        elif match := _FUNCTION.search(line):
            function = match[1]
        elif match := _FRAME.search(line):
            # Device functions that were not inlined are listed under the entry, too.
            stack, stored, loaded = (int(n) for n in match.groups())
            spills += stored + loaded
            local = max(local, stack) if function == entry else local + stack
        elif entry and (match := _USED.search(line)):
            shared = _SHARED.search(line)
            found[entry] = Resources(
                registers=int(match[1]),
                spill_bytes=spills,
                local_bytes=local,
                shared_bytes=int(shared[1]) if shared else 0,
            )
            entry = ""
    return found
