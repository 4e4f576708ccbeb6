from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest
from mlir import ir

from tests.targets.nvptx.kernels import compile_for
from tests.transforms.tile_kernels import Kernel, matmul, vector_add
from tiledsl.dialects import tile
from tiledsl.dialects.diagnostics import KernelError
from tiledsl.targets.nvptx import ptxas
from tiledsl.targets.nvptx.target import occupancy
from tiledsl.targets.target import Artifact, Options


def test_an_artifact_says_how_to_launch_it() -> None:
    k = Kernel("*f32", "i1", "i64", "f8E4M3FN", "bf16")
    k.store(k.args[0], k.load(k.args[0]))
    made = compile_for("sm_90a", k.finish(), warps=2)
    assert made.entry == "kernel"
    assert made.kinds == ("ptr", "bool", "i64", "f8E4M3FN", "bf16")
    assert made.threads == 64
    assert made.shared_bytes == 0
    assert list(made.texts)[:2] == ["llvm", "ptx"]


def test_the_entry_has_its_threads_and_shared_memory() -> None:
    made = compile_for("sm_90a", matmul(), options=Options(num_stages=2, max_registers=128))
    ptx = str(made.texts["ptx"])
    assert ".target sm_90a" in ptx
    assert ".visible .entry kernel(" in ptx
    assert ".reqntid 128" in ptx
    assert ".maxnreg 128" in ptx
    assert re.search(r"\.extern \.shared \.align 1024 \.b8 shared_memory\[\]", ptx)
    assert made.shared_bytes >= 2 * 2 * 128 * 32 * 2  # two stages of two operands


@pytest.mark.skipif(ptxas.find_ptxas() is None, reason="no ptxas")
def test_a_product_of_multiply_adds_reads_each_step_just_before_it_and_does_not_spill() -> None:
    made = compile_for("sm_90a", matmul(element="f32"), options=Options(num_stages=1))
    assert made.resources is not None
    assert made.resources.spill_bytes == 0
    ptx = str(made.texts["ptx"])
    assert ".minnctapersm" not in ptx
    found = re.findall(r"ld\.shared\.v4|fma\.rn\.f32", ptx)
    runs = [(name, len(list(same))) for name, same in itertools.groupby(found)]
    assert len(runs) >= 16
    assert max(length for name, length in runs if name != "fma.rn.f32") <= 32


def test_more_sums_than_two_blocks_have_registers_for_are_given_all_of_them() -> None:
    made = compile_for("sm_90a", matmul(element="f32"), options=Options(num_warps=2, num_stages=1))
    assert ".minnctapersm 1" in str(made.texts["ptx"])


def test_arguments_that_are_aligned_say_so() -> None:
    ptx = str(compile_for("sm_80", vector_add()).texts["ptx"])
    assert ".param .u64 .ptr .global .align 16 kernel_param_0" in ptx


def test_without_ptxas_the_driver_gets_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: None)
    made = compile_for("sm_80", vector_add())
    assert made.binary == str(made.texts["ptx"]).encode()
    assert "cubin" not in made.texts
    assert made.resources is None
    assert occupancy("sm_80", made) is None


@pytest.mark.skipif(ptxas.find_ptxas() is None, reason="no ptxas")
def test_with_ptxas_it_is_machine_code_and_what_it_takes_is_known() -> None:
    made = compile_for("sm_80", vector_add())
    assert made.binary == made.texts["cubin"]
    assert made.binary[:4] == b"\x7fELF"
    assert occupancy("sm_80", made) == 1.0


def test_printing_declares_what_the_driver_provides() -> None:
    k = Kernel("*f16")
    value = k.load(k.pointers(k.args[0], 64))
    with k.here():
        tile.PrintOp.build(value, prefix="x")
    ptx = str(compile_for("sm_80", k.finish()).texts["ptx"])
    assert ".extern .func  (.param .b32 func_retval0) vprintf" in ptx
    assert ptx.count("vprintf,") == 1


def assembled_as(
    monkeypatch: pytest.MonkeyPatch,
    spilling: list[int],
    registers: list[int],
    module: ir.Module | None = None,
) -> tuple[Artifact, list[str]]:
    """Assemble a kernel of which ptxas tells other resources; return each text that it got too."""
    texts: list[str] = []
    real = ptxas.assemble

    def assemble(ptx: str, *args: Any, **options: Any) -> ptxas.Assembled:
        told = {
            "registers": registers[len(texts)],
            "spill_bytes": spilling[len(texts)],
        }
        texts.append(ptx)
        made = real(ptx, *args, **options)
        return replace(made, resources={n: replace(r, **told) for n, r in made.resources.items()})

    monkeypatch.setattr(ptxas, "assemble", assemble)
    return compile_for("sm_80", module or vector_add()), texts


@pytest.mark.skipif(ptxas.find_ptxas() is None, reason="no ptxas")
def test_a_kernel_that_spills_is_assembled_again_for_one_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, texts = assembled_as(monkeypatch, [100, 0], [128, 128])
    assert ".minnctapersm" not in texts[0]
    assert ".minnctapersm 1" in texts[1]
    assert made.texts["ptx"] == texts[1]
    assert made.resources is not None
    assert made.resources.spill_bytes == 0


@pytest.mark.skipif(ptxas.find_ptxas() is None, reason="no ptxas")
def test_a_kernel_that_spills_with_all_registers_is_assembled_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, texts = assembled_as(monkeypatch, [100, 0], [255, 255])
    assert made.texts["ptx"] == texts[0]
    assert len(texts) == 1


@pytest.mark.skipif(ptxas.find_ptxas() is None, reason="no ptxas")
def test_somewhat_fewer_registers_are_taken_where_they_let_more_blocks_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of 128 threads 5 blocks have 95 registers, 6 have 80, 7 have 72.
    made, texts = assembled_as(monkeypatch, [0, 0, 8], [95, 80, 72])
    wanted = [re.findall(r"\.minnctapersm (\d+)", text) for text in texts]
    assert wanted == [[], ["6"], ["7"]]
    assert made.texts["ptx"] == texts[1]
    assert occupancy("sm_80", made) == 6 * 128 / 2048


@pytest.mark.parametrize(
    ("registers", "what"),
    [(32, "all threads are there"), (95, "ptxas takes no fewer")],
)
@pytest.mark.skipif(ptxas.find_ptxas() is None, reason="no ptxas")
def test_registers_are_left_where_no_block_is_won(
    monkeypatch: pytest.MonkeyPatch, registers: int, what: str
) -> None:
    made, texts = assembled_as(monkeypatch, [0, 0, 0], [registers, registers, registers])
    assert made.texts["ptx"] == texts[0], what


@pytest.mark.skipif(ptxas.find_ptxas() is None, reason="no ptxas")
def test_kernels_with_products_keep_their_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    _, texts = assembled_as(monkeypatch, [0, 0, 0], [95, 80, 72], matmul())
    assert len(texts) == 1


def test_without_ptxas_options_that_only_it_has_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: None)
    made = compile_for("sm_80", vector_add(), options=Options(ptxas_options="-O1"))
    assert made.binary == str(made.texts["ptx"]).encode()
    with pytest.raises(KernelError, match="ptxas_options: expected options that the driver's own"):
        compile_for("sm_80", vector_add(), options=Options(ptxas_options="--fmad=false"))
