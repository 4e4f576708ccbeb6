import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledsl.targets.gpu.source_lines import Source, source_lines
from tiledsl.targets.llvm_codegen import Machine, optimize_and_emit

PTX = """\
.version 8.3
.visible .entry k(
	.param .u64 k_param_0
)
{
	ld.param.b64 	%rd1, [k_param_0];
$L__tmp0:
	.loc	1 10 3                          // a.py:10:3
	ld.global.b32 	%r1, [%rd1];
	ld.param.b32 	%r2, [k_param_1];
	.loc	2 11 5, function_name $L__info_string0, inlined_at 1 10 3
	add.s32 	%r3, %r1, %r2;
	.loc	1 0 0
	st.global.b32 	[%rd1], %r3;
	.loc	1 12
	ret;
$L__func_end0:
}
	.file	1 "/home/me/a.py"
	.file	2 "/home/me/b.py"
"""

AMDGCN = """\
k:                                      ; @k
.Lfunc_begin0:
	.file	1 "/home/me" "a.py"
	.loc	1 10 3 prologue_end             ; a.py:10:3
	global_load_dword v3, v[0:1], off
	.file	2 "/elsewhere/b.py" md5 0x0123456789abcdef0123456789abcdef
	.loc	2 11 5 is_stmt 0
	s_waitcnt vmcnt(0)
.Lfunc_end0:
	.size	k, .Lfunc_end0-k
j:
.Lfunc_begin1:
	s_nop 0
	.loc	1 20 1
	s_endpgm
"""


def at(text: str, words: str) -> Source | None:
    """Return the source of the one line that holds `words`."""
    lines = text.splitlines()
    found = source_lines(text)
    assert len(found) == len(lines)
    (index,) = (i for i, line in enumerate(lines) if words in line)
    return found[index]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ld.param.b64", None),
        ("ld.global", Source("/home/me/a.py", 10, 3)),
        ("ld.param.b32", Source("/home/me/a.py", 10, 3)),
        ("add.s32", Source("/home/me/b.py", 11, 5)),
        ("st.global", None),
        ("ret;", Source("/home/me/a.py", 12, 0)),
        (".version", None),
        ("func_end", None),
        ('a.py"', None),
    ],
)
def test_an_instruction_of_ptx_has_the_place_of_the_last_directive(
    words: str, expected: Source | None
):
    assert at(PTX, words) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("global_load", Source("/home/me/a.py", 10, 3)),
        ("s_waitcnt", Source("/elsewhere/b.py", 11, 5)),
        (".size", None),
        ("s_nop", None),
        ("s_endpgm", Source("/home/me/a.py", 20, 1)),
    ],
)
def test_an_instruction_of_amdgpu_assembly_has_the_place_of_the_last_directive(
    words: str, expected: Source | None
):
    assert at(AMDGCN, words) == expected


def test_a_directive_has_the_place_that_it_gives():
    assert at(PTX, ".loc	1 10 3") == Source("/home/me/a.py", 10, 3)


def test_a_position_ends_where_the_next_function_begins():
    text = '\t.loc\t1 3 1\n\tret;\n}\n.visible .entry j()\n{\n\tret;\n}\n\t.file\t1 "a"\n'
    assert source_lines(text)[1] == Source("a", 3, 1)
    assert source_lines(text)[5] is None


def test_a_file_that_the_text_does_not_name_is_no_place():
    assert source_lines("\t.loc\t7 3 1\n\tret;\n") == [None, None]


def test_text_without_directives_has_no_places():
    assert source_lines('\t.file\t"only a name"\n\tret;\n\n') == [None, None, None]


IR = """
define void @k(ptr addrspace(1) %p) !dbg !5 {
  store i32 1, ptr addrspace(1) %p, !dbg !8
  ret void, !dbg !8
}
!llvm.dbg.cu = !{!0}
!llvm.module.flags = !{!2}
!0 = distinct !DICompileUnit(language: DW_LANG_C, file: !1, emissionKind: DebugDirectivesOnly)
!1 = !DIFile(filename: "NAME", directory: "/home/me")
!2 = !{i32 2, !"Debug Info Version", i32 3}
!5 = distinct !DISubprogram(name: "k", scope: !1, file: !1, line: 1, type: !6, unit: !0,
  spFlags: DISPFlagDefinition)
!6 = !DISubroutineType(types: !7)
!7 = !{}
!8 = !DILocation(line: 14, column: 11, scope: !5)
"""


@settings(max_examples=20, deadline=None)
@given(st.text(st.characters(exclude_characters="\0/", codec="utf-8"), min_size=1))
def test_any_name_that_llvm_writes_is_read_back(name: str):
    escaped = "".join(f"\\{byte:02x}" for byte in name.encode())
    for machine, store in (
        (Machine("nvptx64-nvidia-cuda", "sm_90a", "+ptx83"), "st.global"),
        (Machine("amdgcn-amd-amdhsa", "gfx942"), "global_store"),
    ):
        assembly = optimize_and_emit(IR.replace("NAME", escaped), machine).assembly
        assert assembly is not None
        assert at(assembly, store) == Source(f"/home/me/{name}", 14, 11)
