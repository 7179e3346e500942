"""Any NFP message in any form and dialect comes back as it went; anything else is refused in one way."""

from hypothesis import given
from hypothesis import strategies as st

from broker.nfp.frames import InvalidPacket, Packet, decode, encode
from broker.nfp.names import NAME_BYTES_MAX, Command, Dialect, Sender
from broker.nfp.packet import NO_UUID_STATUS, SWAPPED
from broker.nfp.targets import ALL, ANY, Target

REQUESTS = (Command.POST, Command.GET, Command.DELETE, Command.PUT, Command.MMI)
ANSWERS = (Command.RESPONSE, Command.EVENT, Command.STREAM)

NAMES = st.one_of(
    st.text(min_size=1, max_size=20),
    st.sampled_from(("all", "any", "200", "0x03", "[", "a,b", "nornir-*", "w" * NAME_BYTES_MAX)),
).filter(lambda name: name.isprintable() and len(name.encode()) <= NAME_BYTES_MAX)
PLAIN = NAMES.filter(lambda name: "," not in name and name[0] not in "[ " and name not in ("all", "any"))
BODIES = st.binary(max_size=80)
ADDRESSES = st.binary(min_size=1, max_size=40)
TARGETS = st.one_of(
    st.just(ALL),
    st.just(ANY),
    PLAIN.map(lambda name: Target("name", (name,))),
    st.lists(NAMES, min_size=1, max_size=5, unique=True).map(lambda names: Target("list", tuple(names))),
)
STATUS_TEXTS = st.text(max_size=40).filter(lambda text: len(text.encode("utf-8", "replace")) <= 200)


def fields(packet: Packet) -> dict[str, object]:
    return {name: getattr(packet, name) for name in Packet.__slots__}


@st.composite
def presences(draw: st.DrawFn, dialect: Dialect) -> Packet:
    command = draw(st.sampled_from((Command.OPEN, Command.READY, Command.KEEPALIVE, Command.DISCONNECT)))
    sender = (
        Sender.WORKER if command is Command.READY else draw(st.sampled_from((Sender.WORKER, Sender.BROKER)))
    )
    if command is Command.OPEN:
        return Packet(draw(st.sampled_from(Sender)), command, dialect=dialect, body=draw(BODIES))
    body = draw(st.one_of(st.none(), BODIES)) if command is Command.DISCONNECT else None
    return Packet(sender, command, dialect=dialect, service=draw(NAMES), body=body)


@st.composite
def requests(draw: st.DrawFn, dialect: Dialect) -> Packet:
    command = draw(st.sampled_from(REQUESTS[:3] if dialect is Dialect.SEED else REQUESTS))
    sender = draw(st.sampled_from((Sender.CLIENT, Sender.BROKER)))
    packet = Packet(sender, command, dialect=dialect, uuid=draw(NAMES), body=draw(BODIES))
    if sender is Sender.BROKER and (command is Command.MMI or draw(st.booleans())):
        packet.client = draw(ADDRESSES)
    else:
        packet.service, packet.target = draw(NAMES), draw(TARGETS)
    return packet


@st.composite
def answers(draw: st.DrawFn, dialect: Dialect) -> Packet:
    sender = draw(st.sampled_from((Sender.WORKER, Sender.BROKER)))
    commands = (*ANSWERS, Command.MMI) if sender is Sender.BROKER else ANSWERS
    command = draw(st.sampled_from(ANSWERS[:2] if dialect is Dialect.SEED else commands))
    packet = Packet(sender, command, dialect=dialect, uuid=draw(NAMES), body=draw(BODIES))
    packet.status, packet.status_text = draw(st.integers(100, 999)), draw(STATUS_TEXTS)
    if sender is Sender.WORKER and draw(st.booleans()):
        packet.client = draw(ADDRESSES)
    else:
        packet.service = draw(NAMES)
    if sender is Sender.BROKER:
        packet.sequence = draw(st.one_of(st.none(), st.integers(0, 10**19 - 1)))
    return packet


@st.composite
def quirks(draw: st.DrawFn, dialect: Dialect) -> Packet:
    if draw(st.booleans()):
        service = draw(NAMES.filter(lambda name: name not in KNOWN))
        return Packet(Sender.BROKER, Command.DISCONNECT, service=service, quirk=SWAPPED)
    return Packet(
        Sender.BROKER, Command.RESPONSE, service=draw(NAMES), body=draw(BODIES), quirk=NO_UUID_STATUS
    )


KNOWN = {f"0x{number:02d}" for number in range(12)}
"""A service of such a name, exchanged with its command, is another message."""

PACKETS = st.sampled_from(Dialect).flatmap(
    lambda dialect: st.one_of(presences(dialect), requests(dialect), answers(dialect), quirks(dialect))
)


@given(PACKETS)
def test_every_form_comes_back(packet: Packet) -> None:
    frames = encode(packet)
    again = decode(frames)
    assert encode(again) == frames
    sent, seen = fields(packet), fields(again)
    if packet.dialect is Dialect.SEED and packet.target is not None and packet.target.kind == "list":
        assert again.target is not None
        assert again.target.names == packet.target.names  # a list of one, without brackets, is a name
        sent.pop("target")
        seen.pop("target")
    assert seen == sent


FRAMES = st.lists(
    st.one_of(
        st.binary(max_size=8),
        st.sampled_from((b"", b"NFPC01", b"NFPW01", b"NFPB01", b"200", b"300 PENDING", b"all", b"[]", b"s")),
        st.integers(0, 13).map(lambda number: b"0x%02d" % number),
        st.integers(0, 12).map(lambda number: bytes((number,))),
    ),
    max_size=9,
)
HEADED = st.builds(
    lambda header, frames: [b"", header, *frames], st.sampled_from((b"NFPC01", b"NFPW01", b"NFPB01")), FRAMES
)


@given(st.one_of(FRAMES, HEADED))
def test_anything_is_read_or_refused(frames: list[bytes]) -> None:
    try:
        packet = decode(frames)
    except InvalidPacket:
        return
    written = encode(packet)
    assert encode(decode(written)) == written, "what was read is written in the one usual way"
    assert repr(packet)
