"""A response passes only from whom the request went to, and once (RFC 6)."""

import errno

from broker.routing.open_calls import REPEATS_MAX
from broker.routing.users import hold_call_caps
from broker.wire.message import DELIMITER, STREAMING, TOPIC, response
from broker.wire.parts import encode_part
from tests.tables import for_each
from tests.unit.routing.sim import GUEST, Tree, hop, text_of


def asked_once(flags=0, tag=1, **limits):
    """A service with one request of a client in hand."""
    tree = Tree(1, **limits)
    service, client = tree.client(services=["echo"]), tree.client()
    client.ask("echo.x", tag=tag, flags=flags)
    return tree, service, client, service.requests[0]


def test_a_response_comes_back_with_the_stack_the_request_had():
    _tree, service, client, asked = asked_once()
    service.answer(asked, payload=b"ok")
    (answer,) = client.responses
    assert (answer.front, answer.payload, answer.matchtag) == (DELIMITER, b"ok", 1)
    assert not client.port.pending


def test_a_call_is_answered_once():
    tree, service, client, asked = asked_once()
    service.answer(asked)
    service.answer(asked)
    assert len(client.responses) == 1
    assert tree[0].router.counters.drops == {"response to no open call": 1}


def test_a_stream_ends_at_the_first_error():
    _tree, service, client, asked = asked_once(STREAMING)
    for _ in range(3):
        service.answer(asked)
    service.answer(asked, errnum=errno.ENODATA)
    service.answer(asked)
    service.answer(asked, errnum=errno.ENODATA)
    assert client.errnums == [0, 0, 0, errno.ENODATA]
    assert not client.port.pending


@for_each(
    ("tag", "topic", "seen"),
    [
        (5, "echo.other", "echo.x"),
        (5, "", "echo.x"),
        (5, "x" * 70_000, "echo.x"),
        (0, "echo.other", "echo.other"),  # calls that share a tag are not told apart by it
        (0, "", "echo.x"),
        (0, "x" * 70_000, "echo.x"),
    ],
)
def test_a_response_has_the_topic_of_its_request(tag, topic, seen):
    """RFC 3, "Response Message Type": "a topic string, copied from the request"."""
    tree = Tree(1)
    service, client = tree.client(services=["echo"]), tree.client()
    client.ask("echo.x", tag=tag)
    answer = response(service.requests[0], b"p")
    answer.topic_part = encode_part(topic.encode()) if topic else b""
    if not topic:
        answer.set_flags(answer.flags & ~TOPIC)
    tree[0].router.response(service.port, answer)
    (got,) = client.responses
    assert (got.topic, got.payload, got.flags & TOPIC) == (seen, b"p", TOPIC)


def test_nobody_answers_for_somebody_else():
    tree, service, client, asked = asked_once()
    for liar in (tree.client(cred=GUEST), tree.client(), client):
        liar.answer(asked, payload=b"forged")
    assert client.responses == []
    service.answer(asked, payload=b"true")
    assert [m.payload for m in client.responses] == [b"true"]


def test_the_provider_cannot_answer_what_it_was_not_asked():
    tree, service, client, asked = asked_once()
    other = tree.client()
    forged = [
        response(asked),
        response(asked),
        response(asked),
        response(asked),
    ]
    forged[0].front = hop(other.port.uuid) + DELIMITER
    forged[1].front = hop(client.port.uuid) + encode_part(b"behind") + DELIMITER
    forged[2].head = asked.head[:3] + b"\x02" + asked.head[4:13] + bytes(4)
    forged[2].tag = b"\0\0\0\x02"
    forged[3].front = hop(tree[0].own.uuid) + DELIMITER
    for message in forged:
        tree[0].router.response(service.port, message)
    assert client.responses == []
    assert other.responses == []
    assert tree[0].answers == []
    assert len(client.port.pending) == 1


@for_each("front", [b"", DELIMITER, encode_part(b"x" * 36) + DELIMITER, b"\x24abc"])
def test_a_response_without_a_route_of_ours_is_dropped(front):
    tree, service, _client, asked = asked_once()
    tree[0].ask("echo.own", tag=1)
    message = response(asked)
    message.front = front
    tree[0].router.response(service.port, message)
    assert tree[0].router.counters.drops == {"response to an unknown route": 1}
    assert tree[0].answers == [], "deployed brokers let this complete a call of the broker's own"


