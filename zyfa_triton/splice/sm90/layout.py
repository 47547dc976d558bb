"""Decides which element of a tensor a register holds, for operands and results of NVIDIA's MMA.

It does not choose a layout and knows no other kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from zyfa_triton.splice.errors import require

_ROWS = 16  # of one warp's matrix instruction
_LANES_OF_ROW = 4
_WGMMA = 3  # version; its warps lie along rows first, those of mma.sync along columns
_DEFINITION = re.compile(r"^#(\w+) = #ttg\.nvidia_mma<\{(.*)\}>", re.MULTILINE)
_TENSOR = re.compile(r"tensor<((?:\d+x)+)(\w+), (.*)>")
_OPERAND = re.compile(r"#ttg\.dot_op<\{opIdx = 0, parent = #(\w+), kWidth = (\d+)\}>")
_OF_ROWS = re.compile(r"#ttg\.slice<\{dim = 1, parent = #(\w+)\}>")


@dataclass(frozen=True)
class MmaLayout:
    """Triton's `#ttg.nvidia_mma` layout, or the slice of it that holds a value for each row.

    Attributes:
        warps: how the warps tile the result: (along rows, along columns).
        columns: of one matrix instruction, which has 16 rows a warp.
        version: 3 is wgmma, 2 mma.sync; the registers are the same.

    Lane l = 4 g + t of a warp holds the rows g and g + 8 of 16, and of them the columns 2 t and
    2 t + 1 of every eight: registers step through (g, 2 t), (g, 2 t + 1), (g + 8, 2 t),
    (g + 8, 2 t + 1), then the next eight columns; when the columns are done, the next rows of the
    warp. 16-bit elements lie two in a register, 8-bit ones four, in that order.
    """

    warps: tuple[int, int]
    columns: int
    version: int

    def elements(self, shape: tuple[int, ...]) -> int:
        """How many elements a lane holds of a tensor (rows, columns), or of a vector (rows,)."""
        row_tiles = _tiles(shape[0], _ROWS * self.warps[0], "rows")
        if len(shape) == 1:
            return 2 * row_tiles
        column_tiles = _tiles(shape[1], self.columns * self.warps[1], "columns")
        return row_tiles * column_tiles * self.columns // 2

    def warp_place(self, warp: int) -> tuple[int, int]:
        """Where a warp lies among those that tile the result: (along rows, along columns)."""
        if self.version == _WGMMA:
            return warp % self.warps[0], warp // self.warps[0]
        return warp // self.warps[1], warp % self.warps[1]

    def coordinates(
        self, shape: tuple[int, ...], element: int, lane: int, warp: int
    ) -> tuple[int, ...]:
        """Element of a tensor of this shape that is number `element` (0 is the first) of a lane.

        warp: its number among those of the layout.
        """
        warp_row, warp_column = self.warp_place(warp)
        group, place = divmod(lane, _LANES_OF_ROW)
        row_tile, inside = divmod(element, self.elements((_ROWS * self.warps[0], *shape[1:])))
        first_row = _ROWS * (warp_row + self.warps[0] * row_tile) + group
        if len(shape) == 1:
            return (first_row + 8 * inside,)
        column_tile, inside = divmod(inside, self.columns // 2)
        eight, inside = divmod(inside, 4)
        first_column = self.columns * (warp_column + self.warps[1] * column_tile) + 2 * place
        return first_row + 8 * (inside // 2), first_column + 8 * eight + inside % 2


@dataclass(frozen=True)
class OperandLayout:
    """Triton's layout of a matrix instruction's first operand, if that comes from registers.

    result: the layout of the instruction's result. width: elements side by side, which fill a
    register.

    Lane l = 4 g + t holds the rows g and g + 8 of 16, and of each 8 * width columns `width` from
    width * t on and as many 4 * width further: registers step through the rows g, g + 8 of the
    first, then of the second, then the next columns; then the next rows of the warp. Warps side by
    side hold the same.
    """

    result: MmaLayout
    width: int

    def elements(self, shape: tuple[int, ...]) -> int:
        """How many elements a lane holds of a tensor (rows, columns)."""
        row_tiles = _tiles(shape[0], _ROWS * self.result.warps[0], "rows")
        return row_tiles * 4 * self.width * _tiles(shape[1], 8 * self.width, "columns")

    def coordinates(
        self, shape: tuple[int, ...], element: int, lane: int, warp: int
    ) -> tuple[int, ...]:
        """Element of a tensor of this shape that is number `element` (0 is the first) of a lane."""
        group, place = divmod(lane, _LANES_OF_ROW)
        register, inside = divmod(element, self.width)
        tile, register = divmod(register, 4)
        row_tile, column_tile = divmod(tile, shape[1] // (8 * self.width))
        row = _ROWS * (self.result.warp_place(warp)[0] + self.result.warps[0] * row_tile)
        column = self.width * (8 * column_tile + 4 * (register // 2) + place)
        return row + 8 * (register % 2) + group, column + inside


Layout = MmaLayout | OperandLayout


def _tiles(size: int, tile: int, what: str) -> int:
    count, uneven = divmod(size, tile)
    require(count and not uneven, f"{size} {what} are not a multiple of {tile}")
    return count


def mma_layouts(ttgir: str) -> dict[str, MmaLayout]:
    """The matrix layouts of a module by name (`mma`, `mma1`)."""
    found = {}
    for name, body in _DEFINITION.findall(ttgir):
        fields = dict(re.findall(r"(\w+) = (\[[^\]]*\]|\w+)", body))
        unknown = set(fields) - {"versionMajor", "versionMinor", "warpsPerCTA", "instrShape"}
        if unknown:
            continue  # a loop that carries such a tensor is refused by tensor_layout
        warps, shape = (
            tuple(int(number) for number in fields[key].strip("[]").split(","))
            for key in ("warpsPerCTA", "instrShape")
        )
        if len(warps) == 2:
            found[name] = MmaLayout((warps[0], warps[1]), shape[1], int(fields["versionMajor"]))
    return found


def tensor_layout(
    kind: str, layouts: Mapping[str, MmaLayout]
) -> tuple[tuple[int, ...], str, Layout] | None:
    """Shape, element type and layout of a tensor type; None for any that has no matrix layout."""
    match = _TENSOR.fullmatch(kind)
    if match is None:
        return None
    shape = tuple(int(size) for size in match[1].rstrip("x").split("x"))
    operand = _OPERAND.fullmatch(match[3])
    if operand and operand[1] in layouts and len(shape) == 2:
        return shape, match[2], OperandLayout(layouts[operand[1]], int(operand[2]))
    sliced = _OF_ROWS.fullmatch(match[3])
    name = sliced[1] if sliced else match[3].removeprefix("#")
    if name not in layouts or len(shape) != (1 if sliced else 2):
        return None
    return shape, match[2], layouts[name]
