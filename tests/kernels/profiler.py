"""Nsight Compute's counters of what a command launches, by kernel, under the emulator's names.

python -m tests.kernels.profiler        prints both counts of `profiled_kernels`, side by side
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.kernels import profiled_kernels

METRICS = {
    "global load requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global load sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global store requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "global store sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "shared load accesses": "smsp__inst_executed_op_shared_ld.sum",
    "shared load wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared load conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "shared store accesses": "smsp__inst_executed_op_shared_st.sum",
    "shared store wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "shared store conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "all shared wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "all shared conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "copy accesses": "smsp__inst_executed_op_ldgsts.sum",
    "copy conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ldgsts.sum",
    "instructions": "smsp__inst_executed.sum",
}
"""The emulator's name of a count (or a name for what it has no count of), and the profiler's."""


def find_profiler() -> str | None:
    """Return where ncu is, if it is anywhere."""
    return shutil.which("ncu")


def _run(*arguments: str) -> str:
    done = subprocess.run(
        arguments, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
        env={**os.environ, "TILEDSL_CACHE": "0"},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def known_metrics(ncu: str) -> dict[str, str]:
    """Return those of `METRICS` that this profiler has."""
    known = {line.split()[0] for line in _run(ncu, "--query-metrics").splitlines() if line.split()}
    return {name: metric for name, metric in METRICS.items() if metric.split(".")[0] in known}


def profile(
    ncu: str, metrics: Mapping[str, str], command: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Return what a command's kernels counted: each kernel's name once, each count by its name."""
    text = _run(
        ncu, "--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
        "--metrics", ",".join(metrics.values()), *command,
    )  # fmt: skip
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith('"ID"'))
    found: dict[str, dict[str, int]] = {}
    for row in csv.DictReader(lines[start:]):
        if row["ID"]:  # the row of units has none
            name = row["Kernel Name"].partition("(")[0]
            found[name] = {
                count: int(float(row[metric].replace(",", "")))
                for count, metric in metrics.items()
                if row.get(metric)
            }
    return found


def profiled(ncu: str) -> dict[str, dict[str, int]]:
    """Return the profiler's counts of everything in `profiled_kernels`."""
    command = [sys.executable, "-m", profiled_kernels.__name__]
    return profile(ncu, known_metrics(ncu), command)


def main() -> None:
    """Print both counts of everything."""
    ncu = find_profiler()
    if ncu is None:
        raise SystemExit("ncu is not on the PATH")
    counted, emulated = profiled(ncu), profiled_kernels.emulated()
    for name, counts in counted.items():
        print(name)
        for count in dict.fromkeys([*emulated.get(name, {}), *counts]):
            both = emulated.get(name, {}).get(count), counts.get(count)
            print(f"    {count:26} emulator {both[0]!s:>8}   ncu {both[1]!s:>8}")


if __name__ == "__main__":
    main()
