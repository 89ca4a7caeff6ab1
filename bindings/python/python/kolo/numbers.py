"""The numbers of collectives, operators and types. ``_kolo`` lists their names in the same order."""

from __future__ import annotations

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, GATHER, SCATTER, ALL_TO_ALL, SCAN, EXSCAN, BARRIER = range(11)

SUM, PROD, MIN, MAX, AVG, PREMUL_SUM, BIT_AND, BIT_OR, BIT_XOR, LOGICAL_AND, LOGICAL_OR, LOGICAL_XOR = range(12)

#: Operators by the names that users give.
OPS: dict[str, int] = {
    "sum": SUM,
    "prod": PROD,
    "min": MIN,
    "max": MAX,
    "avg": AVG,
    "premul_sum": PREMUL_SUM,
    "bit_and": BIT_AND,
    "bit_or": BIT_OR,
    "bit_xor": BIT_XOR,
    "logical_and": LOGICAL_AND,
    "logical_or": LOGICAL_OR,
    "logical_xor": LOGICAL_XOR,
}

BOOL, U8, I8, U32, I32, U64, I64, F16, BF16, F32, F64, U16, I16 = range(13)
