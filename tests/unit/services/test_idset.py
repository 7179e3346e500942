"""Sets of ranks as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ProtocolError
from broker.services import idset
from tests.tables import for_each


@for_each(
    ("ids", "text"),
    [((), ""), ((0,), "0"), ((3, 1, 2), "1-3"), ((0, 2, 3, 7, 8, 9), "0,2-3,7-9"), ((5, 5), "5")],
)
def test_encode_writes_runs_as_ranges(ids, text):
    assert idset.encode(ids) == text


@given(st.sets(st.integers(0, 5000), max_size=200))
def test_what_is_encoded_decodes_to_itself(ids):
    assert idset.decode(idset.encode(ids)) == ids
    assert idset.decode(f"[{idset.encode(ids)}]") == ids


@for_each(
    "text",
    ["junk", "1,", ",1", "3-1", "2,1", "1,1", "-1", "1-", "1-2-3", " 1", "1 ", "٣", "1e3", "[1", "9" * 11],
)
def test_what_is_no_idset_is_refused(text):
    with pytest.raises(ProtocolError):
        idset.decode(text)


def test_a_short_text_cannot_name_more_than_the_limit():
    with pytest.raises(ProtocolError, match="not below 4"):
        idset.decode("0-4294967295", 4)
    assert idset.decode("0-3", 4) == {0, 1, 2, 3}


@given(st.text(alphabet="0123456789,-[]", max_size=12))
def test_any_text_decodes_to_small_ids_or_is_refused(text):
    try:
        ids = idset.decode(text, 1000)
    except ProtocolError:
        return
    assert all(0 <= number < 1000 for number in ids)
