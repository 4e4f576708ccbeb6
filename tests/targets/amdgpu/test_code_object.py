import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.dialects.diagnostics import CompilerBug
from tiledsl.targets.amdgpu.chips import chip
from tiledsl.targets.amdgpu.code_object import Argument, Decoded, decode, kernels
from tiledsl.targets.amdgpu.link import link
from tiledsl.targets.driver import Resources

from .samples import CHIPS, SCALE, TABLES, compiled


@pytest.mark.parametrize("name", CHIPS)
def test_a_kernels_record_is_the_same_before_and_after_linking(name: str):
    code = compiled(TABLES, name)
    assert kernels(code) == kernels(link(code))
    assert list(kernels(code)) == ["lookup", "second"]


@pytest.mark.parametrize("name", CHIPS)
def test_a_record_holds_arguments_and_resources(name: str):
    kernel = kernels(compiled(SCALE, name))["scale"]
    assert kernel.symbol == "scale.kd"
    assert kernel.arguments == (
        Argument("p", 0, 8, "global_buffer"),
        Argument("n", 8, 4, "by_value"),
        Argument("by", 12, 4, "by_value"),
    )
    assert not any(a.hidden for a in kernel.arguments)
    assert kernel.kernarg_bytes == 16
    assert kernel.max_workgroup == 256
    assert kernel.wave_size == chip(name).wave_size
    assert 1 <= kernel.vgprs <= 8
    assert kernel.resources == Resources(kernel.vgprs, 0, 0, 0, kernel.sgprs)


def test_lds_counts_towards_occupancy():
    kernel = kernels(compiled(TABLES, "gfx942"))["lookup"]
    assert kernel.lds_bytes == 256
    assert kernel.resources.shared_bytes == 256
    assert kernel.occupancy(chip("gfx942"), 256) == 8
    assert kernel.occupancy(chip("gfx942"), 256, dynamic_lds_bytes=32 << 10) == 1
    assert kernel.occupancy(chip("gfx950"), 256, dynamic_lds_bytes=32 << 10) == 4


def test_spills_are_reported():
    values = range(300)
    loads = "\n".join(
        f"%p{i} = getelementptr i32, ptr addrspace(1) %a, i32 {i}\n"
        f"%x{i} = load volatile i32, ptr addrspace(1) %p{i}"
        for i in values
    )
    stores = "\n".join(f"store volatile i32 %x{i}, ptr addrspace(1) %p{i}" for i in values)
    text = f"""
define amdgpu_kernel void @k(ptr addrspace(1) %a) #0 {{
{loads}
{stores}
ret void
}}
attributes #0 = {{ "amdgpu-flat-work-group-size"="1024,1024" }}
"""
    kernel = kernels(compiled(text, "gfx1100"))["k"]
    assert kernel.vgpr_spills > 0
    assert kernel.resources.spill_bytes == 4 * kernel.vgpr_spills
    assert kernel.resources.local_bytes >= 4 * kernel.vgpr_spills


def test_a_file_without_metadata_is_a_compiler_bug():
    empty = compiled("", "gfx942")
    assert kernels(empty) == {}
    without = empty.replace(b"AMDGPU\0", b"NOBODY\0")
    with pytest.raises(CompilerBug, match="has no metadata note"):
        kernels(without)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=20,
)


def encode(value: Decoded) -> bytes:
    """Encode as any writer may: always in the widest form."""
    match value:
        case None:
            return b"\xc0"
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            return struct.pack(">Bq", 0xD3, value) if value < 0 else struct.pack(">BQ", 0xCF, value)
        case float():
            return struct.pack(">Bd", 0xCB, value)
        case str():
            return struct.pack(">BI", 0xDB, len(value.encode())) + value.encode()
        case bytes():
            return struct.pack(">BI", 0xC6, len(value)) + value
        case list():
            return struct.pack(">BI", 0xDD, len(value)) + b"".join(map(encode, value))
        case dict():
            pairs = [encode(k) + encode(v) for k, v in value.items()]
            return struct.pack(">BI", 0xDF, len(value)) + b"".join(pairs)
        case _:
            raise AssertionError(value)


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_every_value_is_decoded_from_its_widest_form(value: Decoded):
    assert json.dumps(decode(encode(value))) == json.dumps(value)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("7f", 127),
        ("ff", -1),
        ("e0", -32),
        ("cc80", 128),
        ("cd0100", 256),
        ("d080", -128),
        ("d18000", -32768),
        ("d280000000", -(2**31)),
        ("ca3fc00000", 1.5),
        ("a3616263", "abc"),
        ("d903616263", "abc"),
        ("da0003616263", "abc"),
        ("c4020102", b"\x01\x02"),
        ("93010203", [1, 2, 3]),
        ("dc0002c2c3", [False, True]),
        ("82a16101a162c0", {"a": 1, "b": None}),
        ("de0001a16100", {"a": 0}),
    ],
)
def test_short_forms_are_decoded(data: str, value: Decoded):
    assert decode(bytes.fromhex(data)) == value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "cut short at byte 0"),
        ("cd01", "cut short at byte 2"),
        ("9201", "cut short at byte 2"),
        ("0101", "ends at byte 1 of 2"),
        ("d40100", "a MessagePack value of type 0xd4"),
    ],
)
def test_what_is_not_one_whole_value_is_a_compiler_bug(data: str, message: str):
    with pytest.raises(CompilerBug, match=message):
        decode(bytes.fromhex(data))
