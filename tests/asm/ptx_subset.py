"""Decides what the few PTX instructions of the example's loop do, on numpy arrays over threads.

PTX ISA 8.7, sections 9.7.1 to 9.7.9 and 9.7.14.5 (fragments of m16n8k32). It knows no more than a
test needs: branches that all threads take alike, exact products, no timing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import numpy as np
import torch

Values = np.ndarray  # one number a thread
_LIMIT = 100_000  # instructions


class Threads:
    """Threads that run a text together on a byte memory. registers: name -> values, as unsigned."""

    def __init__(self, count: int, memory: Values, registers: Mapping[str, Values]) -> None:
        self.count = count
        self.memory = memory
        self.registers = dict(registers)
        self.registers["%tid.x"] = np.arange(count, dtype=np.uint64)

    def run(self, text: str) -> None:
        code = re.sub(r"//[^\n]*", "", text)
        statements, labels = [], {}
        for part in re.split(r"[;\n]", code):
            statement = part.strip()
            if label := re.fullmatch(r"([\w$]+):", statement):
                labels[label[1]] = len(statements)
            elif statement and not statement.startswith(".reg"):
                statements.append(statement)
        at = 0
        for _ in range(_LIMIT):
            if at == len(statements):
                return
            at = self._step(statements[at], labels, at + 1)
        raise AssertionError("the text does not end")

    def _step(self, statement: str, labels: Mapping[str, int], after: int) -> int:
        match = re.fullmatch(r"(?:@(\w+) )?([\w.:]+)\s+(.*)", statement)
        assert match is not None, statement
        predicate, name, text = match.groups()
        if name in ("bra", "bra.uni"):
            taken = np.ones(self.count, bool) if predicate is None else self.registers[predicate]
            assert taken.all() or not taken.any(), f"{statement}: threads part"
            return labels[text] if taken.all() else after
        assert predicate is None, statement
        operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", text)
        if name.startswith("ld.global.v4"):
            self._load(operands)
        elif name.startswith("mma.sync"):
            self._multiply(operands)
        else:
            inputs = [self._value(one) for one in operands[1:]]
            self.registers[operands[0]] = OPERATIONS[name](*inputs)
        return after

    def _value(self, text: str) -> Values:
        if re.match(r"-?\d", text):
            return np.full(self.count, int(text, 0) % 2**64, np.uint64)
        return self.registers[text]

    def _load(self, operands: list[str]) -> None:
        base, _, offset = operands[1].strip("[]").partition("+")
        address = self._value(base.strip()).astype(np.int64) + int(offset)
        assert not (address % 16).any(), "a load that is not aligned"
        for index, name in enumerate(_names(operands[0])):
            parts = [self.memory[address + 4 * index + byte].astype(np.uint64) for byte in range(4)]
            self.registers[name] = parts[0] | parts[1] << 8 | parts[2] << 16 | parts[3] << 24

    def _multiply(self, operands: list[str]) -> None:
        a, b, c = ([self._value(name) for name in _names(one)] for one in operands[1:])
        lane = np.arange(32)
        group, place = lane // 4, lane % 4
        for first in range(0, self.count, 32):
            here = slice(first, first + 32)
            left, right = np.zeros((16, 32)), np.zeros((32, 8))
            for byte in range(4):
                for index, value in enumerate(a):
                    row = group + 8 * (index % 2)
                    left[row, 16 * (index // 2) + 4 * place + byte] = _e4m3(value[here], byte)
                for index, value in enumerate(b):
                    right[16 * index + 4 * place + byte, group] = _e4m3(value[here], byte)
            product = left @ right
            for index, (name, value) in enumerate(zip(_names(operands[0]), c, strict=True)):
                old = value[here].astype(np.uint32).view(np.float32)
                row, column = group + 8 * (index // 2), 2 * place + index % 2
                new = (product[row, column] + old).astype(np.float32)
                self.registers.setdefault(name, np.zeros(self.count, np.uint64))
                result = self.registers[name].copy()
                result[here] = new.view(np.uint32)
                self.registers[name] = result


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.strip("{}").split(",")]


def _e4m3(words: Values, byte: int) -> Values:
    codes = torch.from_numpy((words >> np.uint64(8 * byte)).astype(np.uint8))
    return codes.view(torch.float8_e4m3fn).double().numpy()


def _signed(values: Values) -> Values:
    return values.astype(np.uint32).view(np.int32).astype(np.int64)


def _word(values: Values) -> Values:
    return values.astype(np.int64).astype(np.uint32).astype(np.uint64)


def _float(values: Values) -> Values:
    return values.astype(np.uint32).view(np.float32)


def _long(values: Values) -> Values:
    return values.astype(np.int64).astype(np.uint64)


OPERATIONS: Mapping[str, Callable[..., Values]] = {
    "mov.u32": lambda a: a.copy(),
    "mov.b32": lambda a: a.copy(),
    "bfe.u32": lambda a, start, count: (a >> start) & ((np.uint64(1) << count) - np.uint64(1)),
    "and.b32": lambda a, b: a & b,
    "shl.b32": lambda a, b: (a << b) & np.uint64(0xFFFFFFFF),
    "shr.u32": lambda a, b: a >> b,
    "add.s32": lambda a, b: _word(_signed(a) + _signed(b)),
    "add.s64": lambda a, b: a + b,
    "add.f32": lambda a, b: (_float(a) + _float(b)).view(np.uint32).astype(np.uint64),
    "mad.lo.s32": lambda a, b, c: _word(_signed(a) * _signed(b) + _signed(c)),
    "mad.wide.s32": lambda a, b, c: _long(_signed(a) * _signed(b)) + c,
    "cvt.s64.s32": lambda a: _long(_signed(a)),
    "setp.ge.s32": lambda a, b: _signed(a) >= _signed(b),
}
