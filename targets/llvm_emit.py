"""Run LLVM's optimizer and code generator on IR text, here or as a program that others ask.

This file imports nothing of this package, because `llvm_codegen` runs it as a child process that
should start in the time llvmlite takes to load (LLVM ends its process on some inputs, and the child
is the one that should end). As a program it answers requests on stdin until stdin closes: each
message is a pickled dict behind its length in 8 bytes, little endian. It ends with the process that
started it, whatever it is doing.

Contract: a request is the keyword arguments of `emit`; its answer is what `emit` returns, or
{"error": message} where LLVM rejects the module. The pass builder runs *with* the target machine,
so that the target's own passes and cost models take part (on AMDGPU this also decides which hidden
arguments a kernel has).

Long vectors (<128 x float>) go in as they are: scalarizing them first gave the same PTX, line for
line, and took three to five times as long.
"""

from __future__ import annotations

import os
import pickle
import select
import struct
import sys
import threading
from typing import Any, BinaryIO

import llvmlite.binding as llvm

_OPTIONS = ("-pick-merged-source-locations",)
"""Of LLVM as a whole. Of two instructions merged into one, keep one's source line, not line 0."""
_LENGTH = struct.Struct("<Q")
_bring_up = threading.Lock()
_targets: dict[str, llvm.Target] = {}


class Rejected(Exception):
    """LLVM does not take the module; the message is LLVM's."""


def _target(triple: str) -> llvm.Target:
    """Look up a target, bringing up all of LLVM's on the first call (about a millisecond)."""
    with _bring_up:
        if not _targets:
            llvm.initialize_all_targets()
            llvm.initialize_all_asmprinters()
            for option in _OPTIONS:
                llvm.set_option("llvm_emit", option)
        if triple not in _targets:
            _targets[triple] = llvm.Target.from_triple(triple)
        return _targets[triple]


def emit(
    *,
    text: str,
    triple: str,
    cpu: str,
    features: str,
    relocation: str,
    code_model: str,
    speed: int,
    assembly: bool,
    object: bool,
    optimized_ir: bool,
    verbose: bool,
) -> dict[str, str | bytes | None]:
    """Optimize a module and generate code for it.

    Returns:
        "assembly", "object" and "optimized_ir", each None unless its argument asked for it.

    Raises:
        Rejected: The module does not parse or verify, or there is no such target.
    """
    try:
        machine = _target(triple).create_target_machine(
            cpu=cpu, features=features, opt=speed, reloc=relocation, codemodel=code_model
        )
        machine.set_asm_verbosity(verbose)
        # A context of its own: contexts keep every type and constant for ever.
        module = llvm.parse_assembly(text, llvm.create_context())
        module.triple = triple
        module.data_layout = str(machine.target_data)
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=speed)
        options.slp_vectorization = options.loop_vectorization = speed >= 2
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        kept_ir = str(module) if optimized_ir else None
        # Code generation rewrites the module, so each of two outputs needs its own.
        other = module.clone() if assembly and object else module
        return {
            "assembly": machine.emit_assembly(module) if assembly else None,
            "object": machine.emit_object(other) if object else None,
            "optimized_ir": kept_ir,
        }
    except RuntimeError as error:
        raise Rejected(str(error).strip()) from error


def send(stream: BinaryIO, message: dict[str, Any]) -> None:
    """Write one message."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: BinaryIO) -> dict[str, Any] | None:
    """Read one message; None where the other side has gone."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(header)
    data = stream.read(length)
    return pickle.loads(data) if len(data) == length else None


def _end_with_parent(parent: int) -> None:
    """End this process when the one that asks is gone, even if LLVM is busy.

    Its end of stdin closes then. Other processes may have inherited that end and keep it, so whose
    child this is counts too. (Linux can signal the death of a parent, but means the thread that
    started this process, which may end long before.)
    """
    stdin = select.poll()
    stdin.register(0, 0)  # a hang-up is told whatever is asked for
    while not stdin.poll(1000):
        if os.getppid() != parent:
            break
    os._exit(0)


def serve() -> None:
    """Answer requests until stdin closes."""
    requests = sys.stdin.buffer
    if hasattr(select, "poll"):
        watch = threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True)
        watch.start()
    # LLVM prints where it likes: only this copy of stdout is the channel.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (request := receive(requests)) is not None:
        try:
            answer: dict[str, Any] = emit(**request)
        except Rejected as rejected:
            answer = {"error": str(rejected)}
        send(answers, answer)


if __name__ == "__main__":
    serve()
