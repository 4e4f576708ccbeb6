"""Threads that stay, and run native code together with the thread that asks.

A worker waits without the interpreter's lock and native code runs without it, so the workers are
plain Python threads. Whoever has work offers it to the workers and does it at the same time itself;
when its own call returns there is nothing left to claim, and it waits only for workers that had
begun. A worker that wakes too late finds the task closed and never touches it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

Share = Callable[[], None]
"""Does a share of the work on the calling thread; returns when nothing is left to claim."""


def thread_count() -> int:
    """Return how many threads a launch may use: TILEDSL_NUM_THREADS, or one a core."""
    wanted = os.environ.get("TILEDSL_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Task:
    """One piece of work on offer.

    Attributes:
        claimed: Set when a worker has found nothing left to claim.
        error: What a worker's share raised.
    """

    def __init__(self, share: Share) -> None:
        self._share = share
        self._lock = threading.Lock()
        self._open = True
        self._inside = 0
        self._left = threading.Event()
        self.claimed = threading.Event()
        self.error: BaseException | None = None

    def join_in(self) -> None:
        """Do a share, unless the task has been closed."""
        with self._lock:
            if not self._open:
                return
            self._inside += 1
        try:
            self._share()
        except BaseException as error:  # raised where the work was asked for
            self.error = error
        finally:
            self.claimed.set()
            with self._lock:
                self._inside -= 1
                if not self._open and not self._inside:
                    self._left.set()

    def close(self) -> None:
        """Let nobody begin any more and wait for those inside, whatever interrupts."""
        with self._lock:
            self._open = False
            if not self._inside:
                return
        interruption: BaseException | None = None
        while not self._left.is_set():
            try:
                self._left.wait()
            except BaseException as error:  # raised again when it is safe
                interruption = error
        if interruption is not None:
            raise interruption


class Pool:
    """Worker threads, started when first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offers: SimpleQueue[_Task] = SimpleQueue()
        self._workers = 0

    def run(self, share: Share, threads: int) -> None:
        """Do work on this thread and up to `threads` - 1 others; return when all of it is done."""
        task = self._offer(share, threads - 1)
        try:
            share()
        finally:
            task.close()
        if task.error is not None:
            raise task.error

    def run_apart(self, share: Share, threads: int, stop: Callable[[], None]) -> None:
        """Do work on other threads; return when all of it is done.

        Python's own signals reach this thread meanwhile.

        Args:
            share: Does a share.
            threads: How many threads.
            stop: Leaves nothing to claim; called if this thread is interrupted.
        """
        task = self._offer(share, threads)
        try:
            task.claimed.wait()
        except BaseException:
            stop()
            raise
        finally:
            task.close()
        if task.error is not None:
            raise task.error

    def _offer(self, share: Share, threads: int) -> _Task:
        """Offer work to that many workers."""
        self._start(threads)
        task = _Task(share)
        for _ in range(threads):
            self._offers.put(task)
        return task

    def _start(self, wanted: int) -> None:
        if self._workers >= wanted:
            return
        with self._lock:
            while self._workers < wanted:
                self._workers += 1
                name = f"tiledsl-{self._workers}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        while True:
            self._offers.get().join_in()


_pool = Pool()


def pool() -> Pool:
    """Return the process's pool."""
    return _pool


def _forget_workers() -> None:
    """After a fork: the parent's threads do not exist here."""
    global _pool
    _pool = Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)
