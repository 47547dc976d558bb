"""Decides which element of a tensor a register holds in the MFMA layout that Triton chose.

It does not choose a layout and knows no other kind than that of a matrix result.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from zyfa_triton.splice.errors import require

WAVE_SIZE = 64
_QUAD = 4  # consecutive registers of an MFMA result step through four consecutive elements


@dataclass(frozen=True)
class MatrixLayout:
    """Triton's `#ttg.amd_mfma` layout.

    Attributes:
        waves: how the workgroup's waves tile the result: (along rows, along columns).
        instruction: (rows, columns, k) of the matrix instruction.
        is_transposed: the instruction computes the transpose, so that a lane holds one row.
        version: 4 is gfx950.

    Only what the transposed 32 x 32 instruction gives is described by `coordinates`: lane l of a
    wave holds row l % 32; its registers step through the columns 0, 1, 2, 3, 8, 9, ..., and lanes
    32 and up hold those between, 4 further on.
    """

    waves: tuple[int, int]
    instruction: tuple[int, ...]
    is_transposed: bool
    version: int

    def registers(self, shape: tuple[int, ...]) -> int:
        """How many registers a lane needs for a float32 result tensor, or for a row vector of it.

        shape: (rows, columns), or (rows,) for a vector in the slice of the layout along columns.
        """
        rows, columns = self.instruction[:2]
        row_tiles, uneven = divmod(shape[0], rows * self.waves[0])
        require(
            row_tiles and not uneven,
            f"{shape[0]} rows are not a multiple of {rows} rows in {self.waves[0]} waves",
        )
        if len(shape) == 1:
            return row_tiles
        column_tiles, uneven = divmod(shape[1], columns * self.waves[1])
        require(
            column_tiles and not uneven,
            f"{shape[1]} columns are not a multiple of {columns} columns in {self.waves[1]} waves",
        )
        return row_tiles * column_tiles * (rows * columns // WAVE_SIZE)

    def coordinates(
        self, shape: tuple[int, ...], register: int, lane: int, wave: int
    ) -> tuple[int, ...]:
        """Element of a tensor of this shape in register number `register` (0 is the first)."""
        require(
            self.instruction[:2] == (32, 32) and self.is_transposed,
            "only the transposed 32 x 32 layout is described",
        )
        wave_row, wave_column = divmod(wave, self.waves[1])
        row = lane % 32 + 32 * wave_row
        row_step = 32 * self.waves[0]
        if len(shape) == 1:
            return (row + row_step * register,)
        tile, index = divmod(register, 16)
        row_tile, column_tile = divmod(tile, shape[1] // (32 * self.waves[1]))
        column = index % _QUAD + 2 * _QUAD * (index // _QUAD) + _QUAD * (lane // 32)
        column += 32 * (wave_column + self.waves[1] * column_tile)
        return row + row_step * row_tile, column


_LAYOUT = re.compile(r"^#(\w+) = #ttg\.amd_mfma<\{(.*)\}>", re.MULTILINE)


def matrix_layout(ttgir: str) -> MatrixLayout:
    """The one MFMA layout of a module; it is called `#mma` there.

    Raises:
        SpliceError: there is none, or more than one, or one with attributes not known here.
    """
    found = _LAYOUT.findall(ttgir)
    require(
        len(found) == 1, f"the kernel has {len(found)} MFMA layouts, a loop is spliced into one"
    )
    name, body = found[0]
    require(name == "mma", f"the MFMA layout is called {name}")
    fields = dict(re.findall(r"(\w+) = (\[[^\]]*\]|\w+)", body))
    unknown = set(fields) - {"version", "warpsPerCTA", "instrShape", "isTransposed"}
    require(not unknown, f"MFMA layout with {', '.join(sorted(unknown))}")
    waves = _numbers(fields["warpsPerCTA"])
    require(len(waves) == 2, f"MFMA layout of rank {len(waves)}")
    return MatrixLayout(
        waves=(waves[0], waves[1]),
        instruction=_numbers(fields["instrShape"]),
        is_transposed=fields["isTransposed"] == "true",
        version=int(fields["version"]),
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.strip("[]").split(","))
