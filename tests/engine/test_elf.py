"""The reader of object files: what it lays out, and everything that it must not let through."""

from __future__ import annotations

import ctypes
import platform
import struct

import llvmlite.binding as llvm
import pytest

from rerank_engine.codegen.assembly import compile_assembly
from rerank_engine.codegen.elf import flatten
from rerank_engine.codegen.target import host_target, named_target
from rerank_engine.errors import CompileError
from rerank_engine.image import ExecutableMemory

HOST = host_target()
SINE = """
declare float @llvm.sin.f32(float)
define float @entry(float %value) {
  %sine = call float @llvm.sin.f32(float %value)
  ret float %sine
}
"""
CONSTANTS = """
@numbers = internal constant [3 x i64] [i64 5, i64 70, i64 900], align 64
define i64 @helper(i64 %x) noinline {
  %y = mul i64 %x, 3
  ret i64 %y
}
define i64 @entry(i64 %index) {
  %place = getelementptr [3 x i64], ptr @numbers, i64 0, i64 %index
  %number = load i64, ptr %place
  %result = call i64 @helper(i64 %number)
  ret i64 %result
}
"""


def module(body: str, triple: str = HOST.triple) -> str:
    return f'target triple = "{triple}"\n{body}'


def test_constants_and_calls_are_relocated() -> None:
    flat = compile_assembly(module(CONSTANTS), HOST, "entry")
    memory = ExecutableMemory(flat.code)
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(memory.address + flat.entries["entry"])
    assert [call(index) for index in range(3)] == [15, 210, 2700]


@pytest.mark.parametrize("cpu", ["x86-64-v2", "x86-64-v4", "cortex-a76", "apple-m1"])
def test_sections_are_aligned_on_every_target(cpu: str) -> None:
    target = named_target(cpu)
    flat = compile_assembly(module(CONSTANTS, target.triple), target, "entry")
    place = flat.code.index(struct.pack("<3q", 5, 70, 900))
    assert place % 64 == 0
    assert 0 <= flat.entries["entry"] < len(flat.code)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (
            "declare i32 @getpid()\ndefine i32 @entry() {\n %p = call i32 @getpid()\n ret i32 %p\n}",
            "external symbol 'getpid'",
        ),
        ("@x = external global i64\ndefine ptr @entry() {\n ret ptr @x\n}", "external symbol 'x'"),
        (
            "@x = internal global i64 3\ndefine void @entry(i64 %v) {\n store volatile i64 %v, ptr @x\n ret void\n}",
            "writable section",
        ),
        (
            "@x = internal global i64 0\ndefine void @entry(i64 %v) {\n store volatile i64 %v, ptr @x\n ret void\n}",
            "writable section",
        ),
        (
            SINE,
            "external symbol 'sinf'",
        ),
        (
            "@x = thread_local global i64 3\ndefine ptr @entry() {\n ret ptr @x\n}",
            "writable section|not position-independent|external",
        ),
        ("define i32 @other() {\n ret i32 0\n}", "no function 'entry'"),
    ],
)
@pytest.mark.parametrize("cpu", ["x86-64-v2", "cortex-a76"])
def test_what_needs_something_from_outside_is_refused(cpu: str, body: str, why: str) -> None:
    target = named_target(cpu)
    with pytest.raises(CompileError, match=why):
        compile_assembly(module(body, target.triple), target, "entry")


def test_an_address_in_a_table_is_refused() -> None:
    """It would hold only at one place in memory."""
    body = """
@table = internal constant [2 x ptr] [ptr @one, ptr @two]
define i32 @one() {
  ret i32 1
}
define i32 @two() {
  ret i32 2
}
define ptr @entry(i64 %i) {
  %place = getelementptr [2 x ptr], ptr @table, i64 0, i64 %i
  %function = load volatile ptr, ptr %place
  ret ptr %function
}
"""
    with pytest.raises(CompileError, match="is not position-independent"):
        compile_assembly(module(body), HOST, "entry")


@pytest.mark.parametrize("body", ["define i32 @entry( {", "define i32 @entry() {\n ret i64 0\n}"])
def test_broken_assembly_is_a_compile_error(body: str) -> None:
    with pytest.raises(CompileError, match="LLVM refused the generated code"):
        compile_assembly(module(body), HOST, "entry")


def object_file(cpu: str) -> bytes:
    target = named_target(cpu)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    parsed = llvm.parse_assembly(module(CONSTANTS, target.triple))
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, reloc="pic", codemodel="small"
    )
    return bytes(machine.emit_object(parsed))


def test_an_x86_displacement_points_at_its_constant() -> None:
    flat = flatten(object_file("x86-64"), "entry")
    place = flat.code.index(struct.pack("<3q", 5, 70, 900))
    ends = range(4, place)
    assert place in [end + struct.unpack_from("<i", flat.code, end - 4)[0] for end in ends]


@pytest.mark.parametrize("cpu", ["cortex-a76", "apple-m1"])
def test_an_aarch64_page_pair_points_at_its_constant(cpu: str) -> None:
    """ADRP gives the page, the ADD after it the place in the page."""
    flat = flatten(object_file(cpu), "entry")
    place = flat.code.index(struct.pack("<3q", 5, 70, 900))
    words = struct.unpack_from(f"<{place // 4}I", flat.code)
    found = []
    for index, word in enumerate(words[:-1]):
        if word & 0x9F000000 == 0x90000000:
            pages = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
            adds = [add for add in words[index + 1 : index + 4] if add & 0xFFC00000 == 0x91000000]
            found += [(index * 4 & ~0xFFF) + (pages << 12) + (add >> 10 & 0xFFF) for add in adds[:1]]
    assert found == [place]


def test_other_machines_are_refused() -> None:
    elf = bytearray(object_file("x86-64"))
    struct.pack_into("<H", elf, 18, 243)
    with pytest.raises(CompileError, match=r"relocation \d+ to .* \(machine 243\) is not position-independent"):
        flatten(bytes(elf), "entry")


def test_executable_memory_is_not_writable() -> None:
    flat = compile_assembly(module(CONSTANTS), HOST, "entry")
    memory = ExecutableMemory(flat.code)
    assert memory.size == len(flat.code)
    assert ctypes.string_at(memory.address, memory.size) == flat.code
    if platform.system() == "Linux":
        with open("/proc/self/maps") as maps:  # noqa: PTH123
            line = next(line for line in maps if line.startswith(f"{memory.address:x}-"))
        assert line.split()[1] == "r-xp"
