"""Who is there and where: seven ranks, what runs beside them, the load. Pure; world, schedule and drive share it.

        0                       rank r lives in network host r
  ┌─────┴─────┐                 gateways beside 1 and 2, NFP beside 2, oslo nodes beside 5 and 6, Redis beside 0
  1           2                 rank 3 has a journal on a small disk of its own, so has NFP
┌─┴─┐       ┌─┴─┐
3   4       5   6
"""

from __future__ import annotations

from typing import Final, NamedTuple

PARENTS: Final[tuple[int | None, ...]] = (None, 0, 0, 1, 1, 2, 2)
RANKS: Final = range(len(PARENTS))
LINKS: Final = tuple((parent, rank) for rank, parent in enumerate(PARENTS) if parent is not None)
"""(parent, child) of every link of the tree."""
HOSTS: Final = {"gateway": 1, "gateway-2": 2, "balancer": 5, "nfp": 2, "oslo-1": 5, "oslo-2": 6, "redis": 0}
"""The rank that each member beside the brokers is attached to and runs beside."""
GATEWAYS: Final = ("gateway", "gateway-2")
BALANCER: Final = "balancer"
"""A plain TCP balancer of both gateways, on the host of those who go through it."""
JOURNAL_RANK: Final = 3
CLOCK_RANK: Final = 4
"""The broker whose clock can be stepped."""
PREFIX: Final = "proof."
"""Topics of all numbered events begin so."""
GUEST: Final = 1500
"""Userid of the guest on a UNIX socket."""

OWNER: Final = 1
USER: Final = 2
LOCAL: Final = 4


class Call(NamedTuple):
    """Calls that a party makes, one after the other, on each of its connections.

    Attributes:
        to: the service. node: the rank addressed, None for none. every_s: between two.
        stream: how many responses are asked for; 0: one, no stream. method: of the service.
        expect: the errno that policy must give; "": success.
    """

    to: str
    node: int | None = None
    every_s: float = 0.1
    stream: int = 0
    method: str = "echo"
    expect: str = ""


class Party(NamedTuple):
    """One process of the load.

    Attributes:
        name: as in the logs. kind: which program: ``flux`` (UNIX, CURVE, WebSocket), ``page`` (JSON over WebSocket),
            ``http``, ``nfp-worker``, ``nfp-client``, ``oslo-server``, ``oslo-client``.
        at: rank or member that it is attached to; ``gateways``: to whichever of both
            the balancer chooses. by: ``unix``, ``curve``, ``wss`` of kind ``flux``.
        host: the network host where it runs. userid, roles: what its messages have to be stamped with; userid None:
            that of whoever runs the proof.
        provide: services with ``echo`` for everybody and ``own`` for the owner. streams: services that stream.
        calls: what it calls. topic: what it publishes ("": nothing), every_s seconds, every ``private``-th one private
            (0: none), with ``pad`` bytes. subscribe: prefixes.
    """

    name: str
    kind: str
    at: int | str
    by: str = "unix"
    host: int = 0
    userid: int | None = None
    roles: int = OWNER | LOCAL
    provide: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    topic: str = ""
    every_s: float = 0.4
    private: int = 0
    pad: int = 0
    subscribe: tuple[str, ...] = (PREFIX,)


def beside(party: Party, at: int | str | None = None) -> int | None:
    """The host where a party runs; None when it is that of what it connects to (``at``, where it goes to several)."""
    at = party.at if at is None else at
    there = at if isinstance(at, int) else HOSTS[at]
    return None if party.host == there else party.host


def host_of(member: str) -> int:
    """The network host of a broker or of a member beside one."""
    return int(member.removeprefix("broker-")) if member.startswith("broker-") else HOSTS[member]


def path_between(one: int, other: int) -> list[int]:
    """The ranks that a message between two ranks passes, both ends included."""
    up, down = [one], [other]
    while up[-1] != down[-1]:
        longer = up if up[-1] > down[-1] else down
        parent = PARENTS[longer[-1]]
        assert parent is not None
        longer.append(parent)
    return up + down[-2::-1]


def below(rank: int) -> list[int]:
    """``rank`` and everybody whose way to the root leads through it."""
    return [other for other in RANKS if rank in path_between(other, 0)]


def _unix(rank: int) -> Party:
    far = (rank + 3) % len(PARENTS)
    near = PARENTS[rank] or 0
    return Party(
        f"unix-{rank}",
        "flux",
        rank,
        host=rank,
        provide=(f"p{rank}",),
        streams=(f"s{rank}",),
        calls=(
            Call(f"p{far}", far, 0.05),
            Call(f"p{near}", near, 0.1),
            Call("p0", None, 0.2),
            Call(f"s{far}", far, 0.5, stream=5),
            Call("broker", far, 1.0, method="ping"),
        ),
        topic=f"{PREFIX}unix.{rank}",
        private=4,
    )


