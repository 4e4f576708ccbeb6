"""Entries on disk: whole or absent."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiledsl import cache

ENTRY = {"text": "é", "bytes": b"\0\1", "empty": ""}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TILEDSL_CACHE", raising=False)


def test_an_entry_reads_back() -> None:
    cache.store("ab12", ENTRY)
    assert cache.load("ab12") == ENTRY
    assert cache.load("ab13") is None


def test_a_damaged_entry_counts_as_absent_and_is_replaced() -> None:
    data = cache.encode(ENTRY)
    for broken in (b"", data[:10], data[:-1], data + b"x", data[:60] + b"?" + data[61:]):
        assert cache.decode(broken) is None
    cache.store("ab12", ENTRY)
    where = cache.folder()
    assert where is not None
    (where / "ab" / "ab12").write_bytes(data[:-1])
    assert cache.load("ab12") is None
    cache.store("ab12", ENTRY)
    assert cache.load("ab12") == ENTRY


def test_the_cache_can_be_off_or_unwritable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(file / "below"))
    cache.store("ab12", ENTRY)
    assert cache.load("ab12") is None
    monkeypatch.setenv("TILEDSL_CACHE", "0")
    assert cache.folder() is None
    cache.store("ab12", ENTRY)
    assert cache.load("ab12") is None


def test_keys_depend_on_where_parts_end() -> None:
    assert cache.key("ab", "c") != cache.key("a", "bc")


WRITER = """
import sys
from tiledsl import cache
for i in range(200):
    entry = {"a": "x" * (1000 + i), "b": bytes(5000)}
    cache.store("ff00", entry)
    found = cache.load("ff00")
    assert found is not None and found["b"] == bytes(5000), found
"""


def test_processes_that_write_one_entry_at_once_never_see_a_torn_one(tmp_path: Path) -> None:
    environment = {**os.environ, "TILEDSL_CACHE_DIR": str(tmp_path)}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER], env=environment) for _ in range(4)]
    writers[0].kill()
    writers[0].wait()
    assert [writer.wait() for writer in writers[1:]] == [0, 0, 0]
    assert cache.load("ff00") is not None


def test_the_compilers_version_is_a_hash() -> None:
    assert cache.version() == cache.version()
    assert len(cache.version()) == 64
