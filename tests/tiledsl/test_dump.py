"""TILEDSL_DUMP: what it writes, and what it says where it cannot."""

from pathlib import Path

import pytest

from tiledsl import dump
from tiledsl.dialects.diagnostics import KernelError

HINT = "\n  hint: name another folder, or unset TILEDSL_DUMP"


def test_the_environment_names_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEDSL_DUMP", raising=False)
    assert dump.requested() is None
    monkeypatch.setenv("TILEDSL_DUMP", "")
    assert dump.requested() is None
    monkeypatch.setenv("TILEDSL_DUMP", "build/ir")
    assert dump.requested() == Path("build/ir")


def test_each_compilation_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        dump.Dumper(tmp_path / "a" / "b", "k-host").write_texts({"ptx": "text", "cubin": b"\0"})
    folders = sorted(path.name for path in (tmp_path / "a" / "b").iterdir())
    assert folders == ["000-k-host", "001-k-host"]
    files = sorted(path.name for path in (tmp_path / "a" / "b" / folders[1]).iterdir())
    assert files == ["00-code.ptx", "01-code.cubin"]


def test_a_file_in_place_of_the_folder_is_the_authors_mistake(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    with pytest.raises(KernelError) as raised:
        dump.Dumper(file, "k-host")
    assert str(raised.value) == (
        f"TILEDSL_DUMP: expected a folder that can be written, found {str(file)!r}: "
        f"Not a directory{HINT}"
    )
    assert file.read_text() == "kept"


def test_a_folder_that_goes_away_meanwhile_is_said_too(tmp_path: Path) -> None:
    dumper = dump.Dumper(tmp_path / "ir", "k-host")
    (tmp_path / "ir" / "000-k-host").rmdir()
    with pytest.raises(KernelError, match=r"found '.*ir': No such file or directory"):
        dumper.write_texts({"ptx": "text"})
