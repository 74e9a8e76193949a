"""An ELF object becomes a flat image: sections side by side, relocated, position-independent, nothing external.

Only what LLVM emits for a self-contained function is understood; an external symbol, a writable section or an
absolute address is refused by name.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from rerank_engine.errors import CompileError

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_SHT_NOBITS, _SHT_SYMTAB, _SHT_RELA = 8, 2, 4
_SHF_WRITE, _SHF_ALLOC = 1, 2
_SECTION_ALIGNMENT = 64
_X86_64, _AARCH64 = 62, 183


@dataclass(frozen=True)
class FlatImage:
    """Machine code without any dependency.

    Attributes
    ----------
    code
        To be placed at a page boundary.
    entries
        Byte offsets of the entry functions.
    """

    code: bytes
    entries: dict[str, int]


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


def flatten(elf: bytes, *entries: str) -> FlatImage:
    """Lay out an ELF64 object for some entry functions.

    Raises
    ------
    CompileError
        The object needs something from outside, or uses a relocation that is not understood.
    """
    machine = struct.unpack_from("<H", elf, 18)[0]
    sections = _read_sections(elf)
    places: dict[int, int] = {}
    image = bytearray()
    for index, section in enumerate(sections):
        if not section.flags & _SHF_ALLOC or section.name.startswith((".eh_frame", ".note")) or not section.size:
            continue
        if section.flags & _SHF_WRITE and section.name != ".data.rel.ro":
            raise CompileError(f"the object has a writable section {section.name!r}")
        image += bytes(-len(image) % max(section.alignment, _SECTION_ALIGNMENT))
        places[index] = len(image)
        image += bytes(section.size) if section.kind == _SHT_NOBITS else elf[section.offset :][: section.size]
    symbols = _read_symbols(elf, sections)
    for section in sections:
        if section.kind != _SHT_RELA or section.info not in places:
            continue
        for position in range(section.offset, section.offset + section.size, _RELOCATION.size):
            offset, info, addend = _RELOCATION.unpack_from(elf, position)
            name, home, value = symbols[info >> 32]
            if home not in places:
                raise CompileError(f"the object needs the external symbol {name!r}")
            _apply(
                image,
                machine,
                info & 0xFFFFFFFF,
                places[section.info] + offset,
                places[home] + value + addend,
                name,
            )
    found = {name: places[home] + value for name, home, value in symbols if name in entries and home in places}
    for entry in entries:
        if entry not in found:
            raise CompileError(f"the object has no function {entry!r}")
    return FlatImage(bytes(image), found)


def _read_sections(elf: bytes) -> list[_Section]:
    table, count, names = (
        struct.unpack_from("<Q", elf, 40)[0],
        struct.unpack_from("<H", elf, 60)[0],
        struct.unpack_from("<H", elf, 62)[0],
    )
    raw = [_SECTION.unpack_from(elf, table + index * _SECTION.size) for index in range(count)]
    strings = raw[names][4]
    return [
        _Section(_text(elf, strings + name), kind, flags, offset, size, link, info, alignment)
        for name, kind, flags, _address, offset, size, link, info, alignment, _entry_size in raw
    ]


def _read_symbols(elf: bytes, sections: list[_Section]) -> list[tuple[str, int, int]]:
    table = next(section for section in sections if section.kind == _SHT_SYMTAB)
    strings = sections[table.link].offset
    symbols = []
    for position in range(table.offset, table.offset + table.size, _SYMBOL.size):
        name, _info, _other, home, value, _size = _SYMBOL.unpack_from(elf, position)
        symbols.append((_text(elf, strings + name), home, value))
    return symbols


def _text(elf: bytes, start: int) -> str:
    return elf[start : elf.index(b"\0", start)].decode()


def _apply(image: bytearray, machine: int, kind: int, place: int, target: int, name: str) -> None:
    delta = target - place
    if machine == _X86_64 and kind in (2, 4):  # PC32, PLT32
        struct.pack_into("<i", image, place, delta)
    elif machine == _X86_64 and kind == 24:  # PC64
        struct.pack_into("<q", image, place, delta)
    elif machine == _AARCH64 and kind == 261:  # PREL32
        struct.pack_into("<i", image, place, delta)
    elif machine == _AARCH64 and kind in (282, 283):  # JUMP26, CALL26
        _patch(image, place, 0x03FFFFFF, delta >> 2)
    elif machine == _AARCH64 and kind == 275:  # ADR_PREL_PG_HI21
        pages = (target >> 12) - (place >> 12)
        _patch(image, place, 0x60FFFFE0, ((pages & 3) << 29) | ((pages >> 2 & 0x7FFFF) << 5))
    elif machine == _AARCH64 and kind in _LOW_12_BITS:
        _patch(image, place, 0xFFF << 10, (target & 0xFFF) >> _LOW_12_BITS[kind] << 10)
    else:
        raise CompileError(f"relocation {kind} to {name!r} (machine {machine}) is not position-independent")


# ADD and loads or stores of 1, 2, 4, 8 and 16 bytes: their offsets are counted in units of the access.
_LOW_12_BITS = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}


def _patch(image: bytearray, place: int, mask: int, bits: int) -> None:
    word = struct.unpack_from("<I", image, place)[0]
    struct.pack_into("<I", image, place, (word & ~mask & 0xFFFFFFFF) | (bits & mask))
