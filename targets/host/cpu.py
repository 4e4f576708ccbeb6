"""The processor that this process runs on, as far as lowering cares.

The one host chip is "host": whatever LLVM says of this machine. Which vector accesses the processor
has decides how masked memory operations are lowered, because LLVM takes an unsupported one apart
into a branch a lane, which is slow to compile and to run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Cpu:
    """What lowering and code generation know of a processor.

    Attributes:
        triple: LLVM's name of the platform.
        name: LLVM's name of the processor.
        features: LLVM's feature string.
        vector_bytes: Width of a vector register.
        vector_registers: How many there are.
        masked_bits: Element widths of which neighbours can be read and written under a mask.
        gather_bits: Element widths of which a vector can be read from scattered addresses.
        scatter_bits: The same for writing.
        fma: Whether it multiplies and adds in one instruction.
        half: Whether it converts f16 itself.
    """

    triple: str
    name: str
    features: str
    vector_bytes: int
    vector_registers: int
    masked_bits: frozenset[int]
    gather_bits: frozenset[int]
    scatter_bits: frozenset[int]
    fma: bool
    half: bool


def describe(triple: str, name: str, features: frozenset[str], text: str) -> Cpu:
    """Return the processor with these LLVM features.

    Args:
        triple: LLVM's name of the platform.
        name: LLVM's name of the processor.
        features: The names of the features that are on.
        text: The feature string to hand to LLVM.
    """
    wide, narrow = frozenset({32, 64}), frozenset({8, 16})
    none: frozenset[int] = frozenset()
    if "avx512f" in features:
        masked = wide | narrow if {"avx512bw", "avx512vl"} <= features else wide
        return Cpu(triple, name, text, 64, 32, masked, wide, wide, True, True)
    if "avx2" in features:
        has = ("fma" in features, "f16c" in features)
        return Cpu(triple, name, text, 32, 16, wide, wide, none, *has)
    x86 = triple.startswith(("x86", "i686"))
    registers = 16 if x86 else 32
    return Cpu(triple, name, text, 16, registers, none, none, none, not x86, not x86)


@cache
def host_cpu() -> Cpu:
    """Return this machine's processor."""
    import llvmlite.binding as llvm

    try:
        flags = llvm.get_host_cpu_features()
    except RuntimeError:  # LLVM cannot tell on some platforms; the name implies enough
        flags = llvm.FeatureMap()
    on = frozenset(name for name, has in flags.items() if has)
    return describe(llvm.get_process_triple(), llvm.get_host_cpu_name(), on, flags.flatten())
