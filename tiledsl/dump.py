"""Write the IR of compilations into files: what TILEDSL_DUMP=folder asks for.

Every compilation gets a new folder below the one named, `000-kernel-chip`, with one numbered file a
pass, and the code at the end. Whatever the file system refuses is the author's mistake, for the
author named the folder: a `KernelError`, before anything is compiled where that can be known.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tiledsl.dialects.diagnostics import KernelError

if TYPE_CHECKING:
    from mlir import ir

VARIABLE = "TILEDSL_DUMP"


def requested() -> Path | None:
    """Return the folder that the environment asks to dump to, or None."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen) if chosen else None


class Dumper:
    """An observer of passes that writes what it sees into a new folder, one numbered file a pass.

    Args:
        root: The folder for the folders of all compilations; made if it is not there.
        stem: What the compilation is called, as "kernel-sm_90a".

    Raises:
        KernelError: Nothing can be written there, now or at a later pass.
    """

    def __init__(self, root: Path, stem: str) -> None:
        self._root = root
        self._count = 0
        for number in itertools.count():
            self._folder = root / f"{number:03}-{stem}"
            try:
                self._folder.mkdir(parents=True)
                break
            except FileExistsError:
                continue
            except OSError as error:
                raise self._refused(error) from None

    def __call__(self, name: str, module: ir.Module, seconds: float) -> None:
        """Write the module after the pass `name`."""
        self._write(f"{name}.mlir", str(module).encode())

    def write_texts(self, texts: Mapping[str, str | bytes]) -> None:
        """Write what the assembler made."""
        for name, text in texts.items():
            self._write(f"code.{name}", text.encode() if isinstance(text, str) else text)

    def _write(self, name: str, data: bytes) -> None:
        try:
            (self._folder / f"{self._count:02}-{name}").write_bytes(data)
        except OSError as error:
            raise self._refused(error) from None
        self._count += 1

    def _refused(self, error: OSError) -> KernelError:
        return KernelError(
            f"{VARIABLE}: expected a folder that can be written, found {str(self._root)!r}: "
            f"{error.strerror}",
            hint=f"name another folder, or unset {VARIABLE}",
        )
