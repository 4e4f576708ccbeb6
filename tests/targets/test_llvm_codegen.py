import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tiledsl.dialects.diagnostics import CompilerBug, KernelError
from tiledsl.targets import llvm_codegen
from tiledsl.targets.llvm_codegen import Machine, optimize_and_emit, warm_up

PTX = Machine("nvptx64-nvidia-cuda", "sm_90a", "+ptx83")
AMD = Machine("amdgcn-amd-amdhsa", "gfx942")


def ptx_kernel(name: str, value: float = 2.0) -> str:
    return f"""
define ptx_kernel void @{name}(ptr addrspace(1) %p) {{
  %x = load <4 x float>, ptr addrspace(1) %p, align 16
  %y = fmul <4 x float> %x, splat (float {value})
  store <4 x float> %y, ptr addrspace(1) %p, align 16
  ret void
}}
"""


AMD_KERNEL = """
define amdgpu_kernel void @k(ptr addrspace(1) %p, i32 %n) #0 {
  %i = call i32 @llvm.amdgcn.workitem.id.x()
  %q = getelementptr i32, ptr addrspace(1) %p, i32 %i
  store i32 %n, ptr addrspace(1) %q
  ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
attributes #0 = { "amdgpu-flat-work-group-size"="64,64" "uniform-work-group-size"="true" }
"""

UNSELECTABLE = """
define amdgpu_kernel void @k(ptr addrspace(1) %p) {
  %d = call <4 x float> @llvm.amdgcn.mfma.f32.16x16x16f16(
      <4 x half> zeroinitializer, <4 x half> zeroinitializer, <4 x float> zeroinitializer,
      i32 0, i32 0, i32 0)
  store <4 x float> %d, ptr addrspace(1) %p
  ret void
}
declare <4 x float> @llvm.amdgcn.mfma.f32.16x16x16f16(
    <4 x half>, <4 x half>, <4 x float>, i32, i32, i32)
"""


def test_ptx_keeps_vector_accesses_and_the_chips_version():
    text = optimize_and_emit(ptx_kernel("scale"), PTX).assembly
    assert text is not None
    assert ".version 8.3" in text
    assert ".target sm_90a" in text
    assert ".visible .entry scale(" in text
    assert "ld.global.v4" in text
    assert "st.global.v4" in text


def test_only_what_is_asked_for_is_returned():
    emitted = optimize_and_emit(AMD_KERNEL, AMD, output="object")
    assert emitted.assembly is None
    assert emitted.optimized_ir is None
    assert emitted.object is not None
    assert emitted.object.startswith(b"\x7fELF")


def test_both_outputs_are_those_asked_for_singly():
    both = optimize_and_emit(AMD_KERNEL, AMD, output="both", keep_ir=True)
    assert both.object == optimize_and_emit(AMD_KERNEL, AMD, output="object").object
    assert both.assembly == optimize_and_emit(AMD_KERNEL, AMD).assembly
    assert both.optimized_ir is not None
    assert "define amdgpu_kernel void @k" in both.optimized_ir


def test_the_pipeline_runs_with_the_machine_so_no_hidden_arguments_appear():
    text = optimize_and_emit(AMD_KERNEL, AMD).assembly
    assert text is not None
    assert "hidden_" not in text
    assert ".kernarg_segment_size: 12" in text


def test_comments_are_kept_on_request():
    plain = optimize_and_emit(AMD_KERNEL, AMD).assembly
    verbose = optimize_and_emit(AMD_KERNEL, AMD, verbose_assembly=True).assembly
    assert plain is not None
    assert verbose is not None
    assert "Occupancy" not in plain
    assert "; Occupancy" in verbose


def test_ir_that_does_not_parse_is_a_compiler_bug_with_llvms_words():
    with pytest.raises(
        CompilerBug, match=r"(?s)LLVM rejects .* sm_90a: .*expected instruction opcode"
    ):
        optimize_and_emit("define void @f() {\n  nonsense\n}", PTX)


def test_ir_that_does_not_verify_is_a_compiler_bug_with_llvms_words():
    broken = "define i32 @f(i32 %x) {\n %y = add i32 %z, 1\n %z = add i32 %y, 1\n ret i32 %z\n}"
    with pytest.raises(CompilerBug, match="does not dominate all uses"):
        optimize_and_emit(broken, PTX)


