"""Run families of benchmarks: see the package's docstring."""

from __future__ import annotations

import argparse
import itertools
import time
from importlib import import_module
from pathlib import Path
from typing import Any

FAMILIES = ("tutorial", "gemm", "attention", "norm", "overhead")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=", ".join(FAMILIES))
    parser.add_argument("--quick", action="store_true", help="a few sizes of each family")
    parser.add_argument("--budget", type=float, default=250, help="seconds; no case begins after")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--skip", default="", metavar="NAME;NAME", help="cases to leave out")
    parser.add_argument("--check", action="store_true", help="compile and check, time nothing")
    parser.add_argument("--part", default="1/1", help="as 2/8: each eighth case from the second on")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    wrong = set(options.families) - set(FAMILIES)
    if wrong:
        parser.error(f"expected families among {', '.join(FAMILIES)}, found {', '.join(wrong)}")
    run(options.families or list(FAMILIES), options)


def run(families: list[str], options: argparse.Namespace) -> None:
    """Measure the cases of some families; a case that fails is told, and the others go on."""
    import torch

    from benchmarks import report
    from benchmarks.case import Row
    from benchmarks.measure import check, measure

    started = time.perf_counter()
    rows: list[Row] = []
    left_out: list[str] = []
    part, parts = map(int, options.part.split("/"))
    numbers = itertools.count(1)
    for family in families:
        print(f"\n{family}\n{report.HEAD}")
        for case in import_module(f"benchmarks.{family}").cases(options.quick):
            if isinstance(case, Row):
                rows.append(case)
                print(report.line(case), flush=True)
                continue
            name = f"{case.what} {case.size}"
            if options.only not in name or next(numbers) % parts != part % parts:
                continue
            if name in options.skip.split(";"):
                continue
            if options.check:  # what hangs has begun and is not done
                print(f"begin {name}", flush=True)
            if time.perf_counter() - started > options.budget:
                left_out.append(name)
                continue
            try:
                found = check(case) if options.check else measure(case)
            except Exception as problem:
                print(f"{name}: {type(problem).__name__}: {str(problem)[:1500]}", flush=True)
                continue
            rows += found
            print("\n".join(map(report.line, found)), flush=True)
            if options.check:
                print(f"done {name}", flush=True)
            torch.cuda.empty_cache()
        if not options.check:
            report.write(rows, _about(time.perf_counter() - started), options.out)
    if left_out:
        print(f"left out for want of time: {', '.join(left_out)}")
    print(f"{time.perf_counter() - started:.0f} s in all")


def _about(seconds: float) -> dict[str, Any]:
    import torch
    import triton

    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "seconds": round(seconds),
    }


if __name__ == "__main__":
    main()
