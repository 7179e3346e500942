"""What is owed when a port goes: answers, and one disconnect notice each (RFC 6, "Disconnection")."""

import errno

from broker.routing.departure import depart
from broker.wire.message import DELIMITER, NODEID_ANY, NORESPONSE, REQUEST, STREAMING, UPSTREAM, request
from broker.wire.parts import encode_part
from tests.tables import for_each
from tests.unit.routing.sim import GUEST, UNREACHABLE, Tree, hop, text_of


def behind(name):
    return encode_part(name) + DELIMITER


def notices(service):
    return [m for m in service.requests if (m.topic or "").endswith(".disconnect")]


# -- answers --------------------------------------------------------------------------------------


def test_a_lost_provider_answers_for_everything_it_owes():
    tree = Tree(1)
    service, client = tree.client(services=["echo"]), tree.client()
    client.ask("echo.a", tag=1)
    client.ask("echo.b", tag=1)
    client.ask("echo.c", tag=2, flags=STREAMING, payload=b"x")
    client.ask("echo.d", tag=3, front=behind(b"web"))
    client.ask("echo.e", tag=4, flags=NORESPONSE)
    client.ask("echo.f", tag=0)
    client.ask("echo.f", tag=0)
    assert service.leave() == 5
    assert sorted((m.topic, m.matchtag, m.errnum) for m in client.responses) == [
        ("echo.a", 1, UNREACHABLE),
        ("echo.b", 1, UNREACHABLE),
        ("echo.c", 2, UNREACHABLE),
        ("echo.d", 3, UNREACHABLE),
        ("echo.f", 0, UNREACHABLE),
    ]
    by_topic = {m.topic: m for m in client.responses}
    assert by_topic["echo.d"].front == behind(b"web")
    assert by_topic["echo.c"].flags & STREAMING
    assert by_topic["echo.c"].payload is None
    assert not client.port.pending
    assert not client.port.untagged


def test_matchtag_0_that_was_answered_is_not_answered_again():
    tree = Tree(1)
    service, client = tree.client(services=["echo"]), tree.client()
    client.ask("echo.x", tag=0)
    service.answer(service.requests[0])
    assert service.leave() == 0
    assert client.errnums == [0]


def test_a_repeat_loses_only_the_calls_of_who_left():
    tree = Tree(1)
    red, blue, client = tree.client(services=["red"]), tree.client(services=["blue"]), tree.client()
    client.ask("red.x")
    client.ask("blue.x")
    red.leave()
    assert [(m.topic, m.errnum) for m in client.responses] == [("red.x", UNREACHABLE)]
    blue.answer(blue.requests[0])
    assert [m.topic for m in client.responses] == ["red.x", "blue.x"]
    assert not client.port.pending


def test_who_removed_its_service_still_answers_what_it_owes():
    tree = Tree(1)
    service, client = tree.client(services=["echo"]), tree.client()
    client.ask("echo.a", tag=1)
    client.ask("echo.b", tag=2)
    tree[0].router.services.remove(b"echo", service.port)
    tree[0].router.invalidate()
    service.answer(service.requests[0])
    service.leave()
    assert [(m.matchtag, m.errnum) for m in client.responses] == [(1, 0), (2, UNREACHABLE)]


def test_a_lost_child_answers_everybody_who_waits_for_its_subtree():
    tree = Tree()
    service = tree.client(3, services=["echo"])
    near, far = tree.client(0), tree.client(6)
    for client in (near, far):
        client.ask("echo.x", nodeid=3)
    tree[0].ask("echo.own", nodeid=3)
    tree.settle()
    assert len(service.requests) == 3
    tree.cut(1)
    tree.settle()
    assert near.errnums == far.errnums == [UNREACHABLE]
    assert [m.errnum for m in tree[0].answers] == [UNREACHABLE]
    for asked in service.requests:
        service.answer(asked)
    tree.settle()
    assert near.errnums == [UNREACHABLE]
    assert tree.pending == 0


def test_a_lost_parent_answers_with_the_deployed_text():
    tree = Tree()
    tree.client(0, services=["echo"])
    client = tree.client(3)
    client.ask("echo.x")
    tree.settle()
    tree.cut(1)
    tree.settle()
    assert [(m.errnum, text_of(m)) for m in client.responses] == [(UNREACHABLE, "overlay disconnect")]


def test_the_calls_of_who_left_are_forgotten():
    tree = Tree()
    service, client = tree.client(4, services=["echo"]), tree.client(5)
    client.ask("echo.x", nodeid=4)
    tree.settle()
    client.leave()
    service.answer(service.requests[0])
    tree.settle()
    assert tree.pending == 0
    assert client.inbox == []


def test_subscriptions_and_services_go_with_their_port():
    tree = Tree(1)
    client = tree.client(services=["echo", "more"])
    tree[0].router.events.subscribe(client.port, b"a")
    tree[0].router.events.subscribe(client.port, b"a")
    client.leave()
    tree.client().publish("abc")
    assert tree[0].router.events.prefixes() == {}
    assert [name for name, _ in tree[0].router.services.names()] == ["probe"]
    assert client.inbox == []


