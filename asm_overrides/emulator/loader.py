"""Decides how assembly text or a code object becomes a Kernel; does not execute it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from asm_overrides.emulator import elf, metadata
from asm_overrides.emulator.collection import paused_collection
from asm_overrides.emulator.kernel import (
    SCALAR_INPUTS,
    Argument,
    Descriptor,
    Kernel,
    descriptor_from_bytes,
    mode_bits,
)
from asm_overrides.isa.parse import Program, parse

TARGET = "gfx950"
_PRELOAD_BYTES_LOG2 = 8


class LoadError(ValueError):
    """The text or code object holds no kernel that can be loaded."""


def load_text(text: str, name: str | None = None) -> Kernel:
    """Kernel of assembler text such as Triton's asm["amdgcn"].

    Args:
        name: which kernel, where the text holds several; the only one by default.
    Raises:
        ParseError: the text is not gfx950 assembly.
        LoadError: no kernel, or several and no name.
    """
    with paused_collection():
        program = parse(text)
    directives = _amdhsa_directives(program)
    if not directives:
        raise LoadError("the text has no .amdhsa_kernel: kernels from assembler output have one")
    chosen = _choose(name, list(directives))
    if chosen not in program.labels:
        raise LoadError(f"kernel {chosen} has a descriptor and no label")
    descriptor = _descriptor_from_directives(directives[chosen])
    start = program.labels[chosen]
    entry = start
    if descriptor.preload_dwords:
        after = [
            index
            for index, exponent in program.aligned.items()
            if index > start and exponent >= _PRELOAD_BYTES_LOG2
        ]
        if not after:
            raise LoadError(f"kernel {chosen} preloads arguments but has no entry at +256 bytes")
        entry = min(after)
    return _kernel(chosen, program, descriptor, metadata.from_text(text), start, entry)


_NEED = "code objects need llvm-objdump (LLVM 20 or later)"


def load_code_object(data: bytes, name: str | None = None, objdump: str | None = None) -> Kernel:
    """Kernel of an ELF code object (hsaco), disassembled by llvm-objdump.

    Args:
        name: which kernel, where the object holds several; the only one by default.
        objdump: path of an llvm-objdump that knows gfx950; found on PATH by default.
    Raises:
        LoadError: not an AMDGPU code object, no kernel, several and no name, no llvm-objdump.
    """
    image = elf.parse(data)
    names = [symbol[:-3] for symbol in image.symbols if symbol.endswith(".kd")]
    chosen = _choose(name, names)
    place = image.symbols[f"{chosen}.kd"]
    descriptor, offset = descriptor_from_bytes(image.read(place, 64))
    listing = _disassemble(data, objdump or find_objdump())
    with paused_collection():
        program = parse(listing)
    by_address = {
        instruction.address: index for index, instruction in enumerate(program.instructions)
    }
    start_address = place + offset
    entry_address = start_address + (256 if descriptor.preload_dwords else 0)
    for address in (start_address, entry_address):
        if address not in by_address:
            raise LoadError(f"kernel {chosen}: no instruction at its entry {address:#x}")
    return _kernel(
        chosen,
        program,
        descriptor,
        metadata.from_note(image.note),
        by_address[start_address],
        by_address[entry_address],
    )


def _kernel(
    name: str,
    program: Program,
    descriptor: Descriptor,
    kernels: list[dict[str, Any]],
    start: int,
    entry: int,
) -> Kernel:
    entries = [each for each in kernels if each.get(".name") == name]
    described = entries[0] if entries else {}
    arguments = [
        Argument(
            int(each[".offset"]),
            int(each[".size"]),
            str(each[".value_kind"]),
            str(each.get(".name", "")),
        )
        for each in described.get(".args", [])
    ]
    workgroup_size = int(described.get(".max_flat_workgroup_size", 0))
    return Kernel(
        name,
        program.instructions,
        program.labels,
        descriptor,
        arguments,
        entry,
        start,
        workgroup_size // 64,
    )


def _choose(name: str | None, names: list[str]) -> str:
    if name is None and len(names) == 1:
        return names[0]
    if name in names:
        return str(name)
    if not names:
        raise LoadError("no kernel found")
    wanted = "none was named" if name is None else f"{name!r} was asked for"
    raise LoadError(f"{wanted}, kernels here: {', '.join(sorted(names))}")


def _amdhsa_directives(program: Program) -> dict[str, dict[str, int]]:
    """Per kernel name, the integer .amdhsa_ settings."""
    kernels: dict[str, dict[str, int]] = {}
    current: dict[str, int] | None = None
    for line, text in program.directives:
        key, _, value = text.partition(" ")
        if "\t" in key:
            key, _, value = text.partition("\t")
        if key == ".amdhsa_kernel":
            current = kernels.setdefault(value.strip(), {})
        elif key == ".end_amdhsa_kernel":
            current = None
        elif key.startswith(".amdhsa_") and current is not None:
            try:
                current[key[len(".amdhsa_") :]] = int(value.strip(), 0)
            except ValueError:
                raise LoadError(f"line {line}: {text!r} is not a number") from None
    return kernels


def _descriptor_from_directives(settings: dict[str, int]) -> Descriptor:
    named = tuple(
        name
        for name, _ in SCALAR_INPUTS
        if settings.get(f"user_sgpr_{name}", 0) and name != "flat_scratch_init"
    )
    return Descriptor(
        lds_bytes=settings.get("group_segment_fixed_size", 0),
        scratch_bytes=settings.get("private_segment_fixed_size", 0),
        kernarg_bytes=settings.get("kernarg_size", 0),
        vgprs=settings.get("next_free_vgpr", 256),
        accum_offset=settings.get("accum_offset", 256),
        sgprs=settings.get("next_free_sgpr", 102),
        user_sgprs=named,
        preload_dwords=settings.get("user_sgpr_kernarg_preload_length", 0),
        preload_offset=settings.get("user_sgpr_kernarg_preload_offset", 0),
        workgroup_ids=(
            bool(settings.get("system_sgpr_workgroup_id_x", 1)),
            bool(settings.get("system_sgpr_workgroup_id_y", 0)),
            bool(settings.get("system_sgpr_workgroup_id_z", 0)),
        ),
        workgroup_info=bool(settings.get("system_sgpr_workgroup_info", 0)),
        workitem_ids=settings.get("system_vgpr_workitem_id", 0),
        mode=mode_bits(
            settings.get("float_round_mode_32", 0),
            settings.get("float_round_mode_16_64", 0),
            settings.get("float_denorm_mode_32", 0),
            settings.get("float_denorm_mode_16_64", 3),
            settings.get("dx10_clamp", 1),
            settings.get("ieee_mode", 1),
            settings.get("fp16_overflow", 0),
        ),
    )


def find_objdump() -> str | None:
    """Path of an llvm-objdump that is likely to know gfx950, or None."""
    names = ["llvm-objdump-22", *(f"llvm-objdump-{version}" for version in range(30, 19, -1))]
    for name in (*names, "llvm-objdump"):
        path = shutil.which(name)
        if path:
            return path
    return None


def _disassemble(data: bytes, objdump: str | None) -> str:
    if objdump is None:
        raise LoadError(f"{_NEED} on PATH, or in the folder that ZYFA_LLVM names; none found")
    if shutil.which(objdump) is None:
        raise LoadError(f"{_NEED}; {objdump} is no program")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.hsaco"
        path.write_bytes(data)
        done = subprocess.run(
            [objdump, "-d", f"--mcpu={TARGET}", str(path)], capture_output=True, text=True
        )
    if done.returncode:
        raise LoadError(f"llvm-objdump failed: {' '.join(done.stderr.split())[:300]}")
    return done.stdout
