"""Decides where things lie in an AMDGPU ELF code object; does not interpret what it finds."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

_EM_AMDGPU = 224
_SHT_SYMTAB, _SHT_NOBITS, _SHT_NOTE, _SHT_DYNSYM = 2, 8, 7, 11
_SHF_ALLOC = 2
_NT_AMDGPU_METADATA = 32


@dataclass(slots=True)
class Image:
    """Sections and symbols of a code object.

    Attributes:
        symbols: name -> address.
        note: the metadata note's MessagePack bytes, empty if there is none.
    """

    symbols: dict[str, int] = field(default_factory=dict)
    note: bytes = b""
    _sections: list[tuple[int, bytes]] = field(default_factory=list)

    def read(self, address: int, size: int) -> bytes:
        """Bytes of the section that holds an address."""
        for base, data in self._sections:
            if base <= address and address + size <= base + len(data):
                return data[address - base : address - base + size]
        raise ValueError(f"no section holds {size} bytes at {address:#x}")


def parse(data: bytes) -> Image:
    """Image of a linked or relocatable 64-bit little-endian AMDGPU ELF file.

    In a relocatable file, addresses are offsets in their section; only linked ones load reliably.
    """
    if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", data, 18)[0] != _EM_AMDGPU:
        raise ValueError("not an AMDGPU code object (64-bit ELF, machine 224)")
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + size * i) for i in range(count)]
    image = Image()
    for _, kind, flags, address, offset, length, link, _, _, entry in headers:
        body = b"" if kind == _SHT_NOBITS else data[offset : offset + length]
        if flags & _SHF_ALLOC and body:
            image._sections.append((address, body))
        if kind in (_SHT_SYMTAB, _SHT_DYNSYM):
            strings = headers[link]
            names = data[strings[4] : strings[4] + strings[5]]
            for place in range(0, length, entry):
                name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", body, place)
                text = names[name : names.index(b"\0", name)].decode()
                if text:
                    image.symbols[text] = value
        if kind == _SHT_NOTE:
            image.note = image.note or _metadata_note(body)
    return image


def _metadata_note(body: bytes) -> bytes:
    place = 0
    while place + 12 <= len(body):
        name_size, size, kind = struct.unpack_from("<III", body, place)
        start = place + 12 + -(-name_size // 4) * 4
        if kind == _NT_AMDGPU_METADATA and body[place + 12 : place + 18] == b"AMDGPU":
            return body[start : start + size]
        place = start + -(-size // 4) * 4
    return b""
