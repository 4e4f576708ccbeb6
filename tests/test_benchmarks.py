"""What the benchmarks report; the measuring itself needs a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.case import Row, with_ratios
from benchmarks.report import HEAD, line, write


def rows() -> list[Row]:
    return with_ratios(
        [
            Row("gemm", "bf16", "1024", "tiledsl", "TFLOP/s", 400.0, 300.0, error=1.7e-3),
            Row("gemm", "bf16", "1024", "cuBLAS", "TFLOP/s", 500.0, 400.0),
            Row("gemm", "bf16", "1024", "triton", "TFLOP/s", 250.0),
        ],
        "cuBLAS",
    )


def test_ratios_are_to_the_library_by_either_protocol() -> None:
    assert [(row.burst_ratio, row.sustained_ratio) for row in rows()] == [
        (0.8, 0.75), (1.0, 1.0), (0.5, None),
    ]  # fmt: skip


def test_without_the_library_there_are_no_ratios() -> None:
    assert [row.burst_ratio for row in with_ratios(rows()[:1], "cuDNN")] == [0.8]
    (alone,) = with_ratios([Row("gemm", "bf16", "1024", "tiledsl", "TFLOP/s", 1.0)], "cuBLAS")
    assert alone.burst_ratio is None


def test_lines_stand_below_their_heading() -> None:
    first, _, last = map(line, rows())
    assert HEAD.index("ratio") + len("ratio") == first.index("0.800") + len("0.800")
    assert HEAD.index("sustained") + len("sustained") == first.index("300.0") + len("300.0")
    assert first.endswith("1.7e-03")
    assert last.endswith("0.500")


def test_a_family_is_written_as_text_and_as_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> None:
        del name

    monkeypatch.setattr("benchmarks.report.find_spec", missing)
    write(rows(), {"device": "none"}, tmp_path / "results")
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == [
        "gemm.json",
        "gemm.txt",
    ]
    held = json.loads((tmp_path / "results" / "gemm.json").read_text())
    assert held["about"] == {"device": "none"}
    assert held["rows"][0]["sustained_ratio"] == 0.75
    assert "no plot" in capsys.readouterr().out
