"""What the corridor hands to whoever records it: each message once, with the bytes its ends saw."""

import errno

from broker.journal import layout
from broker.journal.tap import Tap
from broker.routing import recording
from broker.wire.message import DELIMITER, NORESPONSE, STREAMING, request, response
from broker.wire.parts import encode_part
from tests.live.chunks import DENIED, IN, OUT, Shelf
from tests.tables import for_each
from tests.unit.routing.recorded import Recorded
from tests.unit.routing.sim import GUEST, OWNER

NOBODY = 0xFFFFFFFF


def test_directions_are_those_of_the_journal():
    assert (recording.IN, recording.OUT, recording.DENIED) == (layout.IN, layout.OUT, layout.DENIED)


@for_each("capture", ["in", "both"])
def test_a_request_and_its_response_join_on_the_stack(capture):
    here = Recorded(capture=capture)
    service, caller = here.client(services=["kvs"]), here.client()
    caller.ask("kvs.get", tag=7, payload=b"key", front=encode_part(b"web") + DELIMITER)
    service.answer(service.requests[0], payload=b"value")
    records = here.records
    asked, answered = [r for r in records if r.direction == IN]
    assert (asked.peer, asked.via, asked.claimed) == (caller.port.peer, service.port.peer, NOBODY)
    assert (answered.peer, answered.via) == (service.port.peer, caller.port.peer)
    assert asked.frame == service.requests[0].framed()
    assert asked.message.front == answered.message.front
    assert asked.message.userid == answered.message.userid == OWNER.userid
    delivered = [r for r in records if r.direction == OUT]
    if capture == "in":
        assert not delivered
    else:
        assert [(r.peer, r.frame) for r in delivered] == [
            (service.port.peer, service.requests[0].framed()),
            (caller.port.peer, caller.responses[0].framed()),
        ]


def test_repeated_calls_take_the_same_marks_and_their_own_frames():
    here = Recorded()
    service, caller = here.client(services=["kvs"]), here.client()
    for tag in range(1, 6):
        caller.ask("kvs.get", tag=tag, payload=b"%d" % tag)
    for asked in list(service.requests):
        service.answer(asked, payload=asked.payload)
    asked = [r for r in here.records if r.direction == IN and r.peer == caller.port.peer]
    answered = [r for r in here.records if r.direction == IN and r.peer == service.port.peer]
    assert (
        [r.message.payload for r in asked]
        == [r.message.payload for r in answered]
        == [b"%d" % i for i in range(1, 6)]
    )
    assert [r.message.payload for r in here.records if r.direction == OUT and r.peer == caller.port.peer] == [
        b"%d" % i for i in range(1, 6)
    ]


def test_a_claim_is_kept_beside_the_stamp():
    here = Recorded()
    service, guest = here.client(services=["kvs"]), here.client(cred=GUEST)
    here.router.request(guest.port, request("kvs.get", matchtag=1, userid=0, rolemask=1))
    here.router.response(service.port, response(service.requests[0], userid=4711, rolemask=1))
    asked, answered = [r for r in here.records if r.direction == IN]
    assert (asked.claimed, asked.message.userid) == (0, GUEST.userid)
    assert (answered.claimed, answered.message.userid) == (4711, 4711)


def test_one_provider_that_answers_for_many_claims_each_its_own():
    here = Recorded()
    service, caller = here.client(services=["kvs"]), here.client()
    caller.ask("kvs.watch", flags=STREAMING)
    for userid in (11, 12, 11):
        here.router.response(service.port, response(service.requests[0], userid=userid, rolemask=2))
    assert [r.claimed for r in here.records if r.peer == service.port.peer and r.direction == IN] == [
        11,
        12,
        11,
    ]


def test_built_in_services_accept_and_only_deliver_answers():
    here = Recorded()
    caller, own = here.client(), here.router.own
    caller.ask("probe.ping")
    assert here.seen() == [
        (IN, caller.port.peer, own.peer, 0),
        (OUT, own.peer, caller.port.peer, 0),
        (OUT, caller.port.peer, own.peer, 0),
    ]
    here = Recorded(capture="in")
    caller = here.client()
    caller.ask("probe.ping")
    assert here.seen() == [(IN, caller.port.peer, here.router.own.peer, 0)]


def test_the_brokers_own_calls_are_deliveries():
    here = Recorded()
    service = here.client(services=["kvs"])
    here.tree[0].ask("kvs.get")
    service.answer(service.requests[0])
    own = here.router.own.peer
    assert here.seen() == [
        (OUT, service.port.peer, own, 0),
        (IN, service.port.peer, own, 0),
        (OUT, own, service.port.peer, 0),
    ]
    asked, answered, taken = (r.message for r in here.records)
    assert asked.routes == answered.routes == taken.routes == [here.router.own.uuid.encode()]


