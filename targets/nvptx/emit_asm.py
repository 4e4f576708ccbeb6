"""Write `ptx` ops as inline assembly: the last step before LLVM's own dialect.

LLVM sees volatile assembly that touches memory, so it neither reorders nor drops it. The result of
a predicated instruction begins as the value for a false predicate, which is tied to the register
that the instruction writes, so it needs no branch and no select.

Before: the `machine` level.
After: the same without `ptx` ops.

    %v = "ptx.load"(%p, %m, %zero) : (!llvm.ptr<1>, i1, vector<4xf32>) -> vector<4xf32>
becomes
    %w = llvm.inline_asm has_side_effects "@$9 ld.global.v4.b32 { $0, $1, $2, $3 }, [ $8 ];",
         "=r,=r,=r,=r,0,1,2,3,l,b" %z0, ..., %p, %m : ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlir import ir
from mlir.dialects import llvm

from tiledsl.dialects import ptx
from tiledsl.dialects.contracts import operations
from tiledsl.targets.gpu import emit
from tiledsl.targets.gpu.emit import integer

_CONSTRAINT = {16: "h", 32: "r", 64: "l"}


def emit_asm(module: ir.Module) -> None:
    """Run the pass described above on `module`, in place."""
    for op in list(operations(module.operation)):
        write = _WRITERS.get(op.operation.name)
        if write is None:
            continue
        with ir.InsertionPoint(op), op.operation.location:
            result = write(op)
            if result is not None:
                op.operation.results[0].replace_all_uses_with(result)
            op.operation.erase()


# Values as PTX registers.


def _word_bits(type_: ir.Type) -> int:
    """Return the width of the registers that a value travels in."""
    registers = type_.shape[0] if isinstance(type_, ir.VectorType) else 1
    width = emit.width_of(type_)
    return min(max(width, 32), width * registers) if width < 64 else 64


def _to_registers(value: ir.Value) -> list[ir.Value]:
    """Return a value's bits as integers of 16, 32 or 64 bits; a single byte in 16."""
    bits = _word_bits(value.type)
    whole = value if emit.is_vector(value.type) else emit.splat(value, 1)
    words = emit.elements(emit.bitcast(whole, integer(bits)))
    if bits == 8:
        words = [llvm.zext(integer(16), word) for word in words]
    return words


def _from_registers(words: Sequence[ir.Value], type_: ir.Type) -> ir.Value:
    """Return what `_to_registers` took apart."""
    bits = _word_bits(type_)
    if bits == 8:
        words = [
            llvm.trunc(integer(8), word, ir.Attribute.parse("#llvm.overflow<none>"))
            for word in words
        ]
    whole = emit.bitcast(emit.from_elements(words), emit.scalar_of(type_))
    return whole if emit.is_vector(type_) else emit.extract(whole, 0)


class _Assembly:
    """One instruction in the making: operands get numbers as they are added, outputs first."""

    def __init__(
        self,
        outputs: Sequence[ir.Value] = (),
        types: Sequence[ir.Type] = (),
        *,
        early: bool = False,
    ) -> None:
        """Begin with outputs, each with the value it has before (or, by type, with none).

        Args:
            outputs: The values before.
            types: The outputs' types, where they have no values before.
            early: Whether outputs are written while operands are still read.
        """
        self._types = [value.type for value in outputs] or list(types)
        self.outputs = [f"${i}" for i in range(len(self._types))]
        mark = "=&" if early else "="
        self._constraints = [f"{mark}{_CONSTRAINT[emit.width_of(t)]}" for t in self._types]
        self._operands = list(outputs)
        self._constraints += [str(i) for i in range(len(outputs))]

    def operand(self, value: ir.Value, constraint: str | None = None) -> str:
        """Add an operand; return how the text names it."""
        number = len(self._types) + len(self._operands)
        self._operands.append(value)
        self._constraints.append(constraint or _CONSTRAINT[emit.width_of(value.type)])
        return f"${number}"

    def guard(self, predicate: ir.Value | None) -> str:
        """Return the text that goes before a guarded instruction."""
        return "" if predicate is None else f"@{self.operand(predicate, 'b')} "

    def build(self, text: str) -> list[ir.Value]:
        """Build the op; return the outputs' values."""
        types = self._types
        result: ir.Type | None = None
        if len(types) == 1:
            result = types[0]
        elif types:
            result = ir.Type.parse(f"!llvm.struct<({', '.join(map(str, types))})>")
        made: Any = llvm.inline_asm(
            result,
            self._operands,
            text,
            ",".join(self._constraints),
            has_side_effects=True,
        )
        if len(types) < 2:
            return [made] if types else []
        return [
            llvm.extractvalue(type_, made, ir.DenseI64ArrayAttr.get([i]))
            for i, type_ in enumerate(types)
        ]


