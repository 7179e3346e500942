"""Whatever a web client sends, what reaches the owner link carries the stamp of its user and the hop of its connection.

An owner link turns userid 0xFFFFFFFF and rolemask 0 into OWNER (RFC 12), so neither may ever leave the gateway.
"""

import asyncio

from hypothesis import example, given
from hypothesis import strategies as st

from broker.errors import DecodeError
from broker.identity import USERID_UNKNOWN, PeerInfo, Role
from broker.transport.inproc import pair
from broker.wire import message as wire
from broker.wire.message import Message
from broker.wire.parts import encode_part
from broker.wire.payload import encode_json
from gateway.administration.service import Administration
from gateway.codecs import new_codec
from gateway.principal import Principal
from gateway.sessions.delivery import Delivery
from gateway.sessions.sessions import Sessions
from gateway.settings.schema import GatewaySettings, RuleEntry
from tests.unit.gateway.sessions.desk import Trusting

STACK = b"\x03abc\x04hops\x00"
OTHER = b"\x03abd\x04hops\x00"
ALL = RuleEntry(roles=("user",), prefixes=("",))


class Recorder:
    """An upstream that takes everything and grants every name."""

    joined, choked, epoch, reason = True, False, "e", ""
    journals, owner = False, None

    def __init__(self):
        self.sent = []
        self.receiver = None

    def send(self, message):
        self.sent.append(message.copy())
        if message.type == wire.REQUEST and message.topic == "service.add":
            self.receiver.answered(wire.response(message))
        return True

    @property
    def way(self):
        return self.send

    def forget(self, front):
        """Nothing is kept for a session."""


TOPICS = (
    b"calc.add calc.cancel calc.disconnect 7-x.disconnect event.publish event.subscribe service.add service.remove "
    b"gateway.session gateway.end x"
).split()
topics = st.sampled_from([b"", *TOPICS]) | st.binary(max_size=12)
payloads = st.none() | st.binary(max_size=20) | st.sampled_from(
    [{"topic": "news", "flags": 0}, {"topic": "", "flags": 32}, {"service": "7-x"}, {"service": "x"}]
).map(encode_json)  # fmt: skip
fronts = st.sampled_from([b"", wire.DELIMITER, STACK, OTHER]) | st.binary(min_size=1, max_size=9).map(
    lambda route: bytes((len(route),)) + route + wire.DELIMITER
)
words = st.sampled_from([0, 1, 4, 7, 0xFFFFFFFE, 0xFFFFFFFF]) | st.integers(0, 0xFFFFFFFF)


@st.composite
def messages(draw):
    """Any message a transport can hand over: canonical, otherwise as hostile as it likes."""
    kind = draw(st.sampled_from([wire.REQUEST, wire.RESPONSE, wire.EVENT, wire.CONTROL]))
    payload = draw(payloads)
    message = wire.request(
        "x",
        payload,
        matchtag=draw(words),
        userid=draw(words),
        rolemask=draw(words),
    )
    message.topic_part = encode_part(draw(topics))  # whatever a client writes, NULs too
    message.set_aux1(draw(words))
    own = wire.ROUTE | wire.TOPIC | (wire.PAYLOAD if payload is not None else 0)
    flags = (draw(st.integers(0, 255)) & ~(wire.ROUTE | wire.TOPIC | wire.PAYLOAD)) | own
    front = draw(fronts)
    message.front = front
    if not front:
        flags &= ~wire.ROUTE
    message.head = message.head[:3] + bytes((kind, flags)) + message.head[5:]
    return message


def received(who, sent, rules=(ALL,)):
    """(session, what reached the upstream) after a client of `who` has sent `sent`, as a provider with one request."""

    async def main():
        sessions = Sessions(GatewaySettings(rules=tuple(rules)), Trusting(), key=b"k" * 32)
        upstream = Recorder()
        delivery = upstream.receiver = Delivery(sessions, upstream)
        administration = Administration(sessions, delivery, None, reload=dict)
        near, far = pair(PeerInfo("inproc://a"), PeerInfo("inproc://b"), sessions.options)
        session = sessions.open(delivery, administration, who, near, kind="flux.v1", address="x")
        near.start(session)
        session.received(near, [wire.request("service.add", encode_json({"service": f"{who.userid}-x"}))])
        asked = wire.request(
            f"{who.userid}-x.run", b"1", matchtag=7, flags=wire.STREAMING, userid=0, rolemask=5
        )
        asked.front = STACK
        delivery.requested(asked)
        session.received(near, sent)
        front = session.front
        session.detach("done")
        far.close()
        await asyncio.sleep(0)
        assert sessions.counters.faults == 0
        return session.stamp, front, delivery.registrations.front, upstream.sent

    return asyncio.run(main())


def check(who, sent):
    stamp, front, registrations, out = received(who, sent)
    for message in out:
        assert message.head[5:13] == stamp
        assert message.userid == who.userid != USERID_UNKNOWN
        assert message.rolemask == int(who.roles)
        assert message.rolemask != 0
        assert not message.rolemask & Role.LOCAL
        if message.type == wire.REQUEST:
            mine = message.topic in ("service.add", "service.remove")
            assert message.front == (registrations if mine else front)
            assert message.topic not in ("event.subscribe", "event.unsubscribe")
        elif message.type == wire.EVENT:
            assert message.front == wire.DELIMITER
            assert message.sequence == 0
        else:
            assert message.type == wire.RESPONSE
            assert (message.front, message.tag, message.topic) == (STACK, b"\0\0\0\7", f"{who.userid}-x.run")


users = st.builds(
    Principal,
    name=st.just("u"),
    userid=st.sampled_from([0, 7, 0xFFFFFFFE]),
    roles=st.sampled_from([Role.USER, Role.USER | Role.ADMIN, Role.ADMIN, Role.OWNER]),
    kind=st.just("token"),
    credential=st.just("token:1"),
)


@given(users, st.lists(messages(), max_size=8))
@example(
    Principal("u", 7, Role.USER, "token", "c"),
    [wire.request("calc.add", matchtag=1, userid=USERID_UNKNOWN, rolemask=0)],
)
def test_nothing_reaches_the_owner_link_with_a_stamp_of_its_own(who, sent):
    check(who, sent)


@given(st.lists(st.binary(max_size=60) | messages().map(Message.framed), max_size=6).map(b"".join))
def test_nor_do_any_bytes_in_a_websocket_message(data):
    try:
        found = new_codec("flux.v1").decode(data, False)
    except DecodeError:
        return
    check(Principal("u", 7, Role.USER, "token", "c"), [one for one in found if isinstance(one, Message)])


@given(st.lists(messages(), max_size=8))
@example([wire.request("event.publish", matchtag=1), wire.request("event.publish", b"{}\0", matchtag=2)])
def test_without_a_rule_a_users_messages_do_not_leave_the_gateway(sent):
    rules = [RuleEntry(roles=("user",), kinds=("register",), prefixes=("7-x",))]
    _stamp, _front, registrations, out = received(Principal("u", 7, Role.USER, "token", "c"), sent, rules)
    for message in out:
        assert message.type == wire.RESPONSE or message.front == registrations
