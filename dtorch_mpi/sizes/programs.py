"""Formulas over sizes as the postfix programs that capture evaluates."""

from collections.abc import Mapping
from enum import IntEnum

import sympy

Program = list[int]


class SizeOp(IntEnum):
    """As in src/capture/size_program.h."""

    CONSTANT = 0
    INPUT = 1
    ADD = 2
    MULTIPLY = 3
    FLOOR_DIVIDE = 4
    MODULO = 5
    MAXIMUM = 6
    MINIMUM = 7
    EQUAL = 8
    LESS = 9
    LESS_EQUAL = 10
    AND = 11
    OR = 12
    NOT = 13


class NoProgramError(Exception):
    """A formula that a program can't say."""


# By the class's name: those of PyTorch's own move between modules. (operation, swapped, negated)
_BINARY = {
    "FloorDiv": (SizeOp.FLOOR_DIVIDE, False, False),
    "CleanDiv": (SizeOp.FLOOR_DIVIDE, False, False),
    "Mod": (SizeOp.MODULO, False, False),
    "PythonMod": (SizeOp.MODULO, False, False),
    "Equality": (SizeOp.EQUAL, False, False),
    "Unequality": (SizeOp.EQUAL, False, True),
    "StrictLessThan": (SizeOp.LESS, False, False),
    "LessThan": (SizeOp.LESS_EQUAL, False, False),
    "StrictGreaterThan": (SizeOp.LESS, True, False),
    "GreaterThan": (SizeOp.LESS_EQUAL, True, False),
}
_CHAINED = {
    "Add": SizeOp.ADD, "Mul": SizeOp.MULTIPLY, "Max": SizeOp.MAXIMUM, "Min": SizeOp.MINIMUM,
    "And": SizeOp.AND, "Or": SizeOp.OR,
}  # fmt: skip
_LARGEST_POWER = 8


def compile_program(formula: sympy.Basic | int, inputs: Mapping[sympy.Symbol, int]) -> Program:
    """The program of an integer or of a condition. Raises NoProgramError."""
    if isinstance(formula, (int, sympy.Integer)):
        if not -(2**63) <= int(formula) < 2**63:
            raise NoProgramError(f"{formula} is no 64-bit number")
        return [SizeOp.CONSTANT, int(formula)]
    if formula is sympy.true or formula is sympy.false:
        return [SizeOp.CONSTANT, int(formula is sympy.true)]
    if isinstance(formula, sympy.Symbol):
        if formula not in inputs:
            raise NoProgramError(f"{formula} is no input")
        return [SizeOp.INPUT, inputs[formula]]
    name = type(formula).__name__
    parts = formula.args
    if name == "Pow" and isinstance(parts[1], sympy.Integer) and 1 <= parts[1] <= _LARGEST_POWER:
        return _chain(SizeOp.MULTIPLY, [parts[0]] * int(parts[1]), inputs)
    if name == "Not":
        return [*compile_program(parts[0], inputs), SizeOp.NOT]
    if name in _CHAINED:
        return _chain(_CHAINED[name], parts, inputs)
    if name in _BINARY and len(parts) == 2:
        operation, swapped, negated = _BINARY[name]
        program = _chain(operation, reversed(parts) if swapped else parts, inputs)
        return [*program, SizeOp.NOT] if negated else program
    raise NoProgramError(f"{formula}: no operation for {name}")


def _chain(operation, parts, inputs) -> Program:
    program = []
    for count, part in enumerate(parts):
        program += compile_program(part, inputs)
        if count:
            program.append(operation)
    return program
