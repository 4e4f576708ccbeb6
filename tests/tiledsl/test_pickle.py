"""Kernels travel between processes by name, as functions do."""

# Kernels are traced, not typed.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tiledsl as tile
from tiledsl.dialects.diagnostics import KernelError


@tile.jit
def double(x, out, BLOCK: tile.constexpr = 8):  # pyright: ignore[reportArgumentType]
    i = tile.arange(0, BLOCK)
    tile.store(out + i, tile.load(x + i) * 2)


class Kernels:
    """Kernels may live in a class."""

    @staticmethod
    @tile.jit
    def nothing(x):
        pass


renamed = tile.jit(double.fn)


def test_a_kernel_is_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(double)) is double
    assert pickle.loads(pickle.dumps(Kernels.nothing)) is Kernels.nothing
    assert pickle.loads(pickle.dumps([double, double])) == [double, double]


def test_a_kernel_with_its_grid_is_pickled_too() -> None:
    x, out = np.ones(8, np.float32), np.zeros(8, np.float32)
    pickle.loads(pickle.dumps(double[1]))(x, out)
    assert (out == 2).all()


def test_a_copy_of_a_kernel_is_the_kernel() -> None:
    assert copy.copy(double) is double
    assert copy.deepcopy({"kernel": double})["kernel"] is double

    @tile.jit
    def local(x):
        pass

    assert copy.deepcopy(local) is local


def test_a_kernel_that_has_no_name_of_its_own_says_why_it_cannot_be_pickled() -> None:
    @tile.jit
    def local(x):
        pass

    with pytest.raises(KernelError) as raised:
        pickle.dumps(local)
    where = local.fn.__qualname__
    assert str(raised.value) == (
        f"kernel `local`: expected to find it as `{where}` in module {__name__} in order to pickle "
        "it, found NoneType (None)\n"
        "  hint: define it at the top of a module, under its own name"
    )
    with pytest.raises(
        KernelError, match=r"found tiledsl.jit.JITFunction \(<tile.jit kernel double>"
    ):
        pickle.dumps(renamed)


SCRIPT = """
import multiprocessing as mp
import numpy as np
import tiledsl as tile

@tile.jit
def double(x, out, BLOCK: tile.constexpr = 8):
    i = tile.arange(0, BLOCK)
    tile.store(out + i, tile.load(x + i) * 2)

def run(kernel, value):
    x, out = np.full(8, value, np.float32), np.zeros(8, np.float32)
    kernel[1](x, out)
    return out[0]

if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        with mp.get_context(method).Pool(2) as pool:
            print([float(v) for v in pool.starmap(run, [(double, i) for i in range(4)])])
"""


def test_worker_processes_take_kernels(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300)
    assert (ran.stderr, ran.stdout) == ("", "[0.0, 2.0, 4.0, 6.0]\n" * 2)


def test_a_compiled_kernel_travels_whole() -> None:
    signature = {"x": "*fp32:16", "out": "*fp32:16"}
    compiled = tile.compile(double, signature, {"BLOCK": 16}, "gfx1100")
    again = pickle.loads(pickle.dumps(compiled))
    assert again.asm["amdgcn"] == compiled.asm["amdgcn"]
    assert again.request == compiled.request
