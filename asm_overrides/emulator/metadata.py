"""Decides how AMDGPU kernel metadata is read, from its YAML text or its MessagePack note.

Only the subset that LLVM writes is understood: mappings, lists and scalars, one to a line.
"""

from __future__ import annotations

import struct
from typing import Any


def from_text(text: str) -> list[dict[str, Any]]:
    """Entries of amdhsa.kernels in assembler text; empty if it has no metadata."""
    start = text.find(".amdgpu_metadata")
    end = text.find(".end_amdgpu_metadata")
    if start < 0 or end < 0:
        return []
    lines = [
        line for line in text[start:end].splitlines()[1:] if line.strip() not in ("", "---", "...")
    ]
    value, _ = _yaml_block(lines, 0, 0)
    return list(value.get("amdhsa.kernels", [])) if isinstance(value, dict) else []


def from_note(note: bytes) -> list[dict[str, Any]]:
    """Entries of amdhsa.kernels in a code object's metadata note."""
    if not note:
        return []
    value, _ = _message_pack(note, 0)
    return list(value.get("amdhsa.kernels", []))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _yaml_block(lines: list[str], place: int, indent: int) -> tuple[Any, int]:
    """The mapping or list whose lines start at `indent`; returns it and the next line."""
    if lines[place].lstrip().startswith("- "):
        items = []
        while place < len(lines) and _indent(lines[place]) == indent:
            if not lines[place].lstrip().startswith("-"):
                break
            rest = lines[place].lstrip()[1:]
            inner = indent + 1 + len(rest) - len(rest.lstrip(" "))
            if ":" in rest and not rest.strip().startswith(("'", '"')):
                lines[place] = " " * inner + rest.strip()
                item, place = _yaml_block(lines, place, inner)
            else:
                item, place = _scalar(rest.strip()), place + 1
            items.append(item)
        return items, place
    mapping: dict[str, Any] = {}
    while place < len(lines) and _indent(lines[place]) == indent:
        line = lines[place].strip()
        if line.startswith("- "):
            break
        key, _, value = line.partition(":")
        place += 1
        if value.strip():
            mapping[key.strip()] = _scalar(value.strip())
        elif place < len(lines) and (
            _indent(lines[place]) > indent or lines[place].lstrip().startswith("- ")
        ):
            mapping[key.strip()], place = _yaml_block(lines, place, _indent(lines[place]))
        else:
            mapping[key.strip()] = None
    return mapping, place


def _scalar(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if text in ("[]", "{}"):
        return [] if text == "[]" else {}
    if text[:1] in "'\"":
        return text[1:-1]
    try:
        return int(text, 0)
    except ValueError:
        return text


_FIXED = {0xCC: "B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: "b", 0xD1: ">h", 0xD2: ">i"}
_FIXED |= {0xD3: ">q", 0xCA: ">f", 0xCB: ">d"}
_SIZED = {0xD9: "B", 0xDA: ">H", 0xDB: ">I", 0xC4: "B", 0xC5: ">H", 0xC6: ">I"}
_SIZED |= {0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}


def _message_pack(data: bytes, place: int) -> tuple[Any, int]:
    """The MessagePack value at `place`, and the place after it."""
    head = data[place]
    place += 1
    if head < 0x80 or head >= 0xE0:
        return (head if head < 0x80 else head - 256), place
    if head in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[head], place
    if head in _FIXED:
        (value,) = struct.unpack_from(_FIXED[head], data, place)
        return value, place + struct.calcsize(_FIXED[head])
    if head in _SIZED:
        (length,) = struct.unpack_from(_SIZED[head], data, place)
        place += struct.calcsize(_SIZED[head])
    elif head < 0xA0:
        length = head & 0x0F
    elif head < 0xC0:
        length = head & 0x1F
    else:
        raise ValueError(f"metadata holds MessagePack type {head:#x}, which LLVM does not write")
    if head < 0x90 or head in (0xDE, 0xDF):
        return _pairs(data, place, length)
    if head < 0xA0 or head in (0xDC, 0xDD):
        items = []
        for _ in range(length):
            item, place = _message_pack(data, place)
            items.append(item)
        return items, place
    body = data[place : place + length]
    is_bytes = head in (0xC4, 0xC5, 0xC6)
    return (body if is_bytes else body.decode()), place + length


def _pairs(data: bytes, place: int, length: int) -> tuple[dict[str, Any], int]:
    mapping: dict[str, Any] = {}
    for _ in range(length):
        key, place = _message_pack(data, place)
        mapping[str(key)], place = _message_pack(data, place)
    return mapping, place
