"""Any, rank and upstream routing on every rank of a tree of seven (RFC 3, "Request Routing")."""

import itertools

from broker.routing.request_routing import ROUTE_MAX_BYTES
from broker.wire.message import (
    DELIMITER,
    NODEID_ANY,
    NODEID_UPSTREAM,
    NORESPONSE,
    STREAMING,
    TOPIC,
    UPSTREAM,
    USER1,
    request,
)
from broker.wire.parts import encode_part
from tests.tables import for_each
from tests.unit.routing.sim import GUEST, NO_SERVICE, UNREACHABLE, Tree, hop, text_of

RANKS = range(7)


@for_each(("source", "target"), list(itertools.product(RANKS, RANKS)))
def test_a_rank_is_reached_from_everywhere_by_the_shortest_way(source, target):
    tree = Tree()
    client = tree.client(source)
    client.ask("probe.ping", nodeid=target, tag=7)
    tree.settle()
    (answer,) = client.responses
    assert (answer.payload, answer.matchtag, answer.errnum) == (str(target).encode(), 7, 0)
    assert answer.front == DELIMITER
    ups = {source} | set(_above(tree, source))
    downs = {target} | set(_above(tree, target))
    assert len(tree.crossed) == 2 * len(ups ^ downs)
    assert tree.pending == 0


def _above(tree, rank):
    while rank:
        rank = tree.topology.parent(rank)
        yield rank


@for_each("source", RANKS)
def test_any_is_answered_here_when_the_service_is_here(source):
    tree = Tree()
    client = tree.client(source)
    client.ask("probe.ping")
    tree.settle()
    assert client.responses[0].payload == str(source).encode()
    assert not tree.crossed


@for_each(("source", "provider"), list(itertools.product(RANKS, (0, 1, 2))))
def test_any_goes_up_until_somebody_has_the_service(source, provider):
    tree = Tree()
    service = tree.client(provider, services=["echo"])
    client = tree.client(source)
    client.ask("echo.say", tag=3)
    tree.settle()
    if provider not in (source, *_above(tree, source)):
        assert client.errnums == [NO_SERVICE]
        assert text_of(client.responses[0]) == "No service matching echo.say is registered"
        return
    (asked,) = service.requests
    assert asked.nodeid == NODEID_ANY
    assert len(asked.routes) == 1 + len(
        set(_above(tree, source)) - set(_above(tree, provider)) - {provider}
    ) + (source != provider)
    service.answer(asked, payload=b"yes")
    tree.settle()
    assert [m.payload for m in client.responses] == [b"yes"]
    assert tree.pending == 0


def test_a_service_that_is_elsewhere_is_named_in_the_text_alone():
    tree = Tree()
    asked = []
    tree[0].router.find_elsewhere = lambda topic: asked.append(topic) or "echo is on rank 2"
    client = tree.client(1)
    client.ask("echo.say")
    tree.settle()
    assert client.errnums == [NO_SERVICE]
    assert text_of(client.responses[0]) == (
        "No service matching echo.say is registered here: echo is on rank 2"
    )
    assert asked == ["echo.say"]


@for_each("source", RANKS)
def test_upstream_with_the_own_rank_skips_the_local_service(source):
    tree = Tree()
    client = tree.client(source)
    client.ask("probe.ping", nodeid=source, flags=UPSTREAM)
    tree.settle()
    (answer,) = client.responses
    if source == 0:
        assert (answer.errnum, text_of(answer), answer.flags & UPSTREAM) == (UNREACHABLE, None, UPSTREAM)
    else:
        assert answer.payload == str(tree.topology.parent(source)).encode()


def test_upstream_with_another_rank_is_delivered_here():
    tree = Tree()
    client = tree.client(3)
    client.ask("probe.ping", nodeid=6, flags=UPSTREAM)
    tree.settle()
    assert client.responses[0].payload == b"3"