@for_each("flags", [0, NORESPONSE])
def test_a_refused_request_is_denied_with_its_errno(flags):
    here = Recorded(capture="in")
    guest = here.client(cred=GUEST)
    here.router.request(
        guest.port, request("nobody.here", b"what", matchtag=5, flags=flags, userid=0, rolemask=1)
    )
    (denied,) = here.records
    assert (denied.direction, denied.reason, denied.peer, denied.claimed) == (
        DENIED,
        errno.ENOSYS,
        guest.port.peer,
        0,
    )
    assert (denied.message.userid, denied.message.payload, denied.message.matchtag) == (
        GUEST.userid,
        b"what",
        5,
    )
    assert denied.message.front == DELIMITER, "as it came: no hop of ours"
    assert len(guest.responses) == (0 if flags else 1)


@for_each(
    ("topic", "more", "errnum"),
    [
        ("x." + "y" * 2000, {}, errno.EPROTO),
        ("kvs.get", {"nodeid": 9}, errno.EHOSTUNREACH),
        ("kvs.get", {"front": encode_part(b"h" * 200) * 20 + DELIMITER}, errno.EPROTO),
    ],
)
def test_each_refusal_has_its_reason(topic, more, errnum):
    here = Recorded(capture="in")
    here.client(services=["kvs"])
    caller = here.client()
    caller.ask(topic, **more)
    assert here.seen() == [(DENIED, caller.port.peer, 0, errnum)]
    assert caller.errnums == [errnum]


def test_a_refusal_and_its_answer_are_both_recorded():
    here = Recorded()
    caller = here.client()
    caller.ask("nobody.here")
    assert here.seen() == [
        (DENIED, caller.port.peer, 0, errno.ENOSYS),
        (OUT, caller.port.peer, here.router.own.peer, 0),
    ]
    assert here.records[1].frame == caller.responses[0].framed()


def test_a_provider_that_does_not_keep_up():
    here = Recorded(capture="in")
    service = here.client(services=["kvs"])
    pure, other = here.client(), here.client(services=["other"])
    here.router.set_busy(service.port, True)
    pure.ask("kvs.get")
    other.ask("kvs.get")
    assert here.seen() == [
        (IN, pure.port.peer, service.port.peer, 0),  # its sender is paused, the request passes
        (DENIED, other.port.peer, 0, errno.EAGAIN),
    ]


def test_a_service_refuses_what_was_delivered_to_it():
    here = Recorded(capture="in")
    guest = here.client(cred=GUEST)
    guest.ask("probe.secret", payload=b"p")
    here.tree.settle()
    asked = here.tree[0].own_inbox[0]
    here.router.record_refusal(asked, errno.EPERM)
    accepted, denied = here.records
    assert (denied.direction, denied.reason, denied.peer) == (DENIED, errno.EPERM, guest.port.peer)
    assert (denied.via, denied.claimed) == (here.router.own.peer, NOBODY)
    assert denied.frame == accepted.frame == asked.framed()


def test_who_a_refused_request_claimed_to_be_is_told():
    here = Recorded(capture="in")
    guest = here.client(cred=GUEST)
    here.router.request(guest.port, request("probe.secret", matchtag=1, userid=OWNER.userid, rolemask=1))
    here.tree.settle()
    here.router.record_refusal(here.tree[0].own_inbox[0], errno.EPERM)
    accepted, denied = here.records
    assert accepted.claimed == denied.claimed == OWNER.userid
    assert denied.message.userid == GUEST.userid


def test_stray_responses_are_no_records():
    here = Recorded()
    service, caller = here.client(services=["kvs"]), here.client()
    caller.ask("kvs.get")
    asked = service.requests[0]
    service.answer(asked)
    before = len(here.records)
    service.answer(asked)
    caller.answer(asked)
    assert len(here.records) == before
    assert here.router.counters.stray_responses == 2


def test_what_is_owed_when_a_provider_goes_is_delivered_only():
    here = Recorded()
    service, caller = here.client(services=["kvs"]), here.client()
    caller.ask("kvs.get", tag=1)
    caller.ask("kvs.get", tag=0)
    before = len(here.records)
    service.leave()
    assert here.seen()[before:] == [(OUT, caller.port.peer, service.port.peer, 0)] * 2
    assert [r.frame for r in here.records[before:]] == [m.framed() for m in caller.responses]