def _vector(names: Sequence[str]) -> tuple[str, str]:
    """Return the suffix and the braces of an access of several registers."""
    if len(names) == 1:
        return "", names[0]
    return f".v{len(names)}", "{ " + ", ".join(names) + " }"


# Instructions.


def _load(op: ptx.LoadOp) -> ir.Value:
    type_ = op.value.type
    bits = _word_bits(type_)
    if op.other is None:
        count = type_.shape[0] * emit.width_of(type_) // bits
        assembly = _Assembly(types=[integer(max(16, bits))] * count)
    else:
        assembly = _Assembly(_to_registers(op.other))
    suffix, names = _vector(assembly.outputs)
    address = assembly.operand(op.pointer)
    order = ".volatile" if op.volatile else ""
    cache = f".{op.cache}" if op.cache and not op.volatile else ""
    eviction = f".L1::{op.eviction}" if op.eviction and not (op.volatile or cache) else ""
    text = f"ld{order}.global{cache}{eviction}{suffix}.b{bits} {names}, [ {address} ];"
    return _from_registers(assembly.build(assembly.guard(op.predicate) + text), type_)


def _store(op: ptx.StoreOp) -> None:
    assembly = _Assembly()
    words = [assembly.operand(word) for word in _to_registers(op.value)]
    suffix, names = _vector(words)
    address = assembly.operand(op.pointer)
    cache = f".{op.cache}" if op.cache else ""
    eviction = f".L1::{op.eviction}" if op.eviction and not cache else ""
    bits = _word_bits(op.value.type)
    text = f"st.global{cache}{eviction}{suffix}.b{bits} [ {address} ], {names};"
    assembly.build(assembly.guard(op.predicate) + text)


def _kind(kind: str, type_: ir.Type) -> str:
    """Return PTX's operation and type, as "add.noftz.f16"."""
    bits = emit.width_of(type_)
    if kind == "fadd":
        # Halves have no add that flushes, and say so.
        return f"add.noftz.{type_}" if bits == 16 else f"add.f{bits}"
    if kind in ("max", "min"):
        return f"{kind}.s{bits}"
    if kind in ("umax", "umin"):
        return f"{kind[1:]}.u{bits}"
    if kind == "add":
        return f"add.u{bits}"
    operation = {"xchg": "exch"}.get(kind, kind)
    return f"{operation}.b{bits}"


def _atom(op: ptx.AtomOp) -> ir.Value:
    type_ = op.value.type
    assembly = _Assembly(_to_registers(emit.zero(type_)))
    address = assembly.operand(op.pointer)
    (value,) = (assembly.operand(word) for word in _to_registers(op.value))
    text = (
        f"atom.{op.sem}.{_scope(op)}.global.{_kind(op.kind, type_)} "
        f"{assembly.outputs[0]}, [ {address} ], {value};"
    )
    return _from_registers(assembly.build(assembly.guard(op.predicate) + text), type_)


def _red(op: ptx.RedOp) -> None:
    assembly = _Assembly()
    address = assembly.operand(op.pointer)
    (value,) = (assembly.operand(word) for word in _to_registers(op.value))
    kind = _kind(op.kind, op.value.type)
    text = f"red.{op.sem}.{_scope(op)}.global.{kind} [ {address} ], {value};"
    assembly.build(assembly.guard(op.predicate) + text)


def _cas(op: ptx.CasOp) -> ir.Value:
    type_ = op.value.type
    assembly = _Assembly(_to_registers(emit.zero(type_)))
    address = assembly.operand(op.pointer)
    compare, value = assembly.operand(op.compare), assembly.operand(op.value)
    text = (
        f"atom.{op.sem}.{_scope(op)}.global.cas.b{emit.width_of(type_)} "
        f"{assembly.outputs[0]}, [ {address} ], {compare}, {value};"
    )
    return _from_registers(assembly.build(assembly.guard(op.predicate) + text), type_)


def _scope(op: Any) -> str:
    return str(op.scope)


def _plain(text: str) -> Callable[[Any], None]:
    """Return the writer of an instruction without operands."""

    def write(op: Any) -> None:
        del op
        _Assembly().build(text)

    return write


