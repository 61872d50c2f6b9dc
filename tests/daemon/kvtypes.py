# SPDX-License-Identifier: Apache-2.0
"""Which types of keys and values a test tries: what is equal must be equal for each of them."""
import prefix
import pytest
from conftest import LONG


def kv_types(*in_check):
    """A mark: one run for each type with KVD_TEST_LONG, for these in `make check`."""
    assert set(in_check) <= set(prefix.KV_TYPES)
    return pytest.mark.parametrize("kv_type", prefix.KV_TYPES if LONG else in_check)


def paired(names, *pairs):
    """
    The same where other parameters take turns with the types: (value, type) of each run in `make check`, all values with
    all types with KVD_TEST_LONG.  names: of more than one, with commas between, and values that are tuples.
    """
    values = dict.fromkeys(value for value, _ in pairs)
    runs = [(value, kv_type) for value in values for kv_type in prefix.KV_TYPES] if LONG else pairs
    many = "," in names
    return pytest.mark.parametrize(f"{names},kv_type", [((*value, t) if many else (value, t)) for value, t in runs])
