"""What was received and sent, by type: what passes, what is answered here, what goes nowhere."""

from broker.routing.counters import REASONS_MAX, MessageCounters
from broker.wire.message import NORESPONSE, STREAMING, event, response
from tests.tables import for_each
from tests.unit.routing.sim import Tree

COUNTS = (
    "answered", "connects", "controls", "delivered_events", "events", "notices", "refused_requests", "requests",
    "responses", "sent_controls", "stray_responses",
)  # fmt: skip


def counts(rank):
    """(requests, responses, events) received, and sent."""
    counters = rank.router.counters
    kinds = ("request", "response", "event")
    return [tuple(each[kind] for kind in kinds) for each in (counters.received(), counters.sent())]


def test_what_passes_is_counted_at_every_hop():
    tree = Tree(3)
    provider, client = tree.client(0, services=["echo"]), tree.client(1)
    client.ask("echo.run")
    tree.settle()
    provider.answer(provider.requests[0])
    tree.settle()
    assert [counts(tree[rank]) for rank in (0, 1, 2)] == [
        [(1, 1, 0), (1, 1, 0)],
        [(1, 1, 0), (1, 1, 0)],
        [(0, 0, 0), (0, 0, 0)],
    ]


def test_a_refused_request_is_received_and_its_answer_sent():
    tree = Tree(1)
    client = tree.client()
    client.ask("nobody.x")
    client.ask("nobody.x", flags=NORESPONSE)
    assert counts(tree[0]) == [(2, 0, 0), (0, 1, 0)]
    assert sum(tree[0].router.counters.drops.values()) == 1
    assert len(client.inbox) == 1


@for_each("limit", [{"pending_max": 1}, {"pending_total": 1, "pending_max": 1}])
def test_a_call_beyond_the_cap_is_not_sent(limit):
    tree = Tree(1, **limit)
    provider, client = tree.client(services=["echo"]), tree.client()
    client.ask("echo.run", tag=1)
    client.ask("echo.run", tag=2)
    assert counts(tree[0]) == [(2, 0, 0), (1, 1, 0)]
    assert (len(provider.inbox), len(client.inbox)) == (1, 1)


def test_a_response_nobody_waits_for_is_not_sent():
    tree = Tree(1)
    provider, client = tree.client(services=["echo"]), tree.client()
    client.ask("echo.run")
    asked = provider.requests[0]
    provider.answer(asked)
    provider.answer(asked)
    stranger = asked.copy()
    stranger.front = b"\x05other" + stranger.front
    tree[0].router.response(provider.port, response(stranger))
    assert counts(tree[0]) == [(1, 3, 0), (1, 1, 0)]
    assert len(client.inbox) == 1


def test_an_event_is_sent_once_per_receiver():
    tree = Tree(3)
    for rank in (0, 0, 1):
        client = tree.client(rank)
        tree[rank].router.events.subscribe(client.port, b"")
    tree[2].router.events.receive(tree[2].own, event("news"))
    tree.settle()
    assert [counts(tree[rank]) for rank in (0, 1, 2)] == [
        [(0, 0, 1), (0, 0, 4)],  # two clients, two children
        [(0, 0, 1), (0, 0, 1)],
        [(0, 0, 2), (0, 0, 1)],  # its own on the way up, the same numbered on its way down
    ]


def test_the_notice_for_a_stream_through_a_lost_child_is_sent():
    tree = Tree(2)
    provider, client = tree.client(0, services=["echo"]), tree.client(1)
    client.ask("echo.run", flags=STREAMING)
    tree.settle()
    tree.cut(1)
    assert [message.topic for message in provider.requests] == ["echo.run", "echo.disconnect"]
    assert counts(tree[0]) == [(1, 0, 0), (2, 0, 0)]
    assert counts(tree[1]) == [(1, 0, 0), (1, 1, 0)]


def test_counts_begin_anew():
    counters = MessageCounters()
    for name in COUNTS:
        setattr(counters, name, 1)
    counters.drop("reason")
    counters.clear()
    assert {name: getattr(counters, name) for name in COUNTS} == dict.fromkeys(COUNTS, 0)
    assert counters.drops == {}


def test_reasons_are_bounded():
    counters = MessageCounters()
    for number in range(REASONS_MAX + 10):
        counters.drop(f"reason {number}", 2)
    assert len(counters.drops) == REASONS_MAX + 1
    assert counters.drops["other"] == 20
