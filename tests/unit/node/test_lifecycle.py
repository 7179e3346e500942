"""States move forward, back to join only, and who leads whom."""

from broker.node.lifecycle import Lifecycle, StateFollower
from broker.services.state_machine import STATES
from broker.wire.message import STREAMING, UPSTREAM, request, response
from tests.tables import for_each


def life():
    clock = [100.0]
    lifecycle = Lifecycle(lambda: clock[0])
    seen = []
    lifecycle.watchers.append(seen.append)
    return lifecycle, seen, clock


def test_the_states_are_those_of_deployed_brokers():
    assert [STATES.index(name) for name in ("join", "quorum", "run", "cleanup", "goodbye")] == [1, 4, 5, 6, 9]


def test_time_in_a_state_begins_anew():
    lifecycle, seen, clock = life()
    clock[0] += 5
    assert lifecycle.in_state_s() == 5
    lifecycle.enter("join")
    lifecycle.enter("join")
    clock[0] += 2
    assert (lifecycle.in_state_s(), seen) == (2, ["join"])


@for_each("source", STATES)
@for_each("target", STATES)
def test_the_table_of_moves(source, target):
    """Found here: a root whose children had all joined early went from run back to init."""
    lifecycle, seen, _ = life()
    lifecycle.enter(source)
    seen.clear()
    lifecycle.enter(target)
    forward = STATES.index(target) > STATES.index(source)
    rejoin = target == "join" and not STATES.index(source) >= STATES.index("cleanup")
    moved = source != target and (forward or rejoin)
    assert (lifecycle.state, seen) == ((target, [target]) if moved else (source, []))
    assert lifecycle.leaving is (lifecycle.number >= 6)


class Tree:
    """An overlay and a context as far as succession sees them."""

    def __init__(self, rank, status="partial"):
        self.rank, self.status, self.calls, self.left = rank, status, [], []
        self.lifecycle, self.seen, _ = life()
        self.tree = self
        self.state_follower = StateFollower(self, self.lifecycle)

    def subtree_status(self):
        return self.status

    def leave(self, reason):
        self.left.append(reason)
        return 0

    def call(self, topic, payload, on_response, *, nodeid, flags=0):
        self.calls.append((topic, payload, nodeid, flags))
        self.on_response = on_response

    def parent_says(self, payload, errnum=0):
        self.on_response(response(request("state-machine.monitor", matchtag=1), payload, errnum=errnum))


def test_the_root_runs_when_everybody_has_been_there():
    tree = Tree(0)
    tree.state_follower.begin()
    tree.state_follower.joined()
    assert tree.seen == ["join", "init", "quorum"]
    tree.state_follower.subtree_changed("degraded")
    tree.state_follower.subtree_changed("full")
    tree.state_follower.subtree_changed("lost")
    tree.state_follower.subtree_changed("full")
    assert tree.seen == ["join", "init", "quorum", "run"]


def test_the_root_of_nobody_else_runs_at_once():
    tree = Tree(0, "full")
    tree.state_follower.begin()
    tree.state_follower.joined()
    assert tree.seen[-1] == "run"


def test_a_root_that_ran_before_it_was_told_so_stays_running():
    tree = Tree(0, "full")
    tree.state_follower.begin()
    tree.state_follower.subtree_changed("full")
    tree.state_follower.joined()
    assert tree.seen == ["join", "run"]


def test_others_copy_the_root_through_their_parent():
    tree = Tree(3)
    tree.state_follower.begin()
    tree.state_follower.joined()
    assert tree.calls == [("state-machine.monitor", b'{"final":7}\0', 3, STREAMING | UPSTREAM)]
    tree.state_follower.subtree_changed("full")
    tree.parent_says(b'{"state":4}\0')
    assert tree.lifecycle.state == "quorum"
    tree.parent_says(b'{"state":5}\0')
    assert tree.lifecycle.state == "run"
    for nonsense in (b"{}\0", b"[]", b"\xff", None, b'{"state":"run"}\0', b'{"state":null}\0'):
        tree.parent_says(nonsense)
    assert tree.left == []
    tree.parent_says(b'{"state":6}\0')
    assert tree.left == ["the instance is shutting down"]


def test_a_lost_parent_leads_back_to_join_and_a_new_one_on_again():
    tree = Tree(3)
    tree.state_follower.begin()
    tree.state_follower.joined()
    tree.parent_says(b'{"state":5}\0')
    tree.parent_says(None, errnum=113)
    tree.state_follower.parent_lost()
    tree.state_follower.joined()
    tree.parent_says(b'{"state":5}\0')
    assert tree.seen == ["join", "init", "quorum", "run"] * 2
    tree.lifecycle.enter("cleanup")
    tree.state_follower.parent_lost()
    assert tree.lifecycle.state == "cleanup"
