"""Decides what is known of a kernel besides its code (descriptor, arguments); loads nothing."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from asm_overrides.isa.instruction import Instruction

SCALAR_INPUTS = (
    ("private_segment_buffer", 4),
    ("dispatch_ptr", 2),
    ("queue_ptr", 2),
    ("kernarg_segment_ptr", 2),
    ("dispatch_id", 2),
    ("flat_scratch_init", 2),
    ("private_segment_size", 1),
)
"""User SGPRs that a launch can preload, in hardware order, with their dwords."""

MODE_FP16_OVERFLOW = 1 << 23


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What a kernel descriptor (.amdhsa_*) tells the hardware.

    Attributes:
        lds_bytes: static LDS; scratch_bytes: private memory of a lane.
        vgprs: all vector registers, AGPRs included; accum_offset: VGPRs before the first AGPR.
        user_sgprs: names of SCALAR_INPUTS that are preloaded.
        preload_dwords, preload_offset: kernel argument dwords preloaded after them.
        workgroup_ids: which of x, y, z follow in SGPRs.
        workitem_ids: 0, 1 or 2: x, xy or xyz in v0 (packed, 10 bits each).
        mode: initial value of the MODE register.
    """

    lds_bytes: int = 0
    scratch_bytes: int = 0
    kernarg_bytes: int = 0
    vgprs: int = 256
    accum_offset: int = 256
    sgprs: int = 102
    user_sgprs: tuple[str, ...] = ("kernarg_segment_ptr",)
    preload_dwords: int = 0
    preload_offset: int = 0
    workgroup_ids: tuple[bool, bool, bool] = (True, False, False)
    workgroup_info: bool = False
    workitem_ids: int = 0
    mode: int = 0x3F0

    def user_sgpr(self, name: str) -> int | None:
        """Index of the first SGPR of a preloaded input, or None if it is not preloaded."""
        index = 0
        for candidate, dwords in SCALAR_INPUTS:
            if candidate in self.user_sgprs:
                if candidate == name:
                    return index
                index += dwords
        if name == "kernarg_preload":
            return index
        if name == "workgroup_id":
            return index + self.preload_dwords
        return None


def mode_bits(
    round_32: int = 0,
    round_16_64: int = 0,
    denorm_32: int = 3,
    denorm_16_64: int = 3,
    dx10_clamp: int = 1,
    ieee: int = 1,
    fp16_overflow: int = 0,
) -> int:
    """MODE register from the descriptor's float fields."""
    return (
        round_32
        | round_16_64 << 2
        | denorm_32 << 4
        | denorm_16_64 << 6
        | dx10_clamp << 8
        | ieee << 9
        | (MODE_FP16_OVERFLOW if fp16_overflow else 0)
    )


def descriptor_from_bytes(data: bytes) -> tuple[Descriptor, int]:
    """Descriptor of a code object's 64 bytes, and the entry's offset from them."""
    lds, scratch, kernarg = struct.unpack_from("<III", data, 0)
    (entry,) = struct.unpack_from("<q", data, 16)
    rsrc3, rsrc1, rsrc2 = struct.unpack_from("<III", data, 44)
    properties, preload = struct.unpack_from("<HH", data, 56)
    named = [name for bit, (name, _) in enumerate(SCALAR_INPUTS) if properties >> bit & 1]
    descriptor = Descriptor(
        lds_bytes=lds,
        scratch_bytes=scratch,
        kernarg_bytes=kernarg,
        vgprs=((rsrc1 & 63) + 1) * 8,
        accum_offset=((rsrc3 & 63) + 1) * 4,
        # Without the six that hold VCC, FLAT_SCRATCH and XNACK_MASK.
        sgprs=((rsrc1 >> 6 & 15) // 2 + 1) * 16 - 6,
        user_sgprs=tuple(named),
        preload_dwords=preload & 127,
        preload_offset=preload >> 7,
        workgroup_ids=(bool(rsrc2 >> 7 & 1), bool(rsrc2 >> 8 & 1), bool(rsrc2 >> 9 & 1)),
        workgroup_info=bool(rsrc2 >> 10 & 1),
        workitem_ids=rsrc2 >> 11 & 3,
        mode=mode_bits(
            rsrc1 >> 12 & 3,
            rsrc1 >> 14 & 3,
            rsrc1 >> 16 & 3,
            rsrc1 >> 18 & 3,
            rsrc1 >> 21 & 1,
            rsrc1 >> 23 & 1,
            rsrc1 >> 26 & 1,
        ),
    )
    return descriptor, entry


@dataclass(frozen=True, slots=True)
class Argument:
    """One kernel argument of the metadata: where it lies in the kernarg segment."""

    offset: int
    size: int
    kind: str
    name: str = ""

    @property
    def is_hidden(self) -> bool:
        return self.kind.startswith("hidden_")


@dataclass(slots=True)
class Kernel:
    """A kernel ready to be executed or checked.

    Attributes:
        name: symbol.
        instructions, labels: its code; labels map to instruction indices.
        entry: index at which execution starts with the arguments preloaded;
        fallback_entry: index for firmware that preloads none (equal where nothing is preloaded).
        descriptor, arguments: see there.
        waves: waves of a workgroup by the metadata's max_flat_workgroup_size, 0 if unknown.
    """

    name: str
    instructions: list[Instruction]
    labels: dict[str, int]
    descriptor: Descriptor
    arguments: list[Argument] = field(default_factory=list)
    entry: int = 0
    fallback_entry: int = 0
    waves: int = 0

    def pack(self, values: Sequence[int | float]) -> bytes:
        """Kernarg bytes from one value for each explicit argument, in order.

        Integers fill the argument's size, floats become fp32 or fp64 by size. Missing trailing
        pointers (Triton's scratch pointers) are null.
        """
        explicit = [argument for argument in self.arguments if not argument.is_hidden]
        if len(values) > len(explicit):
            raise ValueError(
                f"kernel {self.name} has {len(explicit)} arguments, got {len(values)} values"
            )
        segment = bytearray(self.descriptor.kernarg_bytes)
        for position, argument in enumerate(explicit):
            if position >= len(values):
                if argument.kind != "global_buffer":
                    raise ValueError(
                        f"kernel {self.name}: no value for argument {position} "
                        f"({argument.size} bytes, {argument.kind})"
                    )
                continue
            value = values[position]
            end = argument.offset + argument.size
            if isinstance(value, float):
                encoded = struct.pack("<f" if argument.size == 4 else "<d", value)
            else:
                encoded = (int(value) % (1 << 8 * argument.size)).to_bytes(argument.size, "little")
            segment[argument.offset : end] = encoded
        return bytes(segment)