def _flux() -> list[Party]:
    """Those that speak Flux messages over UNIX sockets and CURVE."""
    guest = Party(
        "guest-4",
        "flux",
        4,
        host=4,
        userid=GUEST,
        roles=USER | LOCAL,
        provide=(f"{GUEST}-g",),
        calls=(
            Call("p4", 4, 0.1),
            Call("p0", 0, 0.3),
            Call("p3", 3, 1.0, method="own", expect="EPERM"),
        ),
        topic=f"{PREFIX}guest.4",
        private=2,
    )
    user = Party(
        "curve-5",
        "flux",
        5,
        by="curve",
        host=5,
        userid=2001,
        roles=USER,
        provide=("2001-c",),
        calls=(
            Call("p2", 2, 0.1),
            Call("p6", 6, 0.2),
            Call(f"{GUEST}-g", 4, 0.5),
            Call("2003-f", 1, 0.5),
            Call("p5", 5, 1.0, method="own", expect="EPERM"),
        ),
        topic=f"{PREFIX}curve.5",
        private=3,
    )
    owner = Party(
        "curve-3",
        "flux",
        3,
        by="curve",
        host=3,
        userid=2002,
        roles=OWNER,
        provide=("c3",),
        calls=(
            Call("p1", 1, 0.1),
            Call("2001-c", 5, 0.3),
            Call("wada", 1, 0.5),
            Call("s6", 6, 0.7, stream=20),
        ),
        topic=f"{PREFIX}curve.3",
    )
    far = Party(
        "curve-far",
        "flux",
        1,
        by="curve",
        host=6,
        userid=2003,
        roles=USER,
        provide=("2003-f",),
        calls=(Call("p1", 1, 0.2), Call("p3", 3, 0.3)),
        topic=f"{PREFIX}curve.far",
    )
    bulk = Party("bulk-2", "flux", 2, host=2, topic="bulk.2", every_s=0.05, pad=16384, subscribe=(), calls=())
    slow = Party("slow-6", "flux", 6, host=6, subscribe=("",))
    return [guest, user, owner, far, bulk, slow]


def _web() -> list[Party]:
    """Those behind the gateway."""
    at, host = "gateway", HOSTS["gateway"]
    ada = Party(
        "web-ada",
        "flux",
        at,
        by="wss",
        host=3,
        userid=1001,
        roles=OWNER,
        provide=("wada",),
        calls=(Call("p4", 4, 0.1), Call("1002-bob", None, 0.2), Call("s5", 5, 0.7, stream=10)),
        topic=f"{PREFIX}web.ada",
        private=3,
    )
    bob = Party(
        "web-bob",
        "page",
        at,
        host=host,
        userid=1002,
        roles=USER,
        provide=("1002-bob",),
        calls=(
            Call("p1", 1, 0.1),
            Call("p6", 6, 0.3),
            Call("p1", 1, 1.0, method="own", expect="EPERM"),
            Call("secret", 0, 1.5, method="look", expect="EPERM"),
        ),
        topic=f"{PREFIX}web.bob",
        private=2,
    )
    eve = Party(
        "http-eve",
        "http",
        at,
        host=4,
        userid=1003,
        roles=USER,
        calls=(Call("p2", 2, 0.2), Call("s3", 3, 1.0, stream=5)),
        topic=f"{PREFIX}http.eve",
        private=2,
    )
    lag = Party(
        "web-lag", "page", at, host=host, userid=1004, roles=USER, subscribe=("bulk.", PREFIX), calls=()
    )
    two = Party(
        "web-two",
        "page",
        "gateways",
        host=HOSTS[BALANCER],
        userid=1005,
        roles=USER,
        calls=(Call("p1", 1, 0.1), Call("p6", 6, 0.2), Call("s3", 3, 0.7, stream=5)),
        topic=f"{PREFIX}web.two",
        private=2,
    )
    far = Party(
        "web-far",
        "flux",
        "gateways",
        by="wss",
        host=HOSTS[BALANCER],
        userid=1006,
        roles=USER,
        calls=(
            Call("p2", 2, 0.1),
            Call("p5", 5, 0.3),
            Call("s4", 4, 0.7, stream=5),
        ),
        topic=f"{PREFIX}web.far",
        private=3,
    )
    return [ada, bob, eve, lag, two, far]


def _wings() -> list[Party]:
    """Those of NFP and oslo; their protocols have no stamps."""
    return [
        Party("nfp-w1", "nfp-worker", "nfp", host=2, subscribe=()),
        Party("nfp-w2", "nfp-worker", "nfp", host=4, subscribe=()),
        Party("nfp-c1", "nfp-client", "nfp", host=2, subscribe=()),
        Party("nfp-c2", "nfp-client", "nfp", host=6, subscribe=()),
        Party("oslo-s1", "oslo-server", "oslo-1", host=HOSTS["oslo-1"], subscribe=()),
        Party("oslo-s2", "oslo-server", "oslo-2", host=HOSTS["oslo-2"], subscribe=()),
        Party("oslo-c1", "oslo-client", "oslo-1", host=HOSTS["oslo-1"], subscribe=()),
        Party("oslo-c2", "oslo-client", "oslo-2", host=HOSTS["oslo-2"], subscribe=()),
    ]


def parties() -> tuple[Party, ...]:
    """The whole load."""
    return (*(_unix(rank) for rank in RANKS), *_flux(), *_web(), *_wings())


SLOW: Final = ("slow-6", "web-lag")
"""Parties that are made to read slowly; they get the bulk."""
MORTAL: Final = ("unix-3", "curve-5", "web-bob", "nfp-w1", "nfp-w2", "oslo-s1")
"""Parties that are killed now and then."""


# -- dashboards (`tests.proof.returns`) --------------------------------------------------------------

PREFIXES: Final = ("t.", "secret.", "alone.")
"""What dashboards subscribe to: what everybody may see, what a rule denies, what is private."""
SEES: Final = {"ada": PREFIXES, "bob": PREFIXES[:1], "eve": PREFIXES[:2]}
"""User -> topics that it may see: the owner, a user whom a rule denies ``secret.``, an admin."""


TOPICS: Final = tuple(f"{PREFIXES[{9: 2, 4: 1}.get(ident % 10, 0)]}{ident % 7}" for ident in range(70))
"""Of numbered events, in turn: every tenth is private, every tenth is denied to some."""


def topic_of(ident: int) -> str:
    """Of the numbered event ``ident``."""
    return TOPICS[ident % len(TOPICS)]
