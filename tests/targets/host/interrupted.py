"""Launch a grid that would take years, be interrupted as by Ctrl-C, launch again."""

# Kernels are traced, not typed.
# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false

import os
import signal
import sys
import threading
import time

import numpy as np

import tiledsl as tile


@tile.jit
def count(x):
    tile.atomic_add(x, 1)


x = np.zeros(1, np.int64)
count.prepare((x,), {})
for _ in range(int(sys.argv[1])):
    count[10](x)  # its programs are known to be short
begun = x[0]
timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
timer.start()
start = time.monotonic()
try:
    count[65536, 65536, 65536](x)
except KeyboardInterrupt:
    waited = time.monotonic() - start - 1.0
    done = int(x[0])
    time.sleep(0.1)
    count[10](x)
    print(done > begun, int(x[0]) - done, waited < 1.0)