def test_a_child_cannot_answer_for_another_child():
    tree = Tree(7)
    client, right = tree.client(0), tree.client(2, services=["echo"])
    client.ask("echo.x", nodeid=2)
    tree.settle()
    forged = response(right.requests[0], b"forged")
    tree[0].router.response(tree.links[1][0], forged)
    assert client.responses == []
    right.answer(right.requests[0], payload=b"true")
    tree.settle()
    assert [m.payload for m in client.responses] == [b"true"]


def test_a_child_that_names_a_former_uuid_is_dropped_and_counted():
    tree = Tree(3)
    client, service = tree.client(0), tree.client(1, services=["echo"])
    client.ask("echo.x", nodeid=1)
    tree.settle()
    tree[0].router.reincarnate("ffffffff-0000-4000-8000-000000000000")
    service.answer(service.requests[0])
    tree.settle()
    assert client.responses == []
    assert tree[0].router.counters.drops == {"response from a child without our hop": 1}


def test_matchtags_belong_to_their_sender():
    tree = Tree(1)
    service, first, second = tree.client(services=["echo"]), tree.client(), tree.client()
    first.ask("echo.a", tag=1)
    second.ask("echo.b", tag=1)
    for asked in reversed(service.requests):
        service.answer(asked)
    assert [m.topic for m in first.responses] == ["echo.a"]
    assert [m.topic for m in second.responses] == ["echo.b"]


def test_senders_behind_one_link_have_tags_of_their_own():
    tree = Tree(1)
    service, proxy = tree.client(services=["echo"]), tree.client()
    fronts = [encode_part(b"web-1") + DELIMITER, encode_part(b"web-2") + DELIMITER, DELIMITER]
    for front in fronts:
        proxy.ask("echo.x", tag=1, front=front)
    for asked in service.requests:
        service.answer(asked)
    assert [m.front for m in proxy.responses] == fronts


# -- matchtag 0 -----------------------------------------------------------------------------------


def test_matchtag_0_takes_any_number_of_responses_and_no_more_state():
    _tree, service, client, asked = asked_once(tag=0)
    for _ in range(50):
        client.ask("echo.x", tag=0)
    for _ in range(60):
        service.answer(asked)
    assert [m.matchtag for m in client.responses] == [0] * 60
    assert not client.port.pending
    assert len(client.port.untagged) == 1


def test_matchtag_0_is_answered_only_by_who_was_asked():
    tree, service, client, asked = asked_once(tag=0)
    tree.client().answer(asked)
    stranger = response(asked)
    stranger.front = hop(service.port.uuid) + DELIMITER
    tree[0].router.response(service.port, stranger)
    assert client.responses == []
    assert service.responses == []


# -- repeated matchtags ---------------------------------------------------------------------------


def test_a_matchtag_used_twice_is_answered_twice():
    _tree, service, client, asked = asked_once()
    client.ask("echo.x")
    client.ask("echo.y")
    for number in range(5):
        service.answer(asked, payload=b"%d" % number)
    assert [m.payload for m in client.responses] == [b"0", b"1", b"2"]
    assert not client.port.pending


def test_a_matchtag_used_for_two_services_is_answered_by_each_once():
    tree = Tree(1)
    red, blue, client = tree.client(services=["red"]), tree.client(services=["blue"]), tree.client()
    client.ask("red.x")
    client.ask("blue.x")
    for service in (blue, blue, red, red):
        service.answer(service.requests[0])
    assert [m.topic for m in client.responses] == ["blue.x", "red.x"]
    assert not client.port.pending


def test_a_stream_and_a_call_that_share_a_matchtag_both_end():
    """Nobody can tell their answers apart but by the topic; what matters is that nothing stays open."""
    _tree, service, client, asked = asked_once(STREAMING)
    client.ask("echo.once")
    service.answer(asked)
    for _ in range(4):
        service.answer(asked, errnum=errno.ENODATA)
    assert client.errnums == [0, errno.ENODATA, errno.ENODATA]
    assert not client.port.pending


def test_repeats_are_bounded():
    _tree, service, client, asked = asked_once()
    for _ in range(REPEATS_MAX):
        client.ask("echo.x")
    assert client.errnums == [errno.EAGAIN]
    assert len(service.requests) == REPEATS_MAX
    for _ in range(REPEATS_MAX + 5):
        service.answer(asked)
    assert client.errnums == [errno.EAGAIN] + [0] * REPEATS_MAX


# -- caps -----------------------------------------------------------------------------------------


