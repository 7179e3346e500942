"""What a user's links may hold together."""

import errno

import pytest

from broker.errors import RpcError
from broker.identity import Credentials
from broker.routing.port import User
from broker.routing.users import UserLimits, Users, hold_call_caps
from broker.wire.message import STREAMING
from tests.tables import for_each
from tests.unit.routing.sim import GUEST, OWNER, Tree

OTHER = Credentials(3000, GUEST.rolemask)


def ask(client, count, first=1):
    for tag in range(first, first + count):
        client.ask("mute.x", tag=tag)


def refused(client):
    return client.errnums.count(errno.EAGAIN)


def test_links_of_one_user_are_found_together_until_the_last_has_gone():
    tree = Tree(1)
    users = tree[0].router.users
    mine, also_mine, other = tree.client(cred=GUEST), tree.client(cred=GUEST), tree.client(cred=OTHER)
    assert {user.userid: list(user.ports) for user in users} == {
        2000: [mine.port, also_mine.port],
        3000: [other.port],
    }
    mine.leave()
    other.leave()
    assert [list(user.ports) for user in users] == [[also_mine.port]]
    also_mine.leave()
    assert not list(users)


def test_a_neighbour_that_goes_takes_no_user_with_it():
    tree = Tree(2)
    mine = tree.client(cred=OWNER)
    tree.cut(1)
    assert [list(user.ports) for user in tree[0].router.users] == [[mine.port]]
    later = tree.client(cred=OWNER)
    assert later.port.user is mine.port.user


def test_calls_that_share_a_matchtag_count_like_others():
    tree = Tree(1, pending_max=10)
    service, greedy = tree.client(services=["mute"]), tree.client(cred=GUEST)
    for _ in range(30):
        greedy.ask("mute.x", tag=1)
    ask(greedy, 30, 2)
    assert len(service.requests) <= 20
    assert greedy.port.open_calls == len(service.requests)
    for asked in service.requests:
        service.answer(asked)
    assert greedy.port.open_calls == 0


def test_calls_of_one_guest_are_capped_over_its_links():
    tree = Tree(1, user_limits=UserLimits(calls=40))
    tree.client(services=["mute"])
    greedy, second, other = tree.client(cred=GUEST), tree.client(cred=GUEST), tree.client(cred=OTHER)
    ask(greedy, 50)
    ask(second, 10)
    ask(other, 30)
    assert hold_call_caps(tree[0].router) == 90
    for client in (greedy, second, other):
        ask(client, 1, 100)
    assert [refused(client) for client in (greedy, second, other)] == [1, 0, 0]


def test_a_quarter_of_the_calls_is_the_owners():
    tree = Tree(1, pending_total=40)
    tree.client(services=["mute"])
    guests = [tree.client(cred=Credentials(3000 + n, GUEST.rolemask)) for n in range(2)]
    owner = tree.client()
    for guest in guests:
        ask(guest, 16)
    hold_call_caps(tree[0].router)
    for client in (*guests, owner):
        ask(client, 1, 100)
    assert [refused(client) for client in (*guests, owner)] == [1, 1, 0]


def test_services_and_subscriptions_are_counted_over_links_and_taken_back():
    tree = Tree(1)
    router = tree[0].router
    one, two = tree.client(cred=GUEST), tree.client(cred=GUEST)
    user = one.port.user
    assert user is two.port.user
    one.provide("2000-a")
    two.provide("2000-b")
    for prefix in (b"x", b"x", b"y"):
        router.events.subscribe(one.port, prefix)
    router.events.subscribe(two.port, b"x")
    assert (user.services, user.subscriptions) == (2, 3)
    router.events.unsubscribe(one.port, b"x")
    assert user.subscriptions == 3
    one.leave()
    assert (user.services, user.subscriptions) == (1, 1)


@for_each("what", ["services", "subscriptions"])
def test_beyond_a_cap_is_eagain_with_its_name_but_not_for_the_owner(what):
    users = Users(UserLimits(services=3, subscriptions=3))
    guest, owner = User(2000, False), User(1000, True)
    for user in (guest, owner):
        setattr(user, what, 2)
        users.refuse_more(user, what)
        setattr(user, what, 3)
    users.refuse_more(owner, what)
    with pytest.raises(RpcError, match=f"userid 2000 has 3 {what}, the limit of one user is 3") as caught:
        users.refuse_more(guest, what)
    assert caught.value.errno == errno.EAGAIN


def test_a_subscription_asked_for_as_a_stream_leaves_no_open_call():
    tree = Tree(1)
    client = tree.client(cred=OWNER)
    client.ask("event.subscribe", flags=STREAMING)
    asked = tree[0].own_inbox[-1]
    tree.settle()
    assert asked.topic == "event.subscribe"
    assert client.errnums == [] or client.errnums == [0]
    assert not client.port.pending
