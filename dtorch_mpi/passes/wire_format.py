"""Numbers of the records on the wire (src/wire/record.h), as passes read and write them."""

HEADER_WORDS = 4
NO_SLOT = (1 << 24) - 1
SHARDED = 1 << 15
PAYLOAD = 0xFFFFFF

KINDS = {1: "operator", 2: "free", 7: "upload", 8: "get", 9: "sync", 10: "redistribute",
         11: "describe", 12: "kernel", 14: "mark", 17: "move"}  # fmt: skip
NUMBERS = {name: number for number, name in KINDS.items()}

# Tags of values.
(NONE, SLOT, SMALL_INT, INT, DOUBLE, BOOL, COMPLEX, INT_LIST, DOUBLE_LIST, BOOL_LIST, SLOT_LIST,
 OPTIONAL_SLOT_LIST, SCALAR_LIST, STRING, DEVICE, HOST_DEVICE, SCALAR_TENSOR, GENERATOR,
 LOCAL_SIZES, OUTPUT, OUTPUT_LIST, OUTPUT_IGNORED, LOCAL_STRIDES,
 SHARDED_GENERATOR) = range(24)  # fmt: skip
