"""What the host does: the time of a warm launch, and of a first one, which compiles.

A launch is timed by queueing many while the device has nothing long to do. A first launch is that
of a new process, so that nothing is left of an earlier one: a child imports the library, makes the
arrays, and times its first launch with caches on disk empty, then again with them filled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.case import Row

_LAUNCHES, _ROUNDS = 50, 20


def _microseconds(run: Callable[[], object]) -> float:
    """Return the time that queueing one launch takes."""
    import torch

    for _ in range(_LAUNCHES):
        run()
    found: list[float] = []
    for _ in range(_ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(_LAUNCHES):
            run()
        found.append((time.perf_counter() - start) / _LAUNCHES * 1e6)
    torch.cuda.synchronize()
    return median(found)


def warm_launches() -> dict[str, float]:
    """Return the microseconds of a warm launch, by what is launched."""
    import torch
    import triton
    from triton.tools.tensor_descriptor import TensorDescriptor

    import tiledsl as tile
    from benchmarks.kernels import softmax_row, triton_product, triton_softmax
    from examples.ex06_fast_matmul import matmul

    x, y = torch.randn(2, 64, 256, device="cuda")
    a, b, c = torch.randn(3, 256, 256, device="cuda", dtype=torch.float16)
    ours = [tile.TensorDescriptor(one, (128, 64)) for one in (a, b)]
    ours.append(tile.TensorDescriptor(c, (128, 128)))
    theirs = [TensorDescriptor.from_tensor(one, [128, 64]) for one in (a, b)]
    theirs.append(TensorDescriptor.from_tensor(c, [128, 128]))
    options = {
        "bias": None,
        "GROUP": 8,
        "TURNED": True,
        "FLIPPED": False,
        "MANY": True,
        "PRECISION": "ieee",
    }
    acc = triton.language.float32
    runs: dict[str, Callable[[], object]] = {
        "tiledsl, 5 arguments": lambda: softmax_row[64,](x, y, 256, 256, BLOCK=256),
        "triton, 5 arguments": lambda: triton_softmax[64,](x, y, 256, 256, BLOCK=256),
        "torch.mm": lambda: torch.mm(a, b, out=c),
        "tiledsl, 3 descriptors": lambda: matmul[4,](*ours, **options),
        "triton, 3 descriptors": lambda: triton_product[4,](
            *theirs, None, None, None, 256, 256, 256, 128, 128, 64, 8, True, acc, "ieee", 4
        ),
    }
    return {name: _microseconds(run) for name, run in runs.items()}


# --- first launches, each in a process of its own ------------------------------------------------


def first_launch(who: str) -> dict[str, float]:
    """Return the seconds of an import and of a first launch in this process."""
    import torch

    a, b, c = torch.randn(3, 1024, 1024, device="cuda", dtype=torch.bfloat16)
    start = time.perf_counter()
    if who == "tiledsl":
        import tiledsl as tile
        from examples.ex06_fast_matmul import matmul

        boxes = zip((a, b, c), ((128, 64), (256, 64), (128, 256)), strict=True)
        args = [tile.TensorDescriptor(one, block) for one, block in boxes]
        imported = time.perf_counter()
        options = {"GROUP": 8, "TURNED": True, "FLIPPED": False, "MANY": True, "PRECISION": "ieee"}
        matmul[32,](*args, None, **options, num_warps=8, num_stages=4)
    else:
        import triton.language as tl
        from triton.tools.tensor_descriptor import TensorDescriptor

        from benchmarks.kernels import triton_product

        boxes = zip((a, b, c), ((128, 64), (256, 64), (128, 256)), strict=True)
        args = [TensorDescriptor.from_tensor(one, list(block)) for one, block in boxes]
        imported = time.perf_counter()
        triton_product[32,](
            *args, None, None, None, 1024, 1024, 1024, 128, 256, 64, 8, True, tl.float32, "ieee",
            32, num_warps=8, num_stages=3,
        )  # fmt: skip
    torch.cuda.synchronize()
    return {"import": imported - start, "first launch": time.perf_counter() - imported}


def first_launches() -> dict[str, dict[str, float]]:
    """Return the seconds of first launches, with caches empty ("cold") and filled ("on disk")."""
    found: dict[str, dict[str, float]] = {}
    for who in ("tiledsl", "triton"):
        with tempfile.TemporaryDirectory() as folder:
            caches = {"TILEDSL_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder}
            for state in ("cold", "on disk"):
                made = subprocess.run(
                    [sys.executable, "-m", "benchmarks.overhead", who],
                    env={**os.environ, **caches}, cwd=Path(__file__).parents[1],
                    capture_output=True, text=True, check=True, timeout=120,
                )  # fmt: skip
                found[f"{who}, {state}"] = json.loads(made.stdout.splitlines()[-1])
    return found


def cases(quick: bool) -> Iterator[Row]:
    """Yield what was found: none of it is timed by the device."""
    for name, us in warm_launches().items():
        yield Row("overhead", "warm launch", "", name, "us", us)
    for name, found in ({} if quick else first_launches()).items():
        for what, seconds in found.items():
            yield Row("overhead", what, "", name, "s", seconds)


if __name__ == "__main__":
    result: dict[str, Any] = first_launch(sys.argv[1])
    print(json.dumps(result))
