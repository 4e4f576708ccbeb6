import stat
import sys
from pathlib import Path

import pytest

from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.targets.driver import Resources
from tiledsl.targets.nvptx import ptxas as module
from tiledsl.targets.nvptx.chips import CHIPS, Chip, chip
from tiledsl.targets.nvptx.ptxas import assemble, find_ptxas, parse_resources, version

needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="no ptxas")


def ptx(body: str, target: str = "sm_80", ptx_version: str = "8.0") -> str:
    return f"""
.version {ptx_version}
.target {target}
.address_size 64
.visible .entry k(.param .u64 p)
{{
  .reg .b64 %rd<4>; .reg .b32 %r<4>;
  ld.param.u64 %rd1, [p];
  {body}
  ret;
}}
"""


SHARED = """.shared .align 16 .b8 s[256];
  mov.u32 %r1, s; ld.volatile.shared.u32 %r2, [%r1]; st.global.u32 [%rd1], %r2;"""


@needs_ptxas
@pytest.mark.parametrize("each", CHIPS.values(), ids=lambda c: c.name)
def test_every_chip_is_assembled_for_with_its_own_ptx_version(each: Chip):
    text = ptx(SHARED, each.name, f"{each.ptx // 10}.{each.ptx % 10}")
    made = assemble(text, each)
    assert made.cubin.startswith(b"\x7fELF")
    found = made.resources["k"]
    assert 0 < found.registers <= 32
    # sm_100 and later reserve 1 KiB of static shared memory in the count.
    assert found.shared_bytes in (256, 1280)
    assert (found.spill_bytes, found.local_bytes) == (0, 0)


@needs_ptxas
def test_machine_code_keeps_the_lines_of_the_text():
    text = ptx(".loc 1 7 3\n  st.global.u64 [%rd1], %rd1;") + '.file 1 "/home/me/author.py"\n'
    assert b"author.py" in assemble(text, chip("sm_90a")).cubin


@needs_ptxas
def test_a_limit_of_registers_makes_spills_that_are_reported():
    loads = "\n".join(f"ld.volatile.global.u64 %v{i}, [%rd1+{8 * i}];" for i in range(40))
    stores = "\n".join(f"st.volatile.global.u64 [%rd1+{8 * i}], %v{i};" for i in range(40))
    text = ptx(f".reg .b64 %v<40>;\n{loads}\n{stores}")
    free, tight = assemble(text, chip("sm_80")), assemble(text, chip("sm_80"), max_registers=24)
    assert free.resources["k"].spill_bytes == 0
    assert tight.resources["k"].registers <= 24
    assert (tight.resources["k"].spill_bytes or 0) > 0
    assert tight.resources["k"].local_bytes > 0


@needs_ptxas
def test_bad_ptx_is_a_compiler_bug_that_shows_the_line():
    with pytest.raises(CompilerBug) as error:
        assemble(ptx("bogus.u32 %r1;"), chip("sm_80"))
    assert str(error.value) == (
        "ptxas rejects the PTX made for sm_80: ptxas kernel.ptx, line 9; error   : "
        "Not a name of any known instruction: 'bogus'\n"
        "ptxas fatal   : Ptx assembly aborted due to errors\n"
        "  bogus.u32 %r1;"
    )


@needs_ptxas
def test_options_reach_ptxas_and_bad_ones_are_the_users_error():
    assert assemble(ptx(""), chip("sm_80"), options="-O0 --warn-on-spills").cubin
    for options in ("--no-such-option", "--maxrregcount abc"):
        with pytest.raises(KernelError, match="ptxas refuses the options"):
            assemble(ptx(""), chip("sm_80"), options=options)


@needs_ptxas
def test_a_matrix_instruction_that_the_registers_do_not_suffice_for_is_the_users_error():
    sums = ", ".join(f"%f{i}" for i in range(128))
    body = f""".reg .f32 %f<128>; .reg .pred %on; setp.eq.u64 %on, %rd1, 0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {{{sums}}}, %rd1, %rd1, %on, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"""
    text = ptx(body, "sm_90a")
    assert assemble(text, chip("sm_90a")).cubin
    with pytest.raises(KernelError, match=r"takes 1\d\d registers or more, and can have 64"):
        assemble(text, chip("sm_90a"), max_registers=64)


@needs_ptxas
def test_ptx_newer_than_ptxas_says_to_update():
    found = find_ptxas()
    assert found is not None
    major, _ = version(found)
    with pytest.raises(KernelError, match=rf"of CUDA {major}\.\d+ is too old for sm_80") as error:
        assemble(ptx("", ptx_version="99.9"), chip("sm_80"))
    assert error.value.hint is not None


def program(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / "ptxas"
    made.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.93'\n")
    made.chmod(made.stat().st_mode | stat.S_IXUSR)
    return made


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Hide every ptxas of this machine."""
    for name in ("TILEDSL_PTXAS", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(module, "_in_python_packages", list[Path])
    monkeypatch.setattr(module, "TOOLKIT", tmp_path / "empty")
    return monkeypatch


def test_without_ptxas_there_is_none_and_assembling_says_how_to_get_it(bare: pytest.MonkeyPatch):
    assert find_ptxas() is None
    with pytest.raises(KernelError) as error:
        assemble(ptx(""), chip("sm_80"))
    assert str(error.value) == (
        "ptxas was not found\n  hint: install nvidia-cuda-nvcc, or set TILEDSL_PTXAS to the program"
    )


def test_options_that_no_shell_would_take_are_the_users_error(tmp_path: Path):
    with pytest.raises(KernelError, match=r"ptxas_options: .*No closing quotation"):
        assemble(ptx(""), chip("sm_80"), options='"-O1', ptxas=program(tmp_path))


def test_a_temporary_folder_that_cannot_be_used_is_the_users_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(KernelError, match="could not be run on a temporary file") as error:
        assemble(ptx(""), chip("sm_80"), ptxas=program(tmp_path))
    assert error.value.hint == "TMPDIR names another folder for temporary files"


def test_ptxas_is_looked_for_in_order(bare: pytest.MonkeyPatch, tmp_path: Path):
    packaged = program(tmp_path / "site" / "nvidia" / "cu13" / "bin")
    bare.setattr(module, "_in_python_packages", lambda: [packaged])
    assert find_ptxas() == packaged
    home = program(tmp_path / "cuda" / "bin")
    bare.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert find_ptxas() == home
    on_path = program(tmp_path / "bin")
    bare.setenv("PATH", str(tmp_path / "bin"))
    assert find_ptxas() == on_path
    chosen = program(tmp_path / "chosen")
    bare.setenv("TILEDSL_PTXAS", str(chosen))
    assert find_ptxas() == chosen
    bare.setenv("TILEDSL_PTXAS", str(tmp_path / "nowhere"))
    with pytest.raises(KernelError, match="expected TILEDSL_PTXAS to name a program, found"):
        find_ptxas()


def test_nvidias_packages_are_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    older = program(tmp_path / "nvidia" / "cuda_nvcc" / "bin")
    newer = program(tmp_path / "nvidia" / "cu13" / "bin")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert {older, newer} <= set(module._in_python_packages())  # pyright: ignore
    assert version(newer) == (12, 8)


def test_the_log_of_several_entries_is_told_apart():
    log = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 168 registers, used 2 barriers, 16 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 20 registers, used 0 barriers
ptxas info    : Compile time = 17.304 ms
"""
    assert parse_resources(log) == {
        "first": Resources(168, 20, 16, 1024),
        "second": Resources(20, 0, 0, 0),
    }
