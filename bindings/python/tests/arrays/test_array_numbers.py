"""The numbers of collectives, operators and types are the same in Python and in Rust."""

import pytest

from kolo import _kolo, numbers


@pytest.mark.parametrize("table", ["COLLECTIVES", "OPERATORS", "TYPES"])
def test_numbers_are_places(table):
    names = getattr(_kolo, table)
    assert len(names) > 10
    assert [getattr(numbers, name.upper()) for name in names] == list(range(len(names)))


def test_operators_have_the_same_names():
    assert list(numbers.OPS) == _kolo.OPERATORS