# -- disconnect notices ---------------------------------------------------------------------------


def test_one_notice_for_each_service_nodeid_upstream_and_sender():
    tree = Tree(1)
    service, client = tree.client(services=["echo", "other"]), tree.client(cred=GUEST)
    for tag in (11, 12, 13):
        client.ask("echo.x", tag=tag)
        client.ask("echo.y", tag=tag)
        client.ask("echo.sub.z", tag=tag)
        client.ask("other.x", tag=tag)
        client.ask("echo.x", tag=tag, nodeid=0)
        client.ask("echo.x", tag=tag, nodeid=5, flags=UPSTREAM)
        client.ask("echo.x", tag=tag, front=behind(b"web-1"))
        client.ask("echo.x", tag=tag, front=behind(b"web-2"))
    service.inbox.clear()
    client.leave()
    top = hop(client.port.uuid)
    assert sorted((m.topic, m.nodeid, m.flags & UPSTREAM, m.front) for m in service.requests) == sorted(
        [
            ("echo.disconnect", NODEID_ANY, 0, top + DELIMITER),
            ("echo.sub.disconnect", NODEID_ANY, 0, top + DELIMITER),
            ("other.disconnect", NODEID_ANY, 0, top + DELIMITER),
            ("echo.disconnect", 0, 0, top + DELIMITER),
            ("echo.disconnect", 5, UPSTREAM, top + DELIMITER),
            ("echo.disconnect", NODEID_ANY, 0, top + behind(b"web-1")),
            ("echo.disconnect", NODEID_ANY, 0, top + behind(b"web-2")),
        ]
    )
    for message in service.requests:
        assert message.flags & NORESPONSE
        assert not message.flags & STREAMING
        assert message.payload is None
        assert message.matchtag == 11, "the tag of the first such request"
        assert (message.userid, message.rolemask) == (2000, 6)


@for_each("first", [b"web", b""])
def test_the_link_and_who_is_behind_it_get_a_notice_each(first):
    """Found here: the link's own first request, when decided before for a proxied sender, armed nothing."""
    tree = Tree(1)
    service, client = tree.client(services=["echo"]), tree.client()
    fronts = [behind(b"web"), DELIMITER]
    for front in fronts if first else reversed(fronts):
        client.ask("echo.x", front=front)
    client.leave()
    assert {m.front[37:] for m in notices(service)} == set(fronts)
    assert len(notices(service)) == 2


def test_only_who_asked_is_told_not_who_wanted_no_answer():
    tree = Tree(1)
    service, client = tree.client(services=["echo"]), tree.client()
    client.ask("echo.x", flags=NORESPONSE)
    client.leave()
    assert notices(service) == []


@for_each("front", [DELIMITER, behind(b"web")])
def test_a_senders_own_disconnect_disarms_and_arms_again_later(front):
    tree = Tree(1)
    service, client = tree.client(services=["echo"]), tree.client()
    client.ask("echo.x", front=front)
    client.ask("echo.disconnect", front=front, flags=NORESPONSE)
    assert len(notices(service)) == 1
    service.answer(service.requests[0])
    assert client.responses == [], "the sender said that it is gone"
    service.inbox.clear()
    client.ask("echo.x", front=front, tag=5)
    client.leave()
    assert [m.matchtag for m in notices(service)] == [5]


def test_a_disconnect_ends_the_calls_of_that_sender_to_that_service_only():
    tree = Tree(1)
    echo, other, client = tree.client(services=["echo"]), tree.client(services=["other"]), tree.client()
    for tag in (0, 1):
        client.ask("echo.x", tag=tag)
        client.ask("other.x", tag=tag)
    client.ask("echo.x", tag=3, front=behind(b"web"))
    client.ask("echo.disconnect", flags=NORESPONSE)
    for service in (echo, other):
        for asked in service.requests:
            service.answer(asked)
    assert [(m.topic, m.matchtag) for m in client.responses] == [
        ("echo.x", 3),
        ("other.x", 0),
        ("other.x", 1),
    ]
    assert not client.port.pending


def test_calls_that_share_a_matchtag_leave_nothing_open_on_their_way():
    """Found here: with two services behind one tag neither notice ended the calls, and a tree link filled up."""
    tree = Tree(3)
    tree.client(0, services=["red", "blue"])
    client = tree.client(1)
    client.ask("red.x", tag=1)
    client.ask("blue.x", tag=1)
    client.ask("red.y", tag=1)
    tree.settle()
    client.leave()
    tree.settle()
    assert tree.pending == 0


def test_a_disconnect_from_who_never_asked_drops_nothing():
    tree = Tree(1)
    service, client = tree.client(services=["echo"]), tree.client()
    client.ask("echo.x", nodeid=0)
    client.ask("echo.disconnect", flags=NORESPONSE)
    service.answer(service.requests[0])
    assert client.errnums == [0]


