"""Records written by hand, as src/wire/record.h says."""

import struct

DEFINE_MESH, UPLOAD, GET, SYNC, DESCRIBE, PYTHON_KERNEL = 5, 7, 8, 9, 11, 12
OUTPUT = 19 << 24
SHARED, NETWORK = 1, 2  # homes of a promise


def record(kind, *values, number=0, count=0):
    """One record as bytes; values are words or lists of them."""
    words = []
    for value in values:
        words += value if isinstance(value, list) else [value]
    return struct.pack(f"{4 + len(words)}I", 4 + len(words), count << 16 | kind, number, 0, *words)


def integer(value):
    return [3 << 24, *struct.unpack("2I", struct.pack("q", value))]


def int_list(*values):
    packed = struct.pack(f"{len(values)}q", *values)
    return [7 << 24 | len(values), *struct.unpack(f"{2 * len(values)}I", packed)]


def text(data):
    padded = data + bytes(-len(data) % 4)
    return [13 << 24 | len(data), *struct.unpack(f"{len(padded) // 4}I", padded)]


def promise(home, number, place):
    return integer(home) + integer(number) + integer(place)