@for_each("nodeid", [7, 99, 0x7FFFFFFF, 0xFFFFFFFD, NODEID_UPSTREAM])
@for_each("source", [0, 1, 6])
def test_a_rank_outside_the_instance_is_unreachable(source, nodeid):
    tree = Tree()
    client = tree.client(source)
    asked = request("probe.ping", matchtag=1)
    asked.set_aux1(nodeid)
    client.router.request(client.port, asked)
    tree.settle()
    assert [(m.errnum, m.payload) for m in client.responses] == [(UNREACHABLE, None)]
    assert not tree.crossed


@for_each("target", [0, 3, 5])
def test_a_service_that_an_addressed_rank_lacks_is_said_by_that_rank(target):
    tree = Tree()
    client = tree.client(4)
    client.ask("nope", nodeid=target, flags=STREAMING | USER1, payload=b"x")
    tree.settle()
    (answer,) = client.responses
    assert (answer.errnum, text_of(answer)) == (NO_SERVICE, "No service matching nope is registered")
    assert answer.flags & (STREAMING | USER1) == STREAMING | USER1
    assert answer.topic == "nope"


@for_each("nodeid", [NODEID_ANY, 0, 6, 99])
@for_each("flags", [NORESPONSE, NORESPONSE | STREAMING])
def test_noresponse_is_never_answered_not_even_with_an_error(nodeid, flags):
    tree = Tree()
    client = tree.client(2)
    client.ask("nope.x", nodeid=nodeid, flags=flags)
    client.ask("probe.ping", nodeid=nodeid, flags=flags)
    tree.settle()
    assert all(m.errnum == 0 for m in client.responses)
    assert any(rank.router.counters.drops for rank in tree.ranks)
    assert tree.pending == 0


def test_an_answer_to_a_request_that_wanted_none_goes_nowhere():
    tree = Tree(1)
    service, client = tree.client(services=["echo"]), tree.client()
    client.ask("echo.x", flags=NORESPONSE, tag=5)
    service.answer(service.requests[0])
    assert client.inbox == []
    assert tree[0].router.counters.drops == {"response to no open call": 1}


@for_each("source", [0, 1])
def test_a_missing_neighbour_is_unreachable(source):
    tree = Tree(3)
    client = tree.client(source)
    tree.cut(1)
    client.ask("probe.ping", nodeid=1 - source)
    client.ask("probe.ping", nodeid=2, tag=2)
    client.ask("far.away", tag=3)
    tree.settle()
    errnums = {m.matchtag: m.errnum for m in client.responses}
    assert errnums == {
        1: UNREACHABLE,
        2: 0 if source == 0 else UNREACHABLE,
        3: NO_SERVICE if source == 0 else UNREACHABLE,
    }


def test_what_is_forwarded_keeps_nodeid_matchtag_topic_and_payload():
    tree = Tree()
    service, client = tree.client(5, services=["echo"]), tree.client(3)
    client.ask("echo.x", nodeid=5, tag=0xFFFFFFFF, payload=b"p" * 300, flags=USER1)
    tree.settle()
    (asked,) = service.requests
    assert (asked.nodeid, asked.matchtag, asked.topic, asked.payload) == (5, 0xFFFFFFFF, "echo.x", b"p" * 300)
    assert asked.flags & USER1


def test_the_stack_towards_a_child_holds_our_own_uuid_for_the_way_back():
    tree = Tree(3)
    client, service = tree.client(0), tree.client(1, services=["echo"])
    client.ask("echo.x", nodeid=1)
    tree.settle()
    stack = hop(tree[0].uuid) + hop(client.port.uuid) + DELIMITER
    assert tree.crossed[0][2].front == stack
    assert service.requests[0].front == stack
    service.answer(service.requests[0])
    tree.settle()
    assert tree.crossed[1][2].front == stack
    assert client.responses[0].front == DELIMITER


def test_routes_of_a_client_are_kept_and_returned():
    tree = Tree()
    service, client = tree.client(0, services=["echo"]), tree.client(6)
    behind = encode_part(b"behind") + encode_part(b"farther") + DELIMITER
    client.ask("echo.x", front=behind)
    tree.settle()
    assert service.requests[0].front.endswith(hop(client.port.uuid) + behind)
    service.answer(service.requests[0])
    tree.settle()
    assert client.responses[0].front == behind