def test_disconnect_notices_are_deliveries_only():
    here = Recorded()
    service, caller = here.client(services=["kvs"]), here.client()
    caller.ask("kvs.get")
    before = len(here.records)
    caller.leave()
    (notice,) = here.records[before:]
    assert (notice.direction, notice.peer, notice.via) == (OUT, service.port.peer, caller.port.peer)
    assert notice.message.topic == "kvs.disconnect"
    here = Recorded(capture="in")
    service, caller = here.client(services=["kvs"]), here.client()
    caller.ask("kvs.get")
    caller.leave()
    assert len(here.records) == 1


def test_a_clients_own_disconnect_is_a_request_like_others():
    here = Recorded(capture="in")
    service, caller = here.client(services=["kvs"]), here.client()
    caller.ask("kvs.get")
    caller.ask("kvs.disconnect", flags=NORESPONSE, tag=0)
    assert [r.message.topic for r in here.records] == ["kvs.get", "kvs.disconnect"]
    assert here.records[1].via == service.port.peer


# -- the tree ----------------------------------------------------------------------------------------


@for_each("rank", [0, 1])
def test_stacks_across_the_tree_join_at_every_rank(rank):
    here = Recorded(size=3, rank=rank)
    service = here.client(rank=1, services=["kvs"])
    caller = here.client(rank=2)
    caller.ask("kvs.get", nodeid=1, tag=3)
    here.tree.settle()
    service.answer(service.requests[0], payload=b"v")
    asked, answered = [r for r in here.records if r.direction == IN]
    assert asked.message.front == answered.message.front
    assert asked.message.tag == answered.message.tag
    assert caller.responses[0].payload == b"v"
    asked_out, answered_out = [r for r in here.records if r.direction == OUT]
    assert (asked_out.frame, asked_out.peer, asked_out.via) == (asked.frame, asked.via, asked.peer)
    assert (answered_out.peer, answered_out.via) == (answered.via, answered.peer)
    assert answered.message.front.endswith(answered_out.message.front)


# -- on and off --------------------------------------------------------------------------------------


def test_capture_on_and_off_in_mid_call():
    here = Recorded()
    here.router.recording = None
    service, caller = here.client(services=["kvs"]), here.client()
    caller.ask("kvs.get", tag=1)
    assert here.records == []
    here.router.recording = here.tap
    service.answer(service.requests[0])
    caller.ask("kvs.get", tag=2)
    here.router.recording = None
    service.answer(service.requests[1])
    caller.ask("kvs.get", tag=3)
    caller.publish("news")
    assert [(r.direction, r.message.matchtag) for r in here.records] == [(IN, 1), (OUT, 1), (IN, 2), (OUT, 2)]
    here.router.recording = here.tap
    assert here.router.recording is here.tap
    service.answer(service.requests[2])
    assert [(r.direction, r.message.matchtag) for r in here.records][4:] == [(IN, 3), (OUT, 3)]
    assert caller.errnums == [0, 0, 0]


def test_another_recording_makes_marks_of_its_own():
    here = Recorded()
    service, caller = here.client(services=["kvs"]), here.client()
    here.router.events.subscribe(service.port, b"")
    caller.ask("kvs.watch", tag=1, flags=STREAMING)
    service.answer(service.requests[0])
    caller.publish("news")
    first = here.shelf
    here.shelf = Shelf.of("in")
    here.tap = Tap(here.shelf)
    for number in range(10):
        here.tap.peer(str(number), layout.CURVE, "client")
    here.number(*here.router.ports)
    here.router.recording = here.tap
    service.answer(service.requests[0])
    caller.ask("kvs.watch", tag=2, flags=STREAMING)
    caller.publish("news")
    assert [(r.direction, r.peer) for r in here.records] == [
        (IN, service.port.peer),
        (IN, caller.port.peer),
        (IN, caller.port.peer),
    ]
    assert min(r.peer for r in here.records) > 10
    assert len(first.flux) == 0, "what was not flushed stays with the tap that took it"


@for_each("size", [0, 1, 200, 254, 255, 462, 463, 464, 500, 511, 512, 600, 70_000])
def test_frames_are_whole_at_every_size(size):
    here = Recorded()
    service, caller = here.client(services=["kvs"]), here.client()
    caller.ask("kvs.put", payload=b"p" * size)
    service.answer(service.requests[0], payload=b"q" * size)
    records = here.records
    assert [r.message.payload for r in records] == [b"p" * size] * 2 + [b"q" * size] * 2
    assert records[3].frame == caller.responses[0].framed()


def test_a_recorded_message_is_framed_anew_and_never_stale():
    message = response(request("a.b", matchtag=9), b"x")
    message.front = encode_part(b"ours") + encode_part(b"theirs") + DELIMITER
    before = message.copy()
    full = message.recorded(encode_part(b"theirs") + DELIMITER)
    assert full == before.framed()
    assert message.framed() == message.copy().framed()
    assert message.routes == [b"theirs"]
