"""The command line."""

from pathlib import Path

import pytest

from tiledsl.__main__ import main
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.target import target

ADD = str(Path(__file__).parents[2] / "examples" / "ex01_vector_add.py") + ":add"
COMPILE = [
    *("compile", ADD, "--signature", "x=*fp32:16,y=*fp32:16,out=*fp32:16,n=i32"),
    *("--constexpr", "BLOCK=256"),
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TILEDSL_CACHE", raising=False)


def test_info_lists_versions_and_targets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("llvmlite", "sm_90a", "gfx942", "host"))


def test_info_says_in_a_few_words_why_there_is_no_device(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> None:
        raise KernelError("the driver was not found")

    monkeypatch.setattr(target("nvptx"), "driver", absent)
    assert main(["info"]) == 0
    assert "none: the driver was not found" in capsys.readouterr().out.replace("\n", " ")


def test_info_says_where_compiled_kernels_are_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["info"]) == 0
    assert f"compiled kernels: kept in {tmp_path / 'cache'}\n" in capsys.readouterr().out
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path / "file"))
    assert main(["info"]) == 0
    assert "compiled kernels: not kept: " in capsys.readouterr().out
    monkeypatch.setenv("TILEDSL_CACHE", "0")
    assert main(["info"]) == 0
    assert "compiled kernels: not kept (TILEDSL_CACHE=0" in capsys.readouterr().out


def test_an_output_that_cannot_be_written_is_the_authors_mistake(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*COMPILE, "--target", "sm_80", "-o", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"KernelError: --output: expected a file that can be written, found {str(tmp_path)!r}: "
        "Is a directory\n"
    )


def test_compile_prints_a_level(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMPILE, "--target", "sm_80", "--emit", "ptx"]) == 0
    assert ".target sm_80" in capsys.readouterr().out


def test_compile_and_opt_split_programs_among_blocks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    blocks = ["--target", "sm_90a", "--num-ctas", "2"]
    assert main([*COMPILE, *blocks, "--emit", "ptx"]) == 0
    assert ".reqnctapercluster 2, 1, 1" in capsys.readouterr().out
    assert main([*COMPILE, *blocks, "--emit", "tile"]) == 0
    file = tmp_path / "add.mlir"
    file.write_text(capsys.readouterr().out)
    assert main(["opt", "simplify", "split_programs", str(file), *blocks]) == 0
    assert "tensor<128xf32>" in capsys.readouterr().out


def test_compile_prints_the_time_of_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMPILE, "--target", "gfx942", "--time"]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("trace", "assign_layouts", "assemble", "in all"))


def test_compile_writes_a_file(tmp_path: Path) -> None:
    where = tmp_path / "add.hsaco"
    assert main([*COMPILE, "--target", "gfx942", "--emit", "hsaco", "-o", str(where)]) == 0
    assert where.read_bytes()[:4] == b"\x7fELF"


def test_passes_and_opt_know_the_same_names(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["passes", "nvptx"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines].index("assign_layouts") > 0
    summaries = {line.split()[0]: line.split(maxsplit=2)[2] for line in lines}
    assert summaries["drop_true_masks"] == "Turn masks that are always true into no mask at all."
    assert len(set(summaries.values())) == len(summaries)
    assert main(["passes", "amdgpu"]) == 0
    assert "MLIR's own: " in capsys.readouterr().out.splitlines()[-1]
    assert main([*COMPILE, "--target", "sm_80", "--emit", "tile"]) == 0
    file = tmp_path / "add.mlir"
    file.write_text(capsys.readouterr().out)
    assert main(["opt", "simplify", "assign_layouts", str(file)]) == 0
    assert "tgpu.layout" in capsys.readouterr().out


@pytest.mark.parametrize(("ctas", "split"), [("1", False), ("2", True)])
def test_passes_are_those_of_split_programs_where_they_are_asked_for(
    capsys: pytest.CaptureFixture[str], ctas: str, split: bool
) -> None:
    assert main(["passes", "sm_90a", "--num-ctas", ctas]) == 0
    assert ("split_programs" in capsys.readouterr().out) == split


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compile", "nowhere.py:f"], "KernelError: expected a Python file, found 'nowhere.py'"),
        (["compile", "f"], "KernelError: expected FILE:KERNEL, found 'f'"),
        (["compile", ADD[:-3] + "sub"], "KernelError: expected a kernel in "),
        ([*COMPILE, "--target", "z80"], "KernelError: expected a target among host, "),
        (
            [*COMPILE, "--target", "sm_80", "--emit", "x"],
            "KernelError: expected a level among tile, ",
        ),
        (["passes", "z80"], "KernelError: expected a target among host, "),
        (["opt", "polish", "-"], "KernelError: expected a pass of sm_80, found 'polish'"),
        (["opt", "simplify", "no"], "KernelError: expected a file of MLIR text, found 'no'"),
        (["opt", "simplify", "."], "KernelError: expected a file of MLIR text, found '.'"),
    ],
)
def test_a_wrong_command_fails_with_a_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    assert capsys.readouterr().err.startswith(message)