def test_a_request_without_route_flag_gets_the_delimiter():
    tree = Tree(1)
    client = tree.client()
    client.ask("probe.ping", front=b"")
    tree.settle()
    assert client.responses[0].front == DELIMITER
    assert client.port.notices, "its end is still the provider's business"


@for_each("cmb1", [False, True])
def test_a_provider_of_cmb1_skips_itself(cmb1):
    tree = Tree(3)
    above, provider = tree.client(0, services=["echo"]), tree.client(1, services=["echo"])
    provider.port.cmb1 = cmb1
    provider.ask("echo.x")
    tree.settle()
    assert (len(above.requests), len(provider.requests)) == ((1, 0) if cmb1 else (0, 1))
    provider.ask("echo.x", nodeid=1, tag=2)
    assert provider.requests[-1].matchtag == 2, "an addressed rank is no default routing"


def test_topics_about_the_own_link_stay_here_whatever_nodeid_says():
    tree = Tree()
    client = tree.client(5)
    for tag, topic in enumerate(("event.subscribe", "event.unsubscribe", "service.add", "service.remove"), 1):
        client.ask(topic, nodeid=0, tag=tag, flags=NORESPONSE)
    assert [m.topic for m in tree[5].own_inbox] == [
        "event.subscribe",
        "event.unsubscribe",
        "service.add",
        "service.remove",
    ]
    tree.settle()
    assert not tree.crossed
    assert [m.matchtag for m in client.responses] == [1], "answered although it wanted none"


@for_each(
    ("limits", "size", "reached"),
    [
        ({}, 1024, True),
        ({}, 1025, False),
        ({}, 70_000, False),
        ({"topic_max_bytes": 255}, 255, True),
        ({"topic_max_bytes": 255}, 256, False),
    ],
)
def test_topics_are_bounded(limits, size, reached):
    tree = Tree(1, **limits)
    client = tree.client()
    client.ask("probe." + "x" * (size - 6), flags=0)
    assert bool(tree[0].own_inbox) is reached
    assert client.errnums == ([] if reached else [71])
    assert not client.port.cache or reached


@for_each(
    ("hops", "reached"),
    [
        ([b"r" * 36] * 16, True),
        ([b"r" * 36] * 17, False),
        ([b"r"] * 16, True),
        ([b"r"] * 17, False),
        ([b"r" * 254], True),
        ([b"r" * 254] * 16, True),
        ([b"r" * 254] * 17, False),
        ([b"r" * 70_000], False),
        ([b"r" * (ROUTE_MAX_BYTES * 17)], False),
    ],
)
def test_routes_that_a_client_brings_are_bounded(hops, reached):
    tree = Tree(1)
    client = tree.client(cred=GUEST)
    front = b"".join(map(encode_part, hops)) + DELIMITER
    client.ask("probe.wait", front=front)
    assert bool(tree[0].own_inbox) is reached
    assert client.errnums == ([] if reached else [71])
    if not reached:
        assert client.responses[0].front == front, "the answer finds its way back all the same"
        assert not client.port.pending


def test_a_request_without_topic_is_counted():
    tree = Tree(1)
    client = tree.client()
    message = request("probe.ping")
    message.topic_part = b""
    message.set_flags(message.flags & ~TOPIC)
    tree[0].router.request(client.port, message)
    assert client.inbox == []
    assert tree[0].router.counters.drops == {"request without topic": 1}


def test_a_request_of_the_parent_without_its_hop_is_dropped():
    tree = Tree(3)
    message = request("probe.ping", nodeid=1)
    message.front = hop("99999999-0000-4000-8000-000000000000") + DELIMITER
    tree[1].router.request(tree.links[1][1], message)
    assert tree[1].own_inbox == []
    assert sum(tree[1].router.counters.drops.values()) == 1


