"""Tables of prefixes against asking each prefix, and what is remembered against finding it anew."""

from hypothesis import given
from hypothesis import strategies as st

from broker.wire.audience import Audiences, Prefixes
from broker.wire.parts import encode_part

TEXTS = st.lists(st.sampled_from([b"a", b"b", b"."]), max_size=5).map(b"".join)
ACTS = st.lists(st.tuples(st.sampled_from(["toggle", "ask"]), TEXTS), max_size=40)


@given(ACTS)
def test_what_is_remembered_is_what_would_be_found(acts):
    table, audiences, there = Prefixes(), Audiences(), {}
    for act, text in acts:
        if act == "ask":
            part = encode_part(text)
            members = audiences.found.get(part)
            if members is None:
                members = audiences.keep(text, part, tuple(table.matching(text)))
            assert members == tuple(sorted((one for one in there if text.startswith(one)), key=len))
            continue
        if text in there:
            table.remove(text)
            del there[text]
        else:
            table.add(text, text)
            there[text] = True
        audiences.forget(text)
    assert dict(table.items()) == {one: one for one in there}
    assert sum(one.topics for one in audiences._same.values()) == len(audiences.found)
    assert audiences._held == sum(map(len, audiences._same))