def test_notices_cross_the_tree_once():
    tree = Tree()
    client, at_root, far = tree.client(3), tree.client(0, services=["top"]), tree.client(6, services=["far"])
    client.ask("top.x")
    client.ask("far.x", nodeid=6)
    tree.settle()
    client.leave()
    tree.settle()
    for service in (at_root, far):
        (notice,) = notices(service)
        assert notice.front.endswith(hop(client.port.uuid) + DELIMITER)
        service.answer(service.requests[0])
    tree.settle()
    assert tree.pending == 0


def test_a_notice_that_passes_ends_the_calls_on_its_way():
    tree = Tree()
    _service, client = tree.client(0, services=["top"]), tree.client(3)
    client.ask("top.stream", flags=STREAMING)
    client.ask("top.log", tag=0)
    tree.settle()
    assert tree.pending == 3
    client.leave()
    tree.settle()
    assert tree.pending == 0
    assert not any(port.untagged for rank in tree.ranks for port in rank.router.ports)


def test_a_lost_child_gets_a_notice_sent_for_each_of_its_streams():
    tree = Tree()
    service, client = tree.client(2, services=["echo"]), tree.client(3)
    client.ask("echo.s", nodeid=2, tag=1, flags=STREAMING, payload=b"x")
    client.ask("echo.s", nodeid=2, tag=2, flags=STREAMING)
    client.ask("echo.once", nodeid=2, tag=3)
    tree.settle()
    tree.cut(1)
    tree.settle()
    assert [m.matchtag for m in notices(service)] == [1, 2]
    for notice in notices(service):
        assert notice.front.endswith(hop(client.port.uuid) + DELIMITER)
        assert notice.flags & NORESPONSE
        assert notice.payload is None
    assert client.errnums == [UNREACHABLE] * 3


def test_a_lost_parent_ends_the_streams_that_came_from_above():
    tree = Tree()
    service, client = tree.client(3, services=["echo"]), tree.client(0)
    client.ask("echo.s", nodeid=3, flags=STREAMING)
    tree.settle()
    tree.cut(1)
    tree.settle()
    assert [m.topic for m in notices(service)] == ["echo.disconnect"]
    assert notices(service)[0].front == service.requests[0].front


def test_a_notice_reaches_a_provider_that_does_not_keep_up():
    """Found here: EAGAIN to a notice, which wants no answer, would leave its streams open for ever."""
    tree = Tree(3)
    service = tree.client(0, services=["echo"])
    far, near = tree.client(1), tree.client(0, services=["mine"])
    for client in (far, near):
        client.ask("echo.s", flags=STREAMING)
    tree.settle()
    tree[0].router.set_busy(service.port, True)
    far.leave()
    near.ask("echo.disconnect", flags=NORESPONSE)
    near.ask("echo.disconnect", flags=NORESPONSE)
    tree.settle()
    assert len(notices(service)) == 2, "and one that ends nothing has to wait like any request"


def test_notices_are_bounded():
    tree = Tree(1, pending_max=10)
    service, client = tree.client(services=["echo"]), tree.client()
    for number in range(50):
        client.ask("echo.x", front=behind(b"web-%d" % number))
    client.leave()
    assert len(notices(service)) == 10


def test_leaving_twice_owes_nothing():
    tree = Tree(1)
    service, client = tree.client(services=["echo"]), tree.client()
    client.ask("echo.x")
    client.leave()
    depart(tree[0].router, client.port)
    assert len(notices(service)) == 1


def test_a_provider_that_calls_itself_may_leave():
    tree = Tree(3)
    client = tree.client(1, services=["echo"])
    client.ask("echo.x")
    assert len(client.requests) == 1
    client.leave()
    tree.settle()
    assert tree[0].notices == []
    assert tree.pending == 0


def test_errors_that_nobody_wants_are_counted():
    tree = Tree(1)
    client = tree.client()
    client.ask("gone.x", flags=NORESPONSE)
    client.ask("gone.disconnect", flags=NORESPONSE)  # nobody is left who should hear it: that is no loss
    assert tree[0].router.counters.drops == {f"request without response: errno {errno.ENOSYS}": 1}
    assert [m for m in client.inbox if m.type != REQUEST] == []


def test_who_said_goodbye_and_asks_again_is_owed_another_notice():
    tree = Tree(1)
    service, client = tree.client(services=["echo"]), tree.client()
    asked = request("echo.x", matchtag=1)
    for _ in range(2):
        client.router.request(client.port, asked.copy())
    client.ask("echo.disconnect", tag=0, flags=NORESPONSE)
    client.router.request(client.port, asked.copy())
    client.leave()
    assert [m.topic for m in service.requests] == [
        "echo.x",
        "echo.x",
        "echo.disconnect",
        "echo.x",
        "echo.disconnect",
    ]