@for_each("rank", RANKS)
def test_local_is_cleared_on_every_hop_of_the_tree(rank):
    tree = Tree()
    service, client = tree.client(rank, services=["echo"]), tree.client(0, cred=GUEST)
    client.ask("echo.x", nodeid=rank)
    tree.settle()
    (asked,) = service.requests
    assert (asked.userid, asked.rolemask) == (2000, 6 if rank == 0 else 2)


# -- remembered decisions -------------------------------------------------------------------------


def test_equal_requests_are_decided_once():
    tree = Tree(1)
    client = tree.client()
    for tag in range(1, 6):
        client.ask("probe.ping", tag=tag)
    assert len(client.port.cache) == 1
    client.ask("probe.ping", tag=9, nodeid=0)
    client.ask("probe.ping", tag=9, flags=STREAMING)
    client.ask("probe.pong", tag=9)
    assert len(client.port.cache) == 4


def test_a_cached_decision_never_outlives_its_service():
    tree = Tree(3)
    root, client = tree.client(0, services=["echo"]), tree.client(1)
    client.ask("echo.x", tag=1)
    tree.settle()
    near = tree.client(1, services=["echo"])
    client.ask("echo.x", tag=2)
    tree.settle()
    assert ([m.matchtag for m in root.requests], [m.matchtag for m in near.requests]) == ([1], [2])
    near.router.services.remove(b"echo", near.port)
    near.router.invalidate()
    client.ask("echo.x", tag=3)
    tree.settle()
    assert [m.matchtag for m in root.requests] == [1, 3]
    near.provide("echo")
    client.ask("echo.x", tag=4)
    near.leave()
    client.ask("echo.x", tag=5)
    tree.settle()
    assert [m.matchtag for m in near.requests] == [2, 4]
    assert [m.matchtag for m in root.requests] == [1, 3, 5]


def test_a_cached_decision_never_outlives_a_neighbour():
    tree = Tree(3)
    client = tree.client(0)
    client.ask("probe.ping", nodeid=2, tag=1)
    tree.settle()
    tree.cut(2)
    client.ask("probe.ping", nodeid=2, tag=2)
    tree.join(2)
    client.ask("probe.ping", nodeid=2, tag=3)
    tree.settle()
    assert [(m.matchtag, m.errnum) for m in client.responses] == [(1, 0), (2, UNREACHABLE), (3, 0)]


def test_a_cached_decision_never_outlives_the_former_link_of_a_child():
    """A child said hello over a new link before its former one was known to be lost."""
    tree = Tree(3)
    client = tree.client(0)
    client.ask("mute.x", nodeid=1, tag=1)
    former = tree.links[1][0]
    tree.join(1)
    client.ask("mute.x", nodeid=1, tag=2)
    assert [calls.target for calls in client.port.pending.values()] == [former, tree.links[1][0]]


def test_a_cached_decision_never_outlives_a_new_uuid():
    tree = Tree(3)
    client, service = tree.client(0), tree.client(1, services=["echo"])
    client.ask("echo.x", nodeid=1, tag=1)
    tree.settle()
    tree.cut(1)
    tree.cut(2)
    tree[0].router.reincarnate("ffffffff-0000-4000-8000-000000000000")
    tree.join(1)
    client.ask("echo.x", nodeid=1, tag=2)
    tree.settle()
    assert service.requests[1].routes[0] == b"ffffffff-0000-4000-8000-000000000000"
    service.answer(service.requests[1])
    service.answer(service.requests[0])
    tree.settle()
    assert [(m.matchtag, m.errnum) for m in client.responses] == [(1, UNREACHABLE), (2, 0)]


def test_clients_that_come_and_go_cost_others_no_decision():
    tree = Tree(1)
    client = tree.client()
    client.ask("probe.ping")
    kept = client.port.cache
    tree.client().leave()
    assert client.port.cache is kept
    assert kept


def test_decisions_are_bounded():
    tree = Tree(1)
    client = tree.client()
    for number in range(1500):
        client.ask(f"probe.ping{number}", tag=number + 1)
    assert len(client.port.cache) <= 512
    assert len(tree[0].own_inbox) == 1500
