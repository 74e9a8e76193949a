"""The stored form of machine code: written atomically, verified by hash, mapped. Needs no compiler and no model.

File layout: 16 bytes of magic and version, lengths of meta, code and data (3 x uint64), a hash of all that follows (32
bytes), the meta as JSON, the code, zeros up to a multiple of 64 bytes, the data.

The hash is BLAKE2b of the lengths, meta and code, and of what stands for the data: for each whole block of 64 KiB the
sums, modulo 2**64, of each of its 128 columns of 64-bit words, then the rest as it is. Nothing gets into the code by
chance or design; of the constants, every change of one word and, but for one case in 2**64, of more words is noticed
(that two rows of 1 KiB change places is not). Reading 6 MB takes 0.7 ms; a CRC-32 takes 2.7, SHA-256 5.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import stat
import struct
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

try:  # hashlib loads OpenSSL as well, which takes 3 ms of a start of 5
    from _blake2 import blake2b
except ImportError:  # another interpreter than CPython
    from hashlib import blake2b

from rerank_engine.errors import CompileError, ModelFileError
from rerank_engine.records import Record

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = b"\x89RERANK-IMAGE\r\n\x03"
_SIZES = struct.Struct("<QQQ")
_DIGEST_SIZE = 32
_HEADER_SIZE = len(MAGIC) + _SIZES.size + _DIGEST_SIZE
_BLOCK = (64, 128)
"""Rows and columns of 64-bit words."""
_ALIGNMENT = 64


class Image(Record):
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
        gap = bytes(-(_HEADER_SIZE + len(meta) + len(self.code)) % _ALIGNMENT)
        sizes = _SIZES.pack(len(meta), len(self.code), self.data.nbytes)
        digest = _digest(sizes, meta + self.code + gap, self.data)
        path.parent.mkdir(parents=True, exist_ok=True)
        from rerank_engine.files import write_atomically

        write_atomically(path, [MAGIC, sizes, digest, meta, self.code, gap, self.data], private=private)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Image:
        """Map a stored image.

        Raises
        ------
        ModelFileError
            It is damaged, not an image, or belongs to another user.
        """
        # Before opening: a named pipe would wait for its writer.
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 -- pathlib is slow to import
            raise ModelFileError(f"image {path} is no regular file")
        with open(path, "rb") as file:  # noqa: PTH123
            status = os.fstat(file.fileno())
            if hasattr(os, "getuid") and status.st_uid not in (os.getuid(), 0):
                raise ModelFileError(f"image {path} belongs to user {status.st_uid}, not to this one: not executed")
            if os.name == "posix" and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ModelFileError(f"image {path} may be written by others: not executed; chmod 600 it")
            if status.st_size < _HEADER_SIZE:
                raise ModelFileError(f"image {path} is truncated: {status.st_size} bytes")
            raw = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if raw[: len(MAGIC)] != MAGIC:
            raise ModelFileError(f"{path} is not an image of this version")
        meta_size, code_size, data_size = _SIZES.unpack_from(raw, len(MAGIC))
        meta_end = _HEADER_SIZE + meta_size
        code_end = meta_end + code_size
        start = code_end + -code_end % _ALIGNMENT
        if len(raw) != start + data_size:
            raise ModelFileError(f"image {path} is damaged: {len(raw)} bytes where {start + data_size} are stated")
        sizes, digest = raw[len(MAGIC) : _HEADER_SIZE - _DIGEST_SIZE], raw[_HEADER_SIZE - _DIGEST_SIZE : _HEADER_SIZE]
        if _digest(sizes, raw[_HEADER_SIZE:start], raw[start:]) != digest:
            raise ModelFileError(f"image {path} is damaged: its hash does not match")
        return cls(bytes(raw[meta_end:code_end]), json.loads(bytes(raw[_HEADER_SIZE:meta_end])), raw[start:])


def _digest(sizes: bytes | memoryview, code: bytes | memoryview, data: memoryview) -> bytes:
    """The hash of an image, see the head of this file; ``code`` has the meta before it and the gap behind it."""
    found = blake2b(sizes, digest_size=_DIGEST_SIZE)
    found.update(code)
    block = 8 * _BLOCK[0] * _BLOCK[1]
    whole = len(data) // block
    words = np.frombuffer(data, "<u8", whole * block // 8).reshape(whole, *_BLOCK)
    found.update(np.add.reduce(words, axis=1))
    found.update(data[whole * block :])
    return found.digest()


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
        libc = ctypes.pythonapi  # has every function of the process, and is open
        if apple:
            libc.pthread_jit_write_protect_np(0)
            ctypes.memmove(address, code, len(code))
            libc.pthread_jit_write_protect_np(1)
            libc.sys_icache_invalidate(ctypes.c_void_p(address), ctypes.c_size_t(len(code)))
            return address
        ctypes.memmove(address, code, len(code))
        if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(code)), mmap.PROT_READ | mmap.PROT_EXEC):
            raise OSError("mprotect refused PROT_EXEC")
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
