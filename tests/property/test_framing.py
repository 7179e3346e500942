"""Any message, any split: written by the plain reading of RFC 3, read and written back by the fast one."""

from hypothesis import given
from hypothesis import strategies as st

from broker.errors import Untranslatable
from broker.wire.decoding import decode, decode_large, from_parts
from broker.wire.dialects import dialect
from broker.wire.framing import Splitter
from broker.wire.message import Message
from tests.fuzz import reference
from tests.fuzz.reference import Fields

SIZES = (0, 1, 19, 20, 21, 253, 254, 255, 256, 65_515, 65_536, 1 << 20)
"""Around every edge: PROTO's size, short and long form, small and large frames."""


def sized(least: int, *sizes: int) -> st.SearchStrategy[bytes]:
    """Bytes without NUL: a few drawn ones, or a drawn byte repeated to a size of interest."""
    repeated = st.builds(lambda byte, size: bytes([byte]) * size, st.integers(1, 255), st.sampled_from(sizes))
    return st.one_of(
        st.binary(min_size=least, max_size=24).map(lambda data: data.replace(b"\0", b"n")), repeated
    )


ROUTES = st.lists(sized(1, 1, 36, 254, 255, 256), max_size=5).map(tuple)
TOPICS = sized(0, *SIZES[:-2])
PAYLOADS = st.one_of(
    st.binary(max_size=64),
    st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 255), st.sampled_from(SIZES)),
)
WORD = st.one_of(st.sampled_from((0, 1, 0x7FFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF)), st.integers(0, 0xFFFFFFFF))


@st.composite
def messages(draw: st.DrawFn) -> Fields:
    flags = draw(st.integers(0, 255))
    return Fields(
        draw(ROUTES) if flags & 0x08 else (),
        draw(TOPICS) if flags & 0x01 else None,
        draw(PAYLOADS) if flags & 0x02 else None,
        draw(st.sampled_from((1, 2, 4, 8))),
        flags,
        draw(st.tuples(WORD, WORD, WORD, WORD)),
    )


def fields(message: Message) -> Fields:
    topic = message.topic
    return Fields(
        tuple(message.routes),
        None if topic is None else topic.encode("utf-8", "surrogateescape"),
        message.payload,
        message.type,
        message.flags,
        (message.userid, message.rolemask, message.aux1, message.aux2),
    )


@given(messages())
def test_round_trip(wanted: Fields) -> None:
    data = reference.write(wanted)
    (message,) = Splitter().feed(data)
    assert fields(message) == wanted
    assert message.framed() == data
    assert message.size == len(data) - 8
    assert message.parts() == reference.write_parts(wanted)
    assert from_parts(message.parts()) == message


@given(messages())
def test_large_decoder_equals_the_small_one(wanted: Fields) -> None:
    data = reference.write(wanted)
    assert decode_large(memoryview(bytearray(data)), 8, len(data)) == decode(data, 8, len(data))


@given(st.lists(messages(), min_size=1, max_size=4), st.data())
def test_any_split(wanted: list[Fields], draw: st.DataObject) -> None:
    magics = draw.draw(
        st.lists(st.sampled_from((reference.DEPLOYED, reference.TEXT)), min_size=4, max_size=4)
    )
    stream = b"".join(reference.write(one, magic) for one, magic in zip(wanted, magics, strict=False))
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    splitter = Splitter()
    seen = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        seen += splitter.feed(stream[start:stop])
    assert splitter.failure is None
    assert splitter.pending_bytes == 0
    assert [fields(message) for message in seen] == wanted


@given(messages(), st.integers(1, 40))
def test_cut_short_it_is_no_message_yet(wanted: Fields, missing: int) -> None:
    data = reference.write(wanted)
    splitter = Splitter()
    assert splitter.feed(data[:-missing]) == []
    assert splitter.failure is None
    assert splitter.pending_bytes == max(0, len(data) - missing)
    assert [message.framed() for message in splitter.feed(data[-missing:])] == [data]


@given(messages(), st.sampled_from([("flux1", False), ("flux1", True), ("cmb1rev", False), ("cmb1", False)]))
def test_what_a_dialect_writes_it_reads_again(wanted: Fields, name: tuple[str, bool]) -> None:
    """Writing once may add a delimiter or drop routes left over; after that nothing changes any more."""
    spoken = dialect(*name)
    try:
        first = spoken.decode(spoken.encode(from_parts(reference.write_parts(wanted))))
    except Untranslatable:
        return
    kept = fields(first)
    assert (kept.topic, kept.payload, kept.kind) == (wanted.topic, wanted.payload, wanted.kind)
    assert kept.words[:3] == wanted.words[:3]
    assert spoken.decode(spoken.encode(first)) == first
