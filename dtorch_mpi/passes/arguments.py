"""Arguments of operators in a graph that are neither tensors nor plain values."""

from dataclasses import dataclass

from .wire_format import DEVICE, HOST_DEVICE


# Numbers that came with the program may be others the next time: `word` says where they stand.
class Int(int):
    word = None
    small = False


class Float(float):
    word = None


class Ints(list):
    """A list of ints, where a plain one is of tensors; the others likewise."""


class Floats(list):
    pass


class Bools(list):
    pass


class Scalars(list):
    pass


class OptionalTensors(list):
    pass


@dataclass(frozen=True)
class ScalarTensor:
    """A 0-dim tensor that travels by value. wrapped: it was a Python number."""

    number: object
    dtype: int
    wrapped: bool


@dataclass(frozen=True)
class Opaque:
    """An argument that no pass need look into: a generator's state, sizes of a local part."""

    words: tuple

    def __str__(self):
        return "..."


WORKERS_DEVICE, HOST = Opaque((DEVICE << 24,)), Opaque((HOST_DEVICE << 24,))
