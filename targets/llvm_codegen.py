"""Generate code with LLVM for any target, whatever LLVM makes of the input.

The MLIR bindings translate to LLVM IR text but carry no AMDGPU back end; llvmlite carries NVPTX,
AMDGPU and the host's, of the same LLVM release, so text is how IR passes from one to the other.

LLVM ends the whole process where it cannot select an instruction, on some bad processor names and
where a limit is exceeded, and no handler can stop it. So the work is done by child processes
(`llvm_emit` run as a program): one that dies is a `CompilerBug` with LLVM's last words, and the
next request gets a new one; one that is killed from outside, as by Linux when memory runs out, is
replaced once. They are started on demand (80 ms, which `warm_up` hides), kept until
this process ends, and let several threads compile at once, as llvmlite in one process does not.

Contract: the text is a whole module; its triple and data layout, if any, are replaced by the
machine's. Everything here is thread safe.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, cast

from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.targets import llvm_emit

Output = Literal["assembly", "object", "both"]


@dataclass(frozen=True)
class Machine:
    """What code is for, in LLVM's terms.

    Attributes:
        triple: As "nvptx64-nvidia-cuda".
        cpu: LLVM's processor name.
        features: As "+ptx80"; "" for the processor's own.
        relocation: LLVM's relocation model.
        code_model: LLVM's code model.
    """

    triple: str
    cpu: str
    features: str = ""
    relocation: Literal["default", "static", "pic"] = "pic"
    code_model: Literal["default", "small", "large"] = "default"


@dataclass(frozen=True)
class Emitted:
    """What came out; None for what was not asked for.

    Attributes:
        assembly: The assembly text.
        object: The relocatable object.
        optimized_ir: The IR that code generation began from.
    """

    assembly: str | None = None
    object: bytes | None = None
    optimized_ir: str | None = None


class _Worker:
    """One child process; used by one thread at a time."""

    # The child sees exactly this process's import path and nothing of its site customization.
    _BOOT = (
        "import sys, runpy; sys.path[:] = sys.argv[2:];"
        " runpy.run_path(sys.argv[1], run_name='__main__')"
    )

    def __init__(self) -> None:
        try:
            self._words = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the child)
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", self._BOOT, llvm_emit.__file__, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                process_group=0,  # Ctrl-C is for this process only
            )
        except OSError as error:
            raise KernelError(
                f"a process for code generation cannot be started: {error}",
                hint="it needs a folder for temporary files, which TMPDIR names, and some memory",
            ) from error

    def _pipes(self) -> tuple[BinaryIO, BinaryIO]:
        to_child, from_child = self._child.stdin, self._child.stdout
        assert to_child is not None
        assert from_child is not None
        return cast(BinaryIO, to_child), cast(BinaryIO, from_child)

    def ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the child's answer; None if it died of the question."""
        to_child, from_child = self._pipes()
        try:
            llvm_emit.send(to_child, request)
        except BrokenPipeError:
            return None
        return llvm_emit.receive(from_child)

    def bury(self) -> str:
        """Return what a child that has died wrote to stderr, and how it ended."""
        code = self._child.wait()
        self._words.seek(0)
        words = self._words.read().decode(errors="replace")
        self.close()
        # Below the message comes the child's stack, of no use to anyone without LLVM's sources.
        lines = [line.strip() for line in words.splitlines()]
        told = next((i for i, line in enumerate(lines) if line.startswith("Stack dump")), None)
        ended = f"by signal {-code}" if code < 0 else f"with status {code}"
        return "\n".join([*filter(None, lines[:told]), f"(LLVM's process ended {ended})"])

    def was_killed(self) -> bool:
        """Return whether a child that has died was killed from outside, as if memory ran out."""
        return self._child.wait() == -signal.SIGKILL

    def close(self) -> None:
        """Let the child end, as it does when its stdin closes, and wait for that."""
        self.disown()
        self._child.wait()
        self._words.close()

    def disown(self) -> None:
        """Close this process's ends of the pipes."""
        for pipe in self._pipes():
            with contextlib.suppress(BrokenPipeError):  # a request a dead child never read
                pipe.close()


