"""Compiled kernels on disk, shared by processes.

One entry is one file whose name is the hash of everything the code depends on. It is written
beside and renamed, so a reader sees a whole entry or none; its own hash is checked on reading, and
what does not check out counts as absent and is replaced. Writers of the same key write the same
bytes, so no locks are needed. A folder that cannot be written turns the cache off, nothing more.

The folder is TILEDSL_CACHE_DIR, else `tiledsl` under XDG_CACHE_HOME or ~/.cache. TILEDSL_CACHE=0
turns it off.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Mapping
from importlib.metadata import version as installed
from pathlib import Path
from typing import cast

_MAGIC = b"tiledsl1"
_HEAD = struct.Struct("<8s32sQ")
"""Magic, SHA-256 of all that follows the head, length of the JSON index."""

Entry = Mapping[str, str | bytes]


def folder() -> Path | None:
    """Return the cache's folder, or None where the cache is off."""
    if os.environ.get("TILEDSL_CACHE") == "0":
        return None
    chosen = os.environ.get("TILEDSL_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "tiledsl"
    except RuntimeError:  # no home directory
        return None


def key(*parts: str) -> str:
    """Return the hash of `parts`, as a file name."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def _path(name: str) -> Path | None:
    where = folder()
    return None if where is None else where / name[:2] / name


def load(name: str) -> dict[str, str | bytes] | None:
    """Return the entry called `name`, or None where there is none that is whole."""
    path = _path(name)
    if path is None:
        return None
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return decode(data)


def store(name: str, entry: Entry) -> None:
    """Publish `entry` under `name`; a disk that does not take it is no error."""
    path = _path(name)
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(encode(entry))
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def encode(entry: Entry) -> bytes:
    """Return the bytes of an entry's file."""
    index: list[tuple[str, str, int]] = []
    blobs: list[bytes] = []
    for name, value in entry.items():
        blob = value.encode() if isinstance(value, str) else value
        index.append((name, "text" if isinstance(value, str) else "bytes", len(blob)))
        blobs.append(blob)
    head = json.dumps(index).encode()
    body = head + b"".join(blobs)
    return _HEAD.pack(_MAGIC, hashlib.sha256(body).digest(), len(head)) + body


def decode(data: bytes) -> dict[str, str | bytes] | None:
    """Return the entry in a file's bytes, or None where they are not what `encode` made."""
    if len(data) < _HEAD.size:
        return None
    magic, digest, length = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if magic != _MAGIC or hashlib.sha256(body).digest() != digest:
        return None
    index = cast("list[tuple[str, str, int]]", json.loads(body[:length]))
    entry: dict[str, str | bytes] = {}
    start = length
    for name, kind, size in index:
        blob = body[start : start + size]
        entry[name] = blob.decode() if kind == "text" else blob
        start += size
    return entry


@functools.cache
def version() -> str:
    """Return what names the compiler itself: a hash of its sources and of LLVM's version.

    Hashing the sources (about 10 ms, once a process) means that a change of a pass is never hidden
    by an old entry.
    """
    digest = hashlib.sha256(installed("llvmlite").encode())
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py"), key=str):
        digest.update(path.read_bytes())
    for linked in ("dialects", "transforms", "targets"):
        for path in sorted((root / linked).resolve().rglob("*.py"), key=str):
            digest.update(path.read_bytes())
    return digest.hexdigest()
