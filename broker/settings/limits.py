"""`[limits]`: what a peer may cost.

Documented as in `schema`.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from broker.settings.ranges import Bytes, Count


class LimitsSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[limits]`: what a peer may cost. None can be turned off: an unbounded queue only fails later, for
    everybody.
    """

    guest_message_bytes: Bytes = 16 * 2**20
    """Largest message of a guest, refused before anything is allocated. Default 16 MiB: far above any RPC
    of a page."""

    guest_event_bytes: Bytes = 2**18
    """Largest payload of an event that a guest publishes: it goes to every broker, and holds each link of the tree
    for as long as its bytes take. A larger one is dropped and counted, and `event.publish` is answered EMSGSIZE.
    Default 256 KiB: events tell what has happened, and a tree of four takes 5 ms for so much."""

    owner_message_bytes: Bytes = 256 * 2**20
    """Largest message of an owner or of a tree peer. Default 256 MiB: content blobs of deployed Flux fit."""

    outbox_high_bytes: Bytes = 2**20
    """Bytes queued for a peer at which it counts as slow. Default 1 MiB: a few ms of a fast reader, little
    per idle peer."""

    outbox_high_msgs: Count = 4096
    """Messages queued for a peer at which it counts as slow. Default 4096: small events cost more in
    objects than in bytes."""

    response_cap_bytes: Bytes = 64 * 2**20
    """Bytes that one peer may leave unread before it is disconnected, events apart, and besides one message of
    any size: what may be sent can be read. Default 64 MiB. Responses are never dropped; requests find room in
    half of it, the others are answered EAGAIN."""

    user_budget_bytes: Bytes = 128 * 2**20
    """Bytes queued for all links of one user together; beyond it the longest queue of that user is given up and
    its link ends. Default 128 MiB: a quarter of all. Owners share `broker_budget_bytes` only. A single message is
    never too much."""

    broker_budget_bytes: Bytes = 512 * 2**20
    """Bytes queued for all peers together, what many wait for counted once; beyond it the user who holds most
    besides one message loses a link. Default 512 MiB: half of a small container."""

    event_policy: Literal["disconnect", "drop"] = "disconnect"
    """What happens to a subscriber that leaves 16 MiB of events unread (`response_cap_bytes`, if that is less):
    it is disconnected, or it misses events, which are counted at its link (`dropped_events`) and told in the log.
    Default disconnect: nobody misses an event without knowing. With `drop` no link ends because of events."""

    stall_s: Annotated[float, Meta(ge=0.1, le=86400)] = 30.0
    """Seconds that a peer above high water may accept no byte before it is disconnected and its callers are
    answered. It is about every link, of clients, providers and brokers alike, for others wait for most of them;
    not about a subscriber for whom nothing but events waits that may be dropped (`event_policy`). Default 30:
    longer than a swap storm."""

    pending_per_link: Count = 65536
    """Unanswered requests of one peer; beyond it EAGAIN. Default 65536: about 20 MiB."""

    pending_total: Count = 2**20
    """Unanswered requests of all peers; beyond it EAGAIN. Default 1048576: about 300 MiB at worst."""

    calls_per_user: Count = 131072
    """Unanswered requests over all links of one guest; beyond it the links that have most get EAGAIN. Guests together
    get no more than three quarters of `pending_total`. Default 131072: two links full of them."""

    services_per_user: Count = 1024
    """Services registered over all links of one guest; beyond it EAGAIN. Default 1024: programs register a few."""

    subscriptions_per_user: Count = 16384
    """Prefixes subscribed to over all links of one guest, each counted once a link; beyond it EAGAIN. Default 16384:
    four links full of them."""

    connections_per_user: Count | None = None
    """Connections of one user who is not the owner, over all listeners; one more is greeted with EAGAIN. Default: a
    quarter of the descriptors that the process may open (`LimitNOFILE`), 256 of the usual 1024 and more where more
    are allowed: the soft limit is raised to the hard one at the start."""

    reserved_descriptors: Count | None = None
    """Descriptors, the last that the process may open, that guests leave to the owner, the tree and the broker
    itself: a guest who comes when no others are left is greeted with EMFILE. Default: an eighth of all, at most
    4096. Half of all at most."""

    routes_max: Annotated[int, Meta(ge=1, le=255)] = 16
    """Hops a client's request may bring along, of 254 bytes each. Default 16: a proxy in front of a proxy needs two."""

    topic_max_bytes: Annotated[int, Meta(ge=255, le=65535)] = 1024
    """Longest topic of a request or an event: a longer request is answered EPROTO, a longer event is dropped and
    counted; a response has the topic of its request. Default 1024: deployed brokers drop requests above 255. Brokers
    of one tree should agree; what rank 0 has numbered passes everywhere."""

    service_tasks_max: Count = 256
    """Asynchronous handlers of one built-in service that run at the same time; beyond it EAGAIN. Default 256."""

    batch_msgs: Count = 128
    """Messages taken from one link before the next link has its turn. Default 128: one or two milliseconds of calls.
    Bytes need no setting: the transports read 128 or 256 KiB at a time."""

    batch_deliveries: Count = 4096
    """Deliveries of small events one link may cause before the next has its turn; large ones count for as many as
    have their size in 512 bytes. Default 4096: sixteen events to 256 subscribers."""
