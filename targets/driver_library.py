"""Call a driver's C library through ctypes: found late, typed, every status checked.

For HIP, which has no Python package that can be counted on where its driver is: nothing needs to be
installed beside it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tiledsl.dialects.diagnostics import CompilerBug, KernelError


class DriverLibrary:
    """One shared library, loaded on the first call.

    Args:
        title: What users know it as, for messages: "AMD's HIP library".
        names: File names to try, in order.
        override: An environment variable that names a file to load instead.
        prototypes: Argument types of every function used. All return a C int, 0 for success.
        describe: Given this library and a status, the vendor's name and words for it.
        hints: What a user can do about some statuses.
    """

    def __init__(
        self,
        title: str,
        names: Sequence[str],
        override: str,
        prototypes: Mapping[str, Sequence[Any]],
        describe: Callable[[DriverLibrary, int], str],
        hints: Mapping[int, str],
    ) -> None:
        self._title = title
        self._names = names
        self._override = override
        self._prototypes = prototypes
        self._describe = describe
        self._hints = hints
        self._lock = threading.Lock()
        self._library: ctypes.CDLL | None = None
        self._functions: dict[str, Any] = {}

    def function(self, name: str) -> Any:
        """Return a function with its types set; its status is the caller's to check.

        Raises:
            KernelError: There is no such library here, or it is too old to have the function.
        """
        found = self._functions.get(name)
        if found is None:
            with self._lock:
                if self._library is None:
                    self._library = self._open()
            if name not in self._prototypes:
                raise CompilerBug(f"{name} is called but has no prototype")
            try:
                found = getattr(self._library, name)
            except AttributeError as error:
                raise KernelError(f"{self._title} here is too old: it has no {name}") from error
            found.argtypes = list(self._prototypes[name])
            found.restype = ctypes.c_int
            self._functions[name] = found
        return found

    def text_function(self, name: str) -> Any:
        """Return a function from a status to its name or words."""
        function = getattr(self._library, name)
        function.argtypes, function.restype = [ctypes.c_int], ctypes.c_char_p
        return function

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function and raise `KernelError` unless it succeeds."""
        status = self.function(name)(*arguments)
        if status:
            raise self.error(name, status)

    def error(self, name: str, status: int, detail: str = "") -> KernelError:
        """Return the error for a status that function `name` returned."""
        words = self._describe(self, status)
        return KernelError(f"{name} failed: {words}{detail}", hint=self._hints.get(status))

    def _open(self) -> ctypes.CDLL:
        chosen = os.environ.get(self._override)
        names = [chosen] if chosen else self._names
        reasons: list[str] = []
        for name in names:
            try:
                return ctypes.CDLL(name)
            except OSError as error:
                if chosen or not _is_absent(name, str(error)):
                    reasons.append(str(error))
        why = f" ({'; '.join(reasons)})" if reasons else ""
        raise KernelError(f"{self._title} was not found{why}")


def _is_absent(name: str, words: str) -> bool:
    """Return whether the loader says no more than that a library is not installed.

    Another reason, as a damaged file or a missing library that it needs, is worth reading.
    """
    linux = f"{name}: cannot open shared object file: No such file"
    return words.startswith((linux, f"dlopen({name}, ")) and "no such file" in words.lower()
