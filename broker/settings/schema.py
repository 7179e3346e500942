"""The sections of the configuration file and their fields.

Below each field: what it is, its unit, why the default is what it is, and the value that turns it off,
where it can be turned off. Names carry their unit (`_s`, `_bytes`, `_msgs`). Ranges stand in the types;
relations between fields in `rules`.
"""

import os
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta, Struct, field

from broker.errors import ConfigError
from broker.settings.journal import JournalSection
from broker.settings.nfp import NfpSection
from broker.settings.oslo import OsloSection
from broker.settings.values import Bytes, Count, Seconds, Text, Userid

RANK_MAX = 2**32 - 3
"""RFC 3 keeps the two highest node ids for *any* and *upstream*."""

Rank = Annotated[int, Meta(ge=0, le=RANK_MAX)]


def default_rundir() -> str:
    """Choose the directory of the sockets: systemd's, else the session's, else a private one in /tmp."""
    if given := os.environ.get("RUNTIME_DIRECTORY"):
        return given.split(":")[0]
    if session := os.environ.get("XDG_RUNTIME_DIR"):
        return f"{session}/headgate"
    return f"/tmp/headgate-{os.getuid()}"  # noqa: S108 (created 0700 and refused when another user owns it)


class BrokerSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[broker]`: this process."""

    rank: Rank | None = None
    """This broker's rank. Default: the entry of `hosts` whose `hostname` is this machine's; 0 in a tree of
    one. Hosts share one file, so it is usually left out."""

    rundir: Text = field(default_factory=default_rundir)
    """Absolute path of the directory for sockets, made with mode 0700 (0711 with
    `access.allow_guest_user`). Default: `$RUNTIME_DIRECTORY` (systemd), `$XDG_RUNTIME_DIR/headgate`, or
    `/tmp/headgate-UID`: private to the user in each case."""

    local_uri: Text | None = None
    """Where local clients connect. Default: `local://RUNDIR/local-RANK`, the name flux-core uses, so that
    its clients find it."""

    version_announced: Annotated[
        str, Meta(pattern=r"^\d+\.\d+\.\d+", description="a version like 0.88.0")
    ] = "0.88.0"
    """The flux-core version we claim in the attribute `version` and in hello. Default: the version whose
    behaviour the tests replay; a real flux-core refuses a peer whose first two numbers differ."""

    on_parent_loss: Literal["rejoin", "exit"] = "rejoin"
    """What to do when the parent is lost: join again as a new incarnation, or exit and leave it to a
    supervisor. Default rejoin: local clients keep their connections."""

    log_level: Literal["debug", "info", "warning", "error", "critical"] = "info"
    """The least severe of our own lines that reach stderr. Default info: one line per link and per change
    of state."""

    log_ring_entries: Annotated[int, Meta(ge=0, le=2**20)] = 1024
    """Entries that `log.dmesg` can show. Default 1024, as in flux-core: about 200 KiB. 0 keeps none."""

    heartbeat_period_s: Annotated[float, Meta(ge=0.1, le=300)] = 2.0
    """Seconds between heartbeats, which rank 0 publishes and liveness is checked on. Default 2, as in
    flux-core. Cannot be off."""

    attrs: dict[str, str] = field(default_factory=dict)
    """`[broker.attrs]`: further attributes that `attr.get` shows. Default none."""

    drain_s: Annotated[float, Meta(ge=0, le=3600)] = 5.0
    """Seconds that a leaving broker waits for the answers to calls that are open; streams are not waited for.
    Default 5: longer than nearly every call, and half of what Docker allows a container to stop. 0: not at
    all. Whoever kills what does not leave (`stop_grace_period`, `TimeoutStopSec`) should wait 15 s more."""

    metrics_listen: Text | None = None
    """Where Prometheus text, `/livez` and `/readyz` are served: `unix:///PATH` or `http://HOST:PORT` (no TLS,
    so on loopback, unless `metrics_insecure`). Default off: the service `broker.stats-get` has the same
    figures, `headgate health` the same health."""

    metrics_insecure: bool = False
    """Allow `metrics_listen` off loopback, for a pod's probes and scrapers. Default false: whoever reaches
    the port reads the figures, which hold no payloads, topics or keys."""


class TreeSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[tree]`: how the brokers are joined."""

    topology: Annotated[
        str,
        Meta(pattern=r"^(custom|kary:[1-9][0-9]{0,8})\Z", description='"kary:K" with K from 1, or "custom"'),
    ] = "kary:2"
    """`kary:K`: the parent of rank r is (r-1)/K; `custom`: each entry of `hosts` names its parent. Default
    kary:2: shallow enough for a handful of hosts, and every rank has few children to watch."""

    size: Annotated[int, Meta(ge=1, le=RANK_MAX + 1)] | None = None
    """Number of brokers; never changes while the tree lives. Default: the number of `hosts`, or 1 without
    any. Giving it too catches a forgotten host."""

    curve_cert: Text | None = None
    """Path of this broker's CURVE certificate (`headgate keygen`), relative to the configuration file.
    `{rank}` and `{hostname}` in it stand for this broker's rank and its host's name, so that all ranks can
    read one file with a key each. Default none: links are plaintext, which is refused off loopback."""

    torpid_min_s: Annotated[float, Meta(ge=0.1, le=86400)] = 5.0
    """Seconds of silence after which a keepalive is sent: to the parent, to a Headgate child, to a client of an
    older dialect. Default 5, as in flux-core. Cannot be off. Between Headgate brokers, 20 s of silence, or four
    times this if that is longer, mean loss."""

    torpid_max_s: Seconds = 30.0
    """Seconds of silence after which a parent calls a child torpid. Default 30, as in flux-core: a Headgate
    child is usually lost before. 0: never."""

    connect_timeout_s: Seconds = 30.0
    """Seconds that one attempt to reach the parent may take before it is made anew. Default 30, as in
    flux-core. 0: the system's limit."""

    insecure: bool = False
    """Allow plaintext tree links off loopback. Default false: whoever reaches such a port owns the tree."""

    options: dict[str, Any] = field(default_factory=dict)
    """What the transport of the hosts' addresses is to know, such as `cert` and `ca` of `tls://`; the package of
    another one says which keys there are. `{rank}` and `{hostname}` in a text are filled in as in `curve_cert`, and
    files are taken from the directory of this one. Default none: `tcp` and `ipc` take none."""

    batch: bool = True
    """Put many messages into one ZeroMQ message between Headgate brokers that both offer it. Default true:
    ten times the throughput under CURVE. false speaks plain multi-part to everyone."""


class HostEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[hosts]]`: one broker of the tree. All ranks read the same table."""

    rank: Rank
    """The rank this entry is about."""

    address: Text
    """Where its children dial it: `tcp://HOST:PORT`, `ipc://PATH`, `tls://HOST:PORT`, or an address of any other
    transport that can join brokers. A name is resolved at each connect."""

    bind: Text | None = None
    """Where it listens, if that is not its address. Default: its address, with a name its port on all interfaces: what
    a name resolves to on its own machine is often the loopback. A number or the name of an interface, such as
    `tcp://eth0:PORT`, listens there alone."""

    public_key: Text | None = None
    """The key that its handshake proves. With `tree.curve_cert` that is its CURVE public key, 40 characters of Z85, and
    with `tls://` a name of its certificate; needed with each transport that proves keys. Ranks may share a key, as
    deployed Flux does; the key then proves only that the peer is one of them."""

    next_key: Text | None = None
    """The public key it is about to change to: until that has become `public_key`, both are taken for this
    rank's. Default none. Needs `public_key`."""

    parent: Rank | None = None
    """The rank of its parent; with topology `custom` only, where every rank but 0 needs one."""

    hostname: Text | None = None
    """The machine it runs on, for finding one's own rank and for the attribute `hostlist`. Default: none."""


class ListenEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[listen]]`: one more place where clients connect."""

    uri: Text
    """`local://PATH`, `ipc://PATH`, `tcp://HOST:PORT`, `tls://HOST:PORT` or a scheme that another package registers. A
    number or the name of an interface listens there alone, any other name but `localhost` on all interfaces."""

    dialect: Literal["flux1", "cmb1", "cmb1rev"] = "flux1"
    """How peers encode messages: RFC 3 (`flux1`), the first CMB1, or its revision. Default flux1. Bytes
    cannot tell them apart."""

    strict_rfc3: bool = False
    """Write the text's form (magic FF EE 00 12, NUL ends, no delimiter on events) in place of the deployed one, and do
    what the text says where deployed Flux does otherwise (`broker/PROTOCOL.md`). Default false: deployed clients expect
    what deployed Flux writes and does. Only with flux1: the older dialects have their text's form and ways anyway."""

    insecure: bool = False
    """Allow plaintext off loopback on this listener. Default false: its traffic, credentials included,
    could be read and forged."""

    options: dict[str, Any] = field(default_factory=dict)
    """What the transport of `uri` is to know: as `tree.options`, with `{rank}` and `{hostname}` as they stand."""


class ClientEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[clients]]`: a key that may connect as a client, and as whom."""

    public_key: Text
    """The key that the client's handshake proves, its CURVE public key (40 characters of Z85), a name of its
    certificate (`tls://`) or what another transport calls a key; one principal per key."""

    userid: Userid
    """The userid its messages are stamped with."""

    roles: Annotated[tuple[Literal["owner", "user", "admin"], ...], Meta(min_length=1)] = ("user",)
    """The roles its messages are stamped with. Default user: the least that may speak. An admin is a user, too."""

    name: Text | None = None
    """What logs call it. Default: the beginning of its key."""


class AccessSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[access]`: RFC 12 policy for UNIX clients."""

    allow_guest_user: bool = False
    """Let users other than the owner connect, with the role *user*. Default false, as in flux-core: they get
    EPERM."""

    allow_root_owner: bool = False
    """Treat root as the owner. Default false, as in flux-core: root is a guest like any other."""

    private_mode: bool = False
    """Ask services to show guests only what is their own, as `access.private-mode` of flux-core does for job
    data. Default false, as in flux-core. Says nothing where guests cannot connect."""

    admin_users: tuple[str | Userid, ...] = ()
    """Users, by name or uid, who get the role *admin*. Default none."""

    admin_groups: tuple[str | Userid, ...] = ()
    """Groups, by name or gid, whose members get the role *admin*. Default none."""

    allow_overflow_uid: bool = False
    """Accept peers that run as nobody (65534), or whose uid the kernel shows as the overflow uid, because their own is
    not mapped here. Default false: several people may hide behind it. Even then it owns nothing: no jobs, no services,
    no private events."""


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


class EventsSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[events]`: the last events, kept by rank 0 for gateways and programs that were away: `event.since`."""

    history_bytes: Annotated[int, Meta(ge=0, le=2**40)] = 16 * 2**20
    """Memory for them; the oldest go first. Default 16 MiB: some 60 000 small events. 0 keeps none, and whoever was
    away is told that something may be missing."""

    history_s: Annotated[float, Meta(ge=0, le=86400 * 7)] = 600.0
    """Seconds for which an event is kept. Default 600: a gateway that is replaced, or a laptop that wakes up, is back
    by then. 0 keeps them as long as there is memory."""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration. `broker.settings.load` reads one; `Settings.defaults()` is that of an empty
    file.
    """

    broker: BrokerSection = field(default_factory=BrokerSection)
    """`[broker]`: this process."""

    tree: TreeSection = field(default_factory=TreeSection)
    """`[tree]`: how the brokers are joined."""

    hosts: tuple[HostEntry, ...] = ()
    """`[[hosts]]`: the brokers of the tree. Default none: a tree of one."""

    listen: tuple[ListenEntry, ...] = ()
    """`[[listen]]`: further listeners. Default none: the local socket only."""

    clients: tuple[ClientEntry, ...] = ()
    """`[[clients]]`: keys of clients. Default none: no client gets in by a key."""

    access: AccessSection = field(default_factory=AccessSection)
    """`[access]`: RFC 12 policy."""

    limits: LimitsSection = field(default_factory=LimitsSection)
    """`[limits]`: what a peer may cost."""

    events: EventsSection = field(default_factory=EventsSection)
    """`[events]`: the last events, for whoever was away."""

    journal: JournalSection = field(default_factory=JournalSection)
    """`[journal]`: what passes, on disk. Default off."""

    nfp: NfpSection | None = None
    """`[nfp]`: a broker of NFP inside rank 0. Default none."""

    oslo: OsloSection | None = None
    """`[oslo]`: a node proxy for oslo.messaging beside rank 0. Default none."""

    @classmethod
    def defaults(cls) -> Self:
        """Return the settings of an empty file."""
        return cls()

    @property
    def size(self) -> int:
        """The number of brokers in the tree."""
        return self.tree.size or len(self.hosts) or 1

    def host(self, rank: int) -> HostEntry | None:
        """Return the entry of one rank, or None in a tree without a hosts table."""
        return next((host for host in self.hosts if host.rank == rank), None)

    def at_rank(self, rank: int | None = None, *, hostname: str | None = None) -> Self:
        """Return these settings with `broker.rank`, `broker.local_uri` and the fields of `tree.curve_cert` filled in.

        Args:
            rank: this broker's rank; None takes `broker.rank`, else that of the host which is this machine.
            hostname: this machine's name; None asks the system. Names match up to their first dot.

        Raises:
            ConfigError: the rank cannot be told, or lies outside the tree; `{hostname}` with a name that is none.
        """
        hostname = hostname or os.uname().nodename
        rank = self._own_rank(hostname) if rank is None else rank
        if not 0 <= rank < self.size:
            raise ConfigError(
                f"broker.rank: saw {rank}, expected 0 to {self.size - 1} (tree.size {self.size})"
            )
        uri = self.broker.local_uri or f"local://{self.broker.rundir}/local-{rank}"
        replace = msgspec.structs.replace
        tree = replace(
            self.tree,
            curve_cert=self._filled("curve_cert", self.tree.curve_cert, rank, hostname),
            options={
                name: self._filled(f"options.{name}", value, rank, hostname)
                for name, value in self.tree.options.items()
            },
        )
        return replace(self, broker=replace(self.broker, rank=rank, local_uri=uri), tree=tree)

    def tree_uris(self) -> list[str]:
        """The addresses that links of the tree are made with."""
        return [uri for host in self.hosts for uri in (host.address, host.bind) if uri is not None]

    def _filled(self, name: str, path: Any, rank: int, hostname: str) -> Any:
        """A text of `tree` at `rank`: `{hostname}` is what `hosts` says, else this machine's name to its first dot."""
        if not isinstance(path, str) or "{" not in path:
            return path
        host = self.host(rank)
        here = (host.hostname if host is not None else None) or hostname.partition(".")[0]
        if "{hostname}" in path and (not here or "/" in here):
            raise ConfigError(f"tree.{name}: {path}: the host name {here!r} is no part of a file name")
        return path.replace("{rank}", str(rank)).replace("{hostname}", here)

    def _own_rank(self, hostname: str) -> int:
        if self.broker.rank is not None:
            return self.broker.rank
        if self.size == 1:
            return 0
        short = hostname.partition(".")[0]
        ranks = [
            host.rank for host in self.hosts if host.hostname and host.hostname.partition(".")[0] == short
        ]
        if len(ranks) == 1:
            return ranks[0]
        raise ConfigError(
            f"broker.rank: not set, and {len(ranks)} of hosts have hostname {short!r}, expected one"
        )