def _wgmma(op: ptx.WgmmaOp) -> ir.Value:
    """Write the run as one piece of assembly, so that no move comes between its steps."""
    acc_type = op.sums.type
    fresh = op.acc is None
    if fresh:
        assembly = _Assembly(types=[integer(32)] * emit.registers_of(op.sums), early=True)
    else:
        assembly = _Assembly(_to_registers(op.acc))
    sums = "{ " + ", ".join(assembly.outputs) + " }"
    in_registers = emit.is_vector(op.a.type)
    words = [assembly.operand(word) for word in emit.elements(op.a)] if in_registers else []
    a = "" if in_registers else assembly.operand(op.a)
    b = assembly.operand(op.b)
    steps = list(op.b_steps)
    each = len(words) // len(steps)
    turned = op.types.split(".")[1] in ("f16", "bf16")
    lines = ["{", ".reg .pred on; .reg .b64 da, db;", f"setp.ne.b32 on, {int(not fresh)}, 0;"]
    for number, step in enumerate(steps):
        if in_registers:
            left = "{ " + ", ".join(words[number * each : (number + 1) * each]) + " }"
        else:
            left = "da"
            lines.append(f"add.s64 da, {a}, {op.a_steps[number]};")
        lines.append(f"add.s64 db, {b}, {step};")
        if fresh and number == 1:
            lines.append("setp.ne.b32 on, 1, 0;")
        flags = ["on"]
        if not op.types.startswith("s32"):
            flags += ["1", "1"]
        if turned:
            flags += [] if in_registers else [str(int(op.a_turned))]
            flags.append(str(int(op.b_turned)))
        lines.append(
            f"wgmma.mma_async.sync.aligned.{op.shape}.{op.types} {sums}, {left}, db, "
            f"{', '.join(flags)};"
        )
    lines.append("}")
    return _from_registers(assembly.build("\n\t".join(lines)), acc_type)


def _wgmma_wait(op: ptx.WgmmaWaitOp) -> ir.Value:
    assembly = _Assembly(_to_registers(op.value))
    wait = f"wgmma.wait_group.sync.aligned {op.pending};"
    if op.never is not None:
        # ptxas moves the wait up over arithmetic, but not into another basic block.
        never = assembly.operand(op.never, "b")
        wait = f"{{\n\t@!{never} bra.uni over;\n\tnanosleep.u32 0;\n\tover:\n\t}}\n\t{wait}"
    made = assembly.build(wait)
    return _from_registers(made, op.value.type)


def _anchor(op: ptx.AnchorOp) -> ir.Value:
    return _from_registers(_Assembly(_to_registers(op.value)).build(""), op.value.type)


def _set_registers(op: ptx.SetRegistersOp) -> None:
    way = "dec" if op.fewer else "inc"
    _Assembly().build(f"setmaxnreg.{way}.sync.aligned.u32 {op.count};")


def _mbarrier_init(op: ptx.MbarrierInitOp) -> None:
    assembly = _Assembly()
    barrier = assembly.operand(op.barrier)
    guard = assembly.guard(op.predicate)
    assembly.build(f"{guard}mbarrier.init.shared::cta.b64 [ {barrier} ], {op.count};")


def _mbarrier_inval(op: ptx.MbarrierInvalOp) -> None:
    assembly = _Assembly()
    barrier = assembly.operand(op.barrier)
    guard = assembly.guard(op.predicate)
    assembly.build(f"{guard}mbarrier.inval.shared::cta.b64 [ {barrier} ];")


def _mbarrier_expect(op: ptx.MbarrierExpectOp) -> None:
    assembly = _Assembly()
    barrier = assembly.operand(op.barrier)
    guard = assembly.guard(op.predicate)
    text = f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [ {barrier} ], {op.bytes};"
    assembly.build(guard + text)


def _mbarrier_arrive(op: ptx.MbarrierArriveOp) -> None:
    assembly = _Assembly()
    barrier = assembly.operand(op.barrier)
    if op.block is None:
        guard = assembly.guard(op.predicate)
        assembly.build(f"{guard}mbarrier.arrive.shared::cta.b64 _, [ {barrier} ];")
        return
    block, guard = assembly.operand(op.block), assembly.guard(op.predicate)
    # No `.release.cluster`: ptxas makes fences of the whole chip of it, before each arrival.
    lines = [
        "{",
        ".reg .b32 there;",
        f"mapa.shared::cluster.u32 there, {barrier}, {block};",
        f"{guard}mbarrier.arrive.shared::cluster.b64 _, [ there ];",
        "}",
    ]
    assembly.build("\n\t".join(lines))