def test_open_calls_are_bounded_and_room_comes_back():
    _tree, service, client, asked = asked_once(pending_max=3)
    for tag in range(2, 6):
        client.ask("echo.x", tag=tag)
    assert [(m.matchtag, m.errnum) for m in client.responses] == [(4, errno.EAGAIN), (5, errno.EAGAIN)]
    assert text_of(client.responses[0]) == "more than 3 calls are open on this link"
    assert len(service.requests) == 3
    service.answer(asked)
    client.ask("echo.x", tag=9)
    assert service.requests[-1].matchtag == 9


def test_senders_with_matchtag_0_count_as_open_calls():
    _tree, _service, client, _asked = asked_once(pending_max=3)
    for number in range(4):
        client.ask("echo.x", tag=0, front=encode_part(b"web-%d" % number) + DELIMITER)
    assert client.errnums == [errno.EAGAIN] * 2


def test_one_link_at_its_cap_costs_no_other():
    tree, service, client, _asked = asked_once(pending_max=1)
    client.ask("echo.x", tag=2)
    other = tree.client()
    other.ask("echo.x", tag=2)
    assert client.errnums == [errno.EAGAIN]
    assert len(service.requests) == 2


def test_the_total_is_rationed():
    tree = Tree(1, pending_max=100, pending_total=40)
    service = tree.client(services=["echo"])
    greedy, modest = tree.client(), tree.client()
    for tag in range(1, 61):
        greedy.ask("echo.x", tag=tag)
    for tag in range(1, 6):
        modest.ask("echo.x", tag=tag)
    assert hold_call_caps(tree[0].router) == 65
    for client in (greedy, modest):
        client.ask("echo.x", tag=100)
    assert greedy.errnums == [errno.EAGAIN]
    assert modest.errnums == []
    for asked in service.requests[:50]:
        service.answer(asked)
    hold_call_caps(tree[0].router)
    greedy.ask("echo.x", tag=101)
    assert greedy.errnums.count(errno.EAGAIN) == 1, "the ration ends with its reason"


def test_a_congested_provider_is_a_matter_of_who_asks():
    tree, service, client, _asked = asked_once()
    tree[0].router.set_busy(service.port, True)
    client.ask("echo.x", tag=2)
    assert tree[0].busy_origins == [client.port], "a pure caller is paused, its request passes"
    assert service.requests[-1].matchtag == 2
    provider = tree.client(services=["other"])
    provider.ask("echo.x", tag=3)
    tree[0].ask("echo.x", tag=4)
    assert provider.errnums == [errno.EAGAIN]
    assert text_of(provider.responses[0]) == "client does not keep up with its requests"
    assert [m.errnum for m in tree[0].answers] == [errno.EAGAIN]
    service.ask("echo.self", tag=5)
    assert service.requests[-1].matchtag == 5, "its own outbox pauses nobody"
    tree[0].router.set_busy(service.port, False)
    provider.ask("echo.x", tag=6)
    assert service.requests[-1].matchtag == 6


def test_a_decision_made_before_the_congestion_does_not_pass_it_by():
    tree, service, _client, _asked = asked_once()
    caller = tree.client(services=["other"])
    caller.ask("echo.x", tag=1)
    tree[0].router.set_busy(service.port, True)
    caller.ask("echo.x", tag=2)
    caller.ask("echo.x", tag=3)
    assert caller.errnums == [errno.EAGAIN] * 2


def test_one_client_cannot_use_up_a_tree_link():
    """Found here: the link of a whole subtree had the cap of one client."""
    tree = Tree(3, pending_max=3)
    tree.client(0, services=["echo"])
    greedy, modest = tree.client(1, GUEST), tree.client(1, GUEST)
    for tag in range(1, 5):
        greedy.ask("echo.x", tag=tag)
    modest.ask("echo.x")
    tree.settle()
    assert greedy.errnums == [errno.EAGAIN]
    assert modest.errnums == []
    assert sum(len(port.pending) for port in tree[0].router.ports) == 4


# -- stamps ---------------------------------------------------------------------------------------


def test_responses_are_stamped_like_everything_else():
    tree = Tree(1)
    service, client = tree.client(cred=GUEST, services=["2000-echo"]), tree.client()
    client.ask("2000-echo.x")
    forged = response(service.requests[0], userid=0, rolemask=1)
    tree[0].router.response(service.port, forged)
    assert (client.responses[0].userid, client.responses[0].rolemask) == (2000, 6)
