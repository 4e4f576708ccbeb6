"""What tests see of the fake NVIDIA driver, `fake_cuda.c`."""

import ctypes
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tiledsl.targets.driver import Grid
from tiledsl.targets.nvptx.driver import CudaDriver

_LAUNCHED = ctypes.CFUNCTYPE(
    None,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_uint),
)


@dataclass(frozen=True)
class Launch:
    entry: str
    grid: Grid
    block: Grid
    shared: int
    stream: int
    arguments: bytes
    cluster: Grid
    programmatic: int


@dataclass
class Fake:
    """A driver on the fake library, and what was launched through it."""

    driver: CudaDriver
    library: ctypes.CDLL
    launches: list[Launch] = field(default_factory=list[Launch])

    def fail(self, function: str, status: int) -> None:
        self.library.fake_fail(function.encode(), status)


@contextmanager
def record_launches(fake: Fake) -> Generator[None]:
    """Keep each launch in `fake.launches`."""

    @_LAUNCHED
    def launched(entry: bytes, shape: Any, stream: int, data: int, size: int, extra: Any) -> None:
        fake.launches.append(
            Launch(
                entry.decode(),
                tuple(shape[:3]),
                tuple(shape[3:6]),
                shape[6],
                stream,
                ctypes.string_at(data, size),
                tuple(extra[:3]),
                extra[3],
            )
        )

    fake.library.fake_on_launch(launched)
    yield
