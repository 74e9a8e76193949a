"""The stored form of machine code: written atomically, verified by hash, mapped. Needs no compiler and no model.

File layout: 16 bytes of magic and version, lengths of meta, code and data (3 x uint64), SHA-256 of all that follows,
the meta as JSON, the code, zeros up to a multiple of 64 bytes, the data.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import mmap
import os
import platform
import stat
import struct
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from rerank_engine.errors import CompileError, ModelFileError

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = b"\x89RERANK-IMAGE\r\n\x02"
_HEADER = struct.Struct("<16sQQQ32s")
_ALIGNMENT = 64


class Image(NamedTuple):
    """Machine code, the constants that it reads, and what its caller must know.

    Attributes
    ----------
    code
        Flat and position-independent; to be placed at a page boundary.
    meta
        Entry offsets, sizes, target, steps and interface, as written by the compiler.
    data
        Packed constants, 64-byte aligned; a view of the mapped file where the image was read.
    """

    code: bytes
    meta: dict[str, Any]
    data: memoryview

    def write(self, path: Path, *, private: bool = True) -> None:
        """Store the image, never seen half written; by default readable by its owner only."""
        meta = json.dumps(self.meta, sort_keys=True).encode()
        gap = bytes(-(_HEADER.size + len(meta) + len(self.code)) % _ALIGNMENT)
        digest = hashlib.sha256(meta + self.code + gap)
        digest.update(self.data)
        path.parent.mkdir(parents=True, exist_ok=True)
        from rerank_engine.files import write_atomically

        header = _HEADER.pack(MAGIC, len(meta), len(self.code), self.data.nbytes, digest.digest())
        write_atomically(path, [header, meta, self.code, gap, self.data], private=private)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Image:
        """Map a stored image.

        Raises
        ------
        ModelFileError
            It is damaged, not an image, or belongs to another user.
        """
        with open(path, "rb") as file:  # noqa: PTH123 -- pathlib is slow to import
            status = os.fstat(file.fileno())
            if hasattr(os, "getuid") and status.st_uid not in (os.getuid(), 0):
                raise ModelFileError(f"image {path} belongs to user {status.st_uid}, not to this one: not executed")
            if os.name == "posix" and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ModelFileError(f"image {path} may be written by others: not executed; chmod 600 it")
            if status.st_size < _HEADER.size:
                raise ModelFileError(f"image {path} is truncated: {status.st_size} bytes")
            raw = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        magic, meta_size, code_size, data_size, digest = _HEADER.unpack_from(raw)
        if magic != MAGIC:
            raise ModelFileError(f"{path} is not an image of this version")
        body = raw[_HEADER.size :]
        code_end = meta_size + code_size
        start = code_end + -(_HEADER.size + code_end) % _ALIGNMENT
        if len(body) != start + data_size or hashlib.sha256(body).digest() != digest:
            raise ModelFileError(f"image {path} is damaged: its hash does not match")
        return cls(bytes(body[meta_size:code_end]), json.loads(bytes(body[:meta_size])), body[start:])


class ExecutableMemory:
    """Machine code in memory that may be executed and not written.

    The bytes are copied before they are made executable, so what was verified is what runs.

    Raises
    ------
    CompileError
        The system forbids executable memory.
    """

    def __init__(self, code: bytes) -> None:
        self.size = len(code)
        try:
            self.address = _map_windows(code) if sys.platform == "win32" else self._map_posix(code)
        except (OSError, AttributeError, ValueError) as error:
            raise CompileError(f"this system does not let the process run generated code: {error}") from error

    def _map_posix(self, code: bytes) -> int:
        apple = sys.platform == "darwin" and platform.machine() == "arm64"
        map_jit = 0x0800 if apple else 0
        protection = mmap.PROT_READ | mmap.PROT_WRITE | (mmap.PROT_EXEC if apple else 0)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | map_jit
        self._memory = mmap.mmap(-1, len(code), flags=flags, prot=protection)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        libc = ctypes.CDLL(None, use_errno=True)
        if apple:
            libc.pthread_jit_write_protect_np(0)
            ctypes.memmove(address, code, len(code))
            libc.pthread_jit_write_protect_np(1)
            libc.sys_icache_invalidate(ctypes.c_void_p(address), ctypes.c_size_t(len(code)))
            return address
        ctypes.memmove(address, code, len(code))
        if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(code)), mmap.PROT_READ | mmap.PROT_EXEC):
            raise OSError(ctypes.get_errno(), "mprotect refused PROT_EXEC")
        if platform.machine() == "aarch64":
            clear = ctypes.CDLL("libgcc_s.so.1").__clear_cache
            clear(ctypes.c_void_p(address), ctypes.c_void_p(address + len(code)))
        return address


def _map_windows(code: bytes) -> int:
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    kernel.VirtualAlloc.restype = ctypes.c_void_p
    address = kernel.VirtualAlloc(None, ctypes.c_size_t(len(code)), 0x3000, 0x04)
    if not address:
        raise OSError("VirtualAlloc failed")
    ctypes.memmove(address, code, len(code))
    before = ctypes.c_uint32()
    if not kernel.VirtualProtect(ctypes.c_void_p(address), ctypes.c_size_t(len(code)), 0x20, ctypes.byref(before)):
        raise OSError("VirtualProtect refused PAGE_EXECUTE_READ")
    kernel.FlushInstructionCache(kernel.GetCurrentProcess(), ctypes.c_void_p(address), ctypes.c_size_t(len(code)))
    return int(address)