class _Workers:
    """The idle children. More are started while all are busy, one a processor at most.

    And never more than 16, as each takes 100 MB.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places = threading.Semaphore(min(os.cpu_count() or 1, 16))
        self.idle: list[_Worker] = []

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a child's answer; if it dies instead, its last words under "died".

        Raises:
            KernelError: It was killed, and so was the next one.
        """
        with self._places:
            for _ in range(2):
                worker = self._worker()
                try:
                    answer = worker.ask(request)
                except BaseException:
                    # Interrupted half way: the answer must not be taken for the next question's.
                    worker.close()
                    raise
                if answer is not None:
                    with self._lock:
                        self.idle.append(worker)
                    return answer
                killed = worker.was_killed()
                words = worker.bury()
                if not killed:
                    return {"died": words}
        raise KernelError(
            "the process that generates code was killed twice (SIGKILL), most likely because the "
            "system ran out of memory",
            hint="compile fewer kernels at once, use smaller tiles, or give the system more memory",
        )

    def _worker(self) -> _Worker:
        with self._lock:
            worker = self.idle.pop() if self.idle else None
        return worker or _Worker()

    def start_one(self) -> None:
        """Have a child ready."""
        with self._lock:
            if not self.idle:
                self.idle.append(_Worker())

    def close(self) -> None:
        """End all idle children."""
        with self._lock:
            idle, self.idle = self.idle, []
        for worker in idle:
            worker.close()


_workers = _Workers()
_inherited: list[_Worker] = []


@atexit.register
def _close_workers() -> None:
    _workers.close()


def _forget_workers() -> None:
    """After a fork: the children belong to the parent."""
    global _workers
    _inherited.extend(_workers.idle)
    for worker in _inherited:
        worker.disown()
    _workers = _Workers()


os.register_at_fork(after_in_child=_forget_workers)


def warm_up() -> None:
    """Start loading LLVM in a child now, so that the first module need not wait for it."""
    if sys.executable:
        _workers.start_one()


def optimize_and_emit(
    text: str,
    machine: Machine,
    *,
    output: Output = "assembly",
    speed: int = 3,
    verbose_assembly: bool = False,
    keep_ir: bool = False,
) -> Emitted:
    """Optimize the module and generate code for it.

    Args:
        text: LLVM IR.
        machine: What to generate code for.
        output: What to return. "both" generates code twice.
        speed: LLVM's optimization level, 0 to 3.
        verbose_assembly: Keep LLVM's comments (on AMDGPU: registers and occupancy).
        keep_ir: Also return the optimized IR.

    Raises:
        CompilerBug: LLVM rejects the module, or died of it.
        KernelError: The system does not let it work: no process can be started, or each is killed.
    """
    request = dict[str, Any](
        text=text,
        triple=machine.triple,
        cpu=machine.cpu,
        features=machine.features,
        relocation=machine.relocation,
        code_model=machine.code_model,
        speed=speed,
        assembly=output != "object",
        object=output != "assembly",
        optimized_ir=keep_ir,
        verbose=verbose_assembly,
    )
    answer = _ask(request)
    where = f"{machine.triple}, {machine.cpu}"
    if "died" in answer:
        raise CompilerBug(f"LLVM died of the IR made for {where}: {answer['died']}")
    if "error" in answer:
        raise CompilerBug(f"LLVM rejects the IR made for {where}: {answer['error']}")
    return Emitted(**answer)


def _ask(request: dict[str, Any]) -> dict[str, Any]:
    if sys.executable:
        return _workers.ask(request)
    # Python inside another program: no interpreter to start, so LLVM's deaths are this process's.
    try:
        return llvm_emit.emit(**request)
    except llvm_emit.Rejected as rejected:
        return {"error": str(rejected)}
