"""Launch, fork, launch in parent and child: run by `test_driver`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import numpy as np

from tests.targets.host.kernels import Kernel

k = Kernel("*i32")
(out,) = k.args
k.atomic("add", out, 1)


def launch() -> int:
    found = np.zeros(1, np.int32)
    k.run(64, found)
    return int(found[0])


launch()
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, str(launch()).encode())
    os._exit(0)
print(launch(), os.read(read, 16).decode())
