"""`tile.emulate` and its command: reports, faults at the author's expression, arguments as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiledsl as tile
from tiledsl.__main__ import main
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.emulate import argument, grid

_CHIPS = ("sm_80", "gfx942", "gfx1201")

_KERNELS = """
import tiledsl as tile


@tile.jit
def scale(x, out, n, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    tile.store(out + i, tile.load(x + i, mask=i < n) * 2, mask=i < n)


@tile.jit
def turn(a, b):
    i, j = tile.program_id(0) * 16, tile.program_id(1) * 32
    b.store([j, i], tile.trans(a.load([i, j])))


@tile.jit
def ragged(x, out, n, BLOCK: tile.constexpr):
    i = tile.program_id(0) * BLOCK + tile.arange(0, BLOCK)
    tile.store(out + i, tile.load(x + i, mask=i < n) * 2)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text(_KERNELS)
    return path


@pytest.fixture
def kernels(file: Path) -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location("emulated_kernels", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("chip", _CHIPS)
def test_a_report_says_what_a_kernel_moves(kernels: Any, chip: str) -> None:
    x, out = np.arange(1000, dtype=np.float32), np.zeros(1000, np.float32)
    report = tile.emulate(kernels.scale, (4,), (x, out, 1000), target=chip, BLOCK=256)
    np.testing.assert_array_equal(out, x * 2)
    assert (report.kernel, report.chip, report.mode, report.grid) == (
        "scale", chip, "lazy", (4, 1, 1),
    )  # fmt: skip
    assert not report.findings
    (line,) = report.global_lines
    assert line.where.endswith("kernels.py:8")
    assert line.share_used > 0.9
    assert 8000 <= line.bytes_moved <= 8600
    assert not report.shared_lines


def test_loads_of_arguments_and_hints_count_as_what_they_are(kernels: Any) -> None:
    x = np.zeros(1024, np.float32)
    report = tile.emulate(kernels.scale, 4, (x, x.copy(), 1024), target="gfx1201", BLOCK=256)
    assert report.executed["scalar memory"] >= 16  # each of 4 x 4 waves asks for its arguments
    assert (
        sum(line.instructions for line in report.global_lines) == report.executed["global memory"]
    )
    assert report.executed["hint on time"] > 0
    assert report.executed["control flow"] <= 3 * 32  # of 8 waves: end, and masks skipped


@pytest.mark.parametrize("chip", _CHIPS)
def test_a_fault_is_shown_at_the_expression_with_argument_and_element(
    kernels: Any, file: Path, chip: str
) -> None:
    x, out = np.arange(1000, dtype=np.float32), np.zeros(1000, np.float32)
    with pytest.raises(KernelError) as raised:
        tile.emulate(kernels.ragged, (4,), (x, out, 1000), target=chip, BLOCK=256)
    text = str(raised.value)
    assert "kernel `ragged`: out-of-bounds access: write of " in text
    assert (
        " at argument `out`, element 1000 of an array of 1000 (0 to 999) in program (3, 0, 0), thread "
        in text
    )
    assert "(6 times)" in text or "(12 times)" in text or "(24 times)" in text
    assert text.splitlines()[1:] == [
        f"    --> {file}:20:5",
        "     |",
        "  20 |     tile.store(out + i, tile.load(x + i, mask=i < n) * 2)",
        "     |     " + "^" * 53,
    ]
    with pytest.warns(RuntimeWarning, match="element 1000 of an array of 1000"):
        tile.emulate(kernels.ragged, (4,), (x, out, 1000), target=chip, findings="warn", BLOCK=256)
    report = tile.emulate(
        kernels.ragged, (4,), (x, out, 1000), target=chip, findings="report", BLOCK=256
    )
    assert len(report.findings) == 1


def test_an_array_may_count_as_never_written(kernels: Any) -> None:
    x, out = np.zeros(256, np.float32), np.zeros(256, np.float32)
    with pytest.raises(KernelError, match=r"nothing wrote: .* argument `x`"):
        tile.emulate(kernels.scale, 1, (x, out, 256), uninitialized=["x"], BLOCK=256)
    tile.emulate(kernels.scale, 1, (x, out, 256), uninitialized=["out"], BLOCK=256)


def test_a_tensor_descriptors_array_may_count_as_never_written() -> None:
    @tile.jit
    def copy(a: Any, out: Any):
        out.store([0, 0], a.load([0, 0]))

    a, out = (tile.TensorDescriptor(np.zeros((16, 32), np.float32), [16, 32]) for _ in range(2))
    with pytest.raises(KernelError, match=r"nothing wrote"):
        tile.emulate(copy, 1, (a, out), target="emulate:sm_90a", uninitialized="a")
    tile.emulate(copy, 1, (a, out), target="sm_90a", uninitialized="out")


@pytest.mark.parametrize("target", ["sm_90a", "gfx942"])
def test_hundreds_of_programs_may_wait_for_one_another(target: str) -> None:
    @tile.jit
    def meet(count: Any, out: Any, PROGRAMS: tile.constexpr):
        tile.atomic_add(count, 1)
        while tile.atomic_add(count, 0) < PROGRAMS:
            pass
        tile.store(out + tile.program_id(0), 1)

    count, out = np.zeros(1, np.int32), np.zeros(300, np.int32)
    tile.emulate(meet, 300, (count, out, 300), target=target, num_warps=1)
    assert out.all()


@tile.jit
def _spins(flag: Any, out: Any):
    value = tile.atomic_add(flag, 1)
    while value >= 0:
        value = tile.atomic_add(flag, 1)
    tile.store(out, value)


def test_a_loop_may_take_so_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def arguments() -> Any:
        return np.zeros(1, np.int32), np.zeros(1, np.int32)

    with pytest.raises(KernelError, match=r"endless loop: no end after 300 steps") as raised:
        tile.emulate(_spins, 1, arguments(), step_limit=300)
    assert "while value >= 0" in str(raised.value) or "value = tile.atomic" in str(raised.value)
    with (
        pytest.raises(KernelError, match="200 steps"),
        tile.device("emulate:sm_80", step_limit=200),
    ):
        _spins[1,](*arguments())
    monkeypatch.setenv("TILEDSL_EMULATE_STEPS", "100")
    with pytest.raises(KernelError, match="100 steps"):
        tile.emulate(_spins, 1, arguments())
    monkeypatch.setenv("TILEDSL_EMULATE_STEPS", "few")
    with pytest.raises(KernelError, match="TILEDSL_EMULATE_STEPS: expected a positive integer"):
        tile.emulate(_spins, 1, arguments())
    with pytest.raises(KernelError, match="step_limit: expected a positive integer, found 0"):
        tile.emulate(_spins, 1, arguments(), step_limit=0)


@pytest.mark.parametrize("chip", ["sm_90a", "gfx942"])
def test_a_failed_assertion_says_its_text_and_threads_once(
    chip: str, capfd: pytest.CaptureFixture[str]
) -> None:
    @tile.jit
    def kernel(x: Any, n: Any):
        value = tile.load(x + tile.arange(0, 256))
        tile.device_assert(value > n, "larger than n")

    x = np.arange(256, dtype=np.int32)
    report = tile.emulate(kernel, 2, (x, 4), target=chip, findings="report", debug=True)
    (finding,) = report.findings
    last = {"sm_90a": 2, "gfx942": 4}[chip]  # a thread has two elements, or one
    assert finding.message == f"larger than n (threads 0 to {last})"
    assert finding.times == 2 * (last + 1)
    assert capfd.readouterr().out == ""


def test_what_cannot_run_is_refused(kernels: Any) -> None:
    x = np.zeros(4, np.float32)
    with pytest.raises(KernelError, match=r"^expected a kernel, which `tile\.jit` makes, found"):
        tile.emulate(len, 1, (x,))  # pyright: ignore[reportArgumentType]
    with pytest.raises(KernelError, match="nothing ran on the emulated gfx942"):
        tile.emulate(kernels.scale, (0,), (x, x, 4), BLOCK=256)
    with pytest.raises(KernelError, match="uninitialized: kernel `scale` has no parameter `y`"):
        tile.emulate(kernels.scale, 1, (x, x, 4), uninitialized=["y"], BLOCK=256)
    with pytest.raises(KernelError, match="expected a target among"):
        tile.emulate(kernels.scale, 1, (x, x, 4), target="gfx1", BLOCK=256)
    with pytest.raises(KernelError, match='findings: expected "error", "warn" or "report"'):
        tile.emulate(kernels.scale, 1, (x, x, 4), findings="ignore", BLOCK=256)  # pyright: ignore[reportArgumentType]


# --- the command line ----------------------------------------------------------------------------


def _command(file: Path, kernel: str, *more: str) -> list[str]:
    return [
        *("emulate", f"{file}:{kernel}", "--grid", "4", "--arg", "x=f32[1000]:randn"),
        *("--arg", "out=fp32[1000]:empty", "--arg", "n=1000", "--constexpr", "BLOCK=256", *more),
    ]


def test_the_command_prints_the_report(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_command(file, "scale", "--target", "sm_80")) == 0
    out = capsys.readouterr().out
    assert "scale on sm_80 (lazy): 4 x 1 x 1 programs of 128 threads" in out
    assert "no findings" in out


def test_the_command_prints_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(_command(file, "scale", "--json", "--mode", "eager")) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["chip"], report["mode"], report["findings"]) == ("gfx942", "eager", [])


def test_the_command_fails_where_there_are_findings(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(_command(file, "ragged")) == 1
    printed = capsys.readouterr()
    assert "out-of-bounds access" in printed.out
    assert "^^^^" in printed.out
    assert printed.err == "KernelError: 1 findings\n"


@pytest.mark.parametrize("target", ["sm_90a", "gfx1201"])
def test_the_command_takes_tensor_descriptors(
    file: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["emulate", f"{file}:turn", "--grid", "2x1", "--target", target]
    arguments += ["--arg", "a=tensor<fp32, 16x32>[32,32]:randn"]
    assert main([*arguments, "--arg", "b=tensor<fp32,32x16>[32,32]:empty"]) == 0
    assert "2 x 1 x 1 programs" in capsys.readouterr().out


def test_the_commands_help_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["emulate", "--help"])
    text = capsys.readouterr().out
    assert "a tensor descriptor: blocks of 64 x 32" in text
    assert "Raises:" not in text
    assert "python -m tiledsl emulate kernels.py:scale --grid 4" in text


def test_an_interrupted_command_says_where(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt("kernel.py:8: emulating `ld.global`")

    monkeypatch.setattr("tiledsl.__main__.emulate", interrupted)
    assert main(_command(file, "scale")) == 130
    assert capsys.readouterr().err == "\ninterrupted: kernel.py:8: emulating `ld.global`\n"


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("4", (4,)), ("4,2", (4, 2)), ("4x2x1", (4, 2, 1)), ("(4, 2)", (4, 2)), ("1X1", None),
     ("", None), ("4,2,1,1", None), ("-1", None)],
)  # fmt: skip
def test_grids_are_made_of_text(text: str, sizes: tuple[int, ...] | None) -> None:
    if sizes is not None:
        assert grid(text) == sizes
        return
    with pytest.raises(KernelError, match="--grid: expected one to three integers, found"):
        grid(text)


def test_a_descriptor_is_made_of_text() -> None:
    name, made, empty = argument("a=tensor<f16, 8x4, nan>[16,4]:empty")
    assert (name, empty) == ("a", True)
    assert isinstance(made, tile.TensorDescriptor)
    assert (made.block_shape, made.padding, made.shape) == ((8, 4), "nan", (16, 4))


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("n=1000", "n", 1000),
        ("eps = 1e-5", "eps", 1e-5),
        ("flag=True", "flag", True),
        ("x=fp32[4]:arange", "x", np.arange(4, dtype=np.float32)),
        ("x=i1[2]:ones", "x", np.ones(2, np.bool_)),
        ("x=f64[2,3]:-2.5", "x", np.full((2, 3), -2.5)),
        ("x=u8[2x2]", "x", np.zeros((2, 2), np.uint8)),
        ("x=fp32[]:ones", "x", np.ones((), np.float32)),
    ],
)
def test_arguments_are_made_of_text(text: str, name: str, value: Any) -> None:
    found_name, found, empty = argument(text)
    assert (found_name, empty) == (name, False)
    np.testing.assert_array_equal(found, value)
    assert np.asarray(found).dtype == np.asarray(value).dtype


def test_random_arguments_are_the_same_each_time() -> None:
    first, second = argument("x=fp16[100]:randn")[1], argument("x=fp16[100]:randn")[1]
    np.testing.assert_array_equal(first, second)
    drawn: Any = argument("i=i32[100]:randint(-2,3)")[1]
    assert (drawn.min(), drawn.max()) == (-2, 2)
    assert argument("out=fp32[4]:empty")[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n", "--arg: expected NAME=VALUE, found 'n'"),
        ("n=", "--arg: expected NAME=VALUE, found 'n='"),
        ("n=many", "--arg: expected a number or TYPE[SHAPE]:FILL for `n`, found 'many'"),
        ("x=fp31[4]", "--arg: expected an element type among i1, i8"),
        ("x=fp32[4]:some", "--arg: expected a filling among zeros, empty, ones, arange"),
        ("x=i32[4]:randint(3,3)", "--arg: expected a filling among"),
    ],
)
def test_arguments_that_are_not_understood_are_refused(text: str, message: str) -> None:
    with pytest.raises(KernelError) as raised:
        argument(text)
    assert raised.value.message.startswith(message)