def test_an_unknown_triple_is_a_compiler_bug():
    with pytest.raises(CompilerBug, match="LLVM rejects the IR made for nonesuch, x"):
        optimize_and_emit("", Machine("nonesuch", "x"))


def test_llvm_dying_is_a_compiler_bug_and_the_next_module_compiles():
    with pytest.raises(CompilerBug, match=r"(?s)LLVM died .*gfx1100.*[Cc]annot select.*mfma"):
        optimize_and_emit(UNSELECTABLE, Machine("amdgcn-amd-amdhsa", "gfx1100"))
    assert optimize_and_emit(AMD_KERNEL, AMD).assembly


def test_a_ptx_version_below_the_chips_is_a_compiler_bug_with_llvms_words():
    with pytest.raises(CompilerBug, match=r"PTX version 8\.0 does not support target 'sm_100a'"):
        optimize_and_emit(ptx_kernel("k"), Machine(PTX.triple, "sm_100a", "+ptx80"))


def test_threads_compile_at_once_and_each_gets_its_own_answer():
    with ThreadPoolExecutor(4) as pool:
        kernels = [ptx_kernel(f"k{i}") for i in range(12)]
        texts = list(pool.map(optimize_and_emit, kernels, [PTX] * len(kernels)))
    for i, emitted in enumerate(texts):
        assert emitted.assembly is not None
        assert f".entry k{i}(" in emitted.assembly


def test_a_process_ends_cleanly_with_a_child_still_warm():
    script = (
        "from tiledsl.targets.llvm_codegen import *; warm_up();"
        f"print(optimize_and_emit({AMD_KERNEL!r}, {AMD!r}).assembly[:8])"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_starts_children_of_its_own():
    warm_up()
    pid = os.fork()
    if pid == 0:
        ok = optimize_and_emit(ptx_kernel("forked"), PTX).assembly is not None
        os._exit(0 if ok else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert optimize_and_emit(ptx_kernel("parent"), PTX).assembly


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal on this system")
def test_a_child_that_is_killed_is_replaced_once(monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    ask = llvm_codegen._Worker.ask  # pyright: ignore[reportPrivateUsage]

    def killed_at_times(self: Any, request: dict[str, Any]) -> dict[str, Any] | None:
        asked.append(self._child.pid)
        if len(asked) in deaths:
            os.kill(self._child.pid, signal.SIGKILL)
            self._child.wait()
        return ask(self, request)

    monkeypatch.setattr(llvm_codegen._Worker, "ask", killed_at_times)  # pyright: ignore[reportPrivateUsage]
    deaths = [1]
    assert optimize_and_emit(AMD_KERNEL, AMD).assembly
    assert len(set(asked)) == 2
    deaths = [3, 4]
    with pytest.raises(KernelError, match=r"was killed twice \(SIGKILL\)") as raised:
        optimize_and_emit(AMD_KERNEL, AMD)
    assert raised.value.hint is not None


def test_a_child_that_cannot_start_is_the_systems_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(KernelError, match="a process for code generation cannot be started: "):
        llvm_codegen._Worker()  # pyright: ignore[reportPrivateUsage]


SLOW = "\n".join(
    [
        "define void @f(ptr %p) {",
        " %y0 = load <64 x double>, ptr %p",
        *(
            f" %y{i + 1} = call <64 x double> @llvm.sin.v64f64(<64 x double> %y{i})"
            for i in range(400)
        ),
        " store <64 x double> %y400, ptr %p",
        " ret void",
        "}",
        "declare <64 x double> @llvm.sin.v64f64(<64 x double>)",
    ]
)
BUSY = f"""
import threading, time
from tiledsl.targets import llvm_codegen
llvm_codegen.warm_up()
worker = llvm_codegen._workers.idle[0]
machine = llvm_codegen.Machine("x86_64-unknown-linux-gnu", "x86-64")
asking = threading.Thread(target=llvm_codegen.optimize_and_emit, args=({SLOW!r}, machine), daemon=True)
asking.start()
time.sleep(0.5)
print(worker._child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="no /proc on this system")
def test_a_busy_child_does_not_outlive_a_killed_parent():
    parent = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert _is_alive(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while _is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_alive(child)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
