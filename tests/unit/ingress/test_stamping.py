"""The stamp of each message: role x kind of message x what it carried (RFC 12; protocols, "Credentials")."""

import itertools

from broker.identity import USERID_UNKNOWN, Credentials, Role
from broker.ingress.stamping import StampPolicy
from broker.routing.port import CHILD, CLIENT, PARENT
from broker.wire.message import DELIMITER, EVENT, REQUEST, RESPONSE, event, request, response
from tests.tables import for_each
from tests.unit.routing.sim import Tree

POLICIES = {
    "owner": StampPolicy(Credentials(1000, Role.OWNER), pass_through=True, local=True),
    "owner afar": StampPolicy(Credentials(1000, Role.OWNER), pass_through=True, local=False),
    "root as owner": StampPolicy(Credentials(1000, Role.OWNER), pass_through=False, local=True),
    "guest": StampPolicy(Credentials(2000, Role.USER), pass_through=False, local=True),
    "guest afar": StampPolicy(Credentials(2000, Role.USER), pass_through=False, local=False),
    "admin": StampPolicy(Credentials(3000, Role.USER | Role.ADMIN), pass_through=False, local=True),
    "tree": StampPolicy.tree(1000),
}
FIXED = {"root as owner": (1000, 5), "guest": (2000, 6), "guest afar": (2000, 2), "admin": (3000, 14)}
RECEIVED = list(itertools.product((USERID_UNKNOWN, 0, 1000, 1234), (0, 1, 2, 4, 5, 6, 14, 0xFFFFFFFF)))


def expected(who, userid, rolemask):
    if who in FIXED:
        return FIXED[who]
    if who == "tree":
        return userid, rolemask & ~4 & 0xFFFFFFFF
    userid = 1000 if userid == USERID_UNKNOWN else userid
    if who == "owner afar" and rolemask:
        return userid, rolemask & ~4 & 0xFFFFFFFF
    return userid, rolemask or (5 if who == "owner" else 1)


@for_each("kind", [REQUEST, RESPONSE, EVENT])
@for_each("who", POLICIES)
def test_the_table(who, kind):
    for userid, rolemask in RECEIVED:
        got = deliver(POLICIES[who], kind, userid, rolemask, tree=who == "tree")
        assert (got.userid, got.rolemask) == expected(who, userid, rolemask), (userid, rolemask)


def deliver(policy, kind, userid, rolemask, tree):
    """What a receiver sees of a message that a peer with ``policy`` sent with these credentials."""
    simulated = Tree(2)
    port = simulated.links[1][0] if tree else simulated.client(0).port
    assert port.kind == (CHILD if tree else CLIENT)
    assert simulated.links[1][1].kind == PARENT
    port.policy = policy
    far = simulated.client(0, services=["echo"])
    router = simulated[0].router
    if kind == REQUEST:
        router.request(port, request("echo.x", matchtag=1, userid=userid, rolemask=rolemask))
        return far.requests[0]
    if kind == EVENT:
        router.events.subscribe(far.port, b"")
        router.events.receive(port, event("x", userid=userid, rolemask=rolemask))
        return far.events[0]
    return answered(simulated, port, far, userid, rolemask, tree)


def answered(simulated, port, far, userid, rolemask, tree):
    router = simulated[0].router
    if not tree:
        router.services.add(b"it", port)
    far.ask("it.x", nodeid=1 if tree else 0)
    asked = simulated[1].router if tree else None
    assert (asked is None) is not tree
    (front,) = [key[:-4] for key in far.port.pending]
    message = response(request("it.x", matchtag=1), userid=userid, rolemask=rolemask)
    own = router._hop if tree else b""
    message.front = own + far.port.hop + front
    assert message.front.endswith(DELIMITER)
    router.response(port, message)
    return far.responses[0]


def test_stamps_are_remembered_without_bound_by_nobody():
    """The corridor's cache of stamps: an owner link that speaks for many users does not grow it."""
    from broker.node.broker import STAMPS_MAX, stamp

    port = Tree(1).client().port
    for userid in range(STAMPS_MAX * 5):
        received = Credentials(userid, 2).encode()
        assert stamp(port, received) == received
        assert port.stamps[received] == received
        assert len(port.stamps) <= STAMPS_MAX