def _mbarrier_wait(op: ptx.MbarrierWaitOp) -> None:
    """Write the loop around try_wait, which gives up after a time that the hardware chooses."""
    assembly = _Assembly()
    barrier, parity = assembly.operand(op.barrier), assembly.operand(op.parity)
    lines = [
        "{",
        ".reg .pred done;",
        "again:",
        f"mbarrier.try_wait.parity.shared::cta.b64 done, [ {barrier} ], {parity};",
        "@!done bra.uni again;",
        "}",
    ]
    assembly.build("\n\t".join(lines))


def _tensor_load(op: ptx.TensorLoadOp) -> None:
    destination, barrier, predicate, map_, *indices = op.parts
    assembly = _Assembly()
    to, by, source = (assembly.operand(one) for one in (destination, barrier, map_))
    place = ", ".join(assembly.operand(one) for one in indices)
    how, blocks = "", ""
    if op.blocks:
        how = ".multicast::cluster"
        blocks = f", {assembly.operand(emit.constant(integer(16), op.blocks))}"
    guard = assembly.guard(predicate)
    assembly.build(
        f"{guard}cp.async.bulk.tensor.{len(indices)}d.shared::cluster.global.tile"
        f".mbarrier::complete_tx::bytes{how} [ {to} ], [ {source}, {{ {place} }} ], "
        f"[ {by} ]{blocks};"
    )


def _tensor_store(op: ptx.TensorStoreOp) -> None:
    source, predicate, map_, *indices = op.parts
    assembly = _Assembly()
    taken, to = (assembly.operand(one) for one in (source, map_))
    place = ", ".join(assembly.operand(one) for one in indices)
    guard = assembly.guard(predicate)
    what, how = ("cp.reduce", ".add") if op.adds else ("cp", "")
    assembly.build(
        f"{guard}{what}.async.bulk.tensor.{len(indices)}d.global.shared::cta{how}.tile.bulk_group "
        f"[ {to}, {{ {place} }} ], [ {taken} ];"
    )


def _bulk_commit(op: ptx.BulkCommitOp) -> None:
    assembly = _Assembly()
    assembly.build(f"{assembly.guard(op.predicate)}cp.async.bulk.commit_group;")


def _bulk_wait(op: ptx.BulkWaitOp) -> None:
    assembly = _Assembly()
    read = ".read" if op.read else ""
    guard = assembly.guard(op.predicate)
    assembly.build(f"{guard}cp.async.bulk.wait_group{read} {op.pending};")


def _proxy_fence(op: ptx.ProxyFenceOp) -> None:
    space = ".shared::cta" if op.memory == "shared" else ""
    _Assembly().build(f"fence.proxy.async{space};")


_WRITERS: dict[str, Callable[[Any], ir.Value | None]] = {
    "ptx.load": _load,
    "ptx.store": _store,
    "ptx.atom": _atom,
    "ptx.red": _red,
    "ptx.cas": _cas,
    "ptx.proxy_fence": _proxy_fence,
    "ptx.wgmma_fence": _plain("wgmma.fence.sync.aligned;"),
    "ptx.wgmma": _wgmma,
    "ptx.wgmma_commit": _plain("wgmma.commit_group.sync.aligned;"),
    "ptx.wgmma_wait": _wgmma_wait,
    "ptx.anchor": _anchor,
    "ptx.launch_dependents": _plain("griddepcontrol.launch_dependents;"),
    "ptx.grid_wait": _plain("griddepcontrol.wait;"),
    "ptx.set_registers": _set_registers,
    "ptx.mbarrier_init": _mbarrier_init,
    "ptx.mbarrier_fence": _plain("fence.mbarrier_init.release.cluster;"),
    "ptx.mbarrier_inval": _mbarrier_inval,
    "ptx.mbarrier_expect": _mbarrier_expect,
    "ptx.mbarrier_arrive": _mbarrier_arrive,
    "ptx.mbarrier_wait": _mbarrier_wait,
    "ptx.tensor_load": _tensor_load,
    "ptx.tensor_store": _tensor_store,
    "ptx.bulk_commit": _bulk_commit,
    "ptx.bulk_wait": _bulk_wait,
}
