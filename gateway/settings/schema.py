"""The sections of the gateway's configuration file and their fields.

Below each field: what it is, its unit, why the default is what it is, and the value that turns it off, where it can
be turned off. Names carry their unit (`_s`, `_bytes`, `_msgs`). Ranges stand in the types; relations between fields
in `rules`.
"""

import os
from typing import Annotated, Any, Literal, Self

from msgspec import Meta, Struct, field

from broker.home import state_folder
from broker.secret import SecretPlace, SecretUrl
from broker.settings.ranges import Bytes, Count, Seconds, Text, Userid
from gateway.settings.credentials import JwtSection, OidcEntry, RoleName, TokenSection, UserEntry

Rate = Annotated[float, Meta(ge=0, le=1e9)]
Kind = Literal["call", "publish", "subscribe", "register"]
Network = Annotated[
    str, Meta(pattern=r"^[0-9A-Fa-f.:]+(/[0-9]{1,3})?$", description="a network like 10.0.0.0/8")
]


def default_statedir() -> str:
    """Choose where tokens, the cookie key and the shared store live: systemd's, else the user's state directory."""
    if given := os.environ.get("STATE_DIRECTORY"):
        return given.split(":")[0]
    return state_folder()


class GatewaySection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[gateway]`: this process and its upstream."""

    upstream: Text | None = None
    """The broker behind the gateway, ours or a real flux-core: `local:///PATH`, or `tcp://HOST:PORT` or
    `tls://HOST:PORT` of one of ours that knows our key as an owner's. Default: `$HEADGATE_URI`, `$FLUX_URI`, or the
    local socket of this user."""

    upstream_cert: Text | None = None
    """CURVE certificate (`headgate keygen`) to show to an upstream over `tcp://` or `ipc://`; read again at each
    attempt to reach it. Default: `$HEADGATE_CERT`, else none: plaintext."""

    upstream_key: Text | None = None
    """The public key that such an upstream must have: 40 characters of Z85, or the path of its public certificate,
    which is read again likewise. Default: `$HEADGATE_SERVER_KEY`. Needed with `upstream_cert`."""

    upstream_options: dict[str, Any] = field(default_factory=dict)
    """What the transport of `upstream` is to know, such as `cert` and `ca` of `tls://`; the package of another one says
    which keys there are. Default: `$HEADGATE_OPTIONS` (`KEY=VALUE ...`)."""

    statedir: Text = field(default_factory=default_statedir)
    """Directory (0700) for the token file, the cookie key and the store that worker processes share. Default:
    `$STATE_DIRECTORY` (systemd), `$XDG_STATE_HOME/headgate` or `~/.local/state/headgate`."""

    workers: Annotated[int, Meta(ge=1, le=64)] = 1
    """Processes that share the listeners. Default 1: one process carries 10 000 idle dashboards."""

    drain_s: Seconds = 5.0
    """Seconds over which a leaving gateway spreads the closes of its clients. Default 5, so that they do not all come
    back at once. 0 closes all at once."""

    rejoin_max_s: Annotated[float, Meta(ge=0.1, le=3600)] = 5.0
    """Longest pause between two attempts to reach a lost upstream. Default 5: the first comes after 50 ms."""

    anywhere: bool = True
    """Requests to any rank reach a service of a client wherever in the tree it is, those of up to 64 KiB. Default true;
    false answers ENOSYS, as brokers do, for what is neither at the upstream nor on its way to rank 0."""

    history_msgs: Annotated[int, Meta(ge=0, le=2**24)] = 16384
    """Events kept for clients that reconnect. Default 16384: sixteen seconds at 1 000 a second. 0 keeps none."""

    history_bytes: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 16 * 2**20
    """Bytes of events kept for clients that reconnect. Default 16 MiB. 0 keeps none."""

    redis: SecretUrl | None = None
    """A Redis server that several gateways of one instance share, `redis://[USER:PASSWORD@]HOST:PORT/DB` or
    `rediss://`: connections of a user are counted over all of them, logins, revocations and `gateway.sessions` reach
    all. Default none. Needs the extra `redis`."""

    redis_password_file: Text | None = None
    """File (0600) with its password, which then does not stand in the URL; read when the gateway starts. Default
    none."""

    redis_channel: Text = "headgate"
    """What the channels and keys that they use there begin with. Default `headgate`."""

    latest: tuple[str, ...] = ()
    """Prefixes of topics whose newest event is kept for clients that begin (`gateway.latest`). Default none; "" all."""

    latest_msgs: Annotated[int, Meta(ge=1, le=2**20)] = 1024
    """Such events, one a topic. Default 1024; beyond it those whose last event is oldest are forgotten."""

    latest_bytes: Annotated[int, Meta(ge=1, le=2**32 - 1)] = 4 * 2**20
    """Their sizes together. Default 4 MiB."""

    presence: bool = False
    """Users see which users listen to a topic that they may subscribe to (`gateway.presence`). Default false: owner and
    admin do."""

    log_level: Literal["debug", "info", "warning", "error", "critical"] = "info"
    """The least severe of our own lines that reach stderr. Default info."""

    dashboard: bool = True
    """Serve the dashboard at `/`. Default true. false serves the protocols only."""

    deflate: bool = False
    """Compress WebSocket messages of 256 bytes and more for clients that offer `permessage-deflate`, and take theirs,
    inflated up to `limits.message_bytes`. Default false: it costs CPU, and on a link that others can watch the sizes
    of what is compressed tell something of secrets in it."""

    prefix: Annotated[str, Meta(pattern=r"^((/[A-Za-z0-9._~-]+)+)?$", max_length=256)] = ""
    """The path below which a reverse proxy has the gateway, like `/headgate`: everything is served there, too, whether
    the proxy takes the prefix away or not, and login links have it. Default none."""

    metrics_listen: Text | None = None
    """A second place for `/metrics`, `/livez` and `/readyz` without login: `http://HOST:PORT` (no TLS, so on loopback,
    unless `metrics_insecure`) or `unix:///PATH`. Default off: the public listener has them, `/metrics` for the roles
    *owner* and *admin*, and for whom a rule lets call `gateway.metrics`."""

    metrics_insecure: bool = False
    """Allow `metrics_listen` off loopback, for a pod's probes and scrapers. Default false: whoever reaches the port
    reads the figures, which hold no payloads, topics or names of users. `/readyz` there does not say why the upstream
    is away then."""

    metrics_public: bool = False
    """Let anybody read `/metrics` on the public listeners. Default false: how busy it is concerns its users."""


class ListenEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[listen]]`: one place where web clients connect."""

    url: Text = "http://127.0.0.1:8280"
    """`http://HOST:PORT`, `https://HOST:PORT` or `unix:///PATH`; port 0 takes a free one. A number or the name of an
    interface listens there alone, any other name but `localhost` on all interfaces. Default loopback."""

    cert: Text | None = None
    """PEM file of the certificate chain; needed with https. Reloaded on SIGHUP and by `gateway.reload`."""

    key: Text | None = None
    """PEM file of the private key. Default: it is in `cert`."""

    client_ca: Text | None = None
    """PEM file of the authorities whose client certificates are accepted (mutual TLS). Default none: no client
    certificate is asked for."""

    client_cert: Literal["off", "optional", "required"] = "off"
    """Whether clients must show a certificate. Default off; `optional` lets other credentials in, too."""

    trusted_proxies: tuple[Network, ...] = ()
    """Networks of proxies whose `X-Forwarded-For` (read from right to left) and `X-Forwarded-Proto` are believed; where
    one ends TLS, pages are refused without. Default none."""

    proxy_protocol: bool = False
    """Connections from `trusted_proxies` begin with a PROXY v2 (or v1) header. Default false."""

    insecure: bool = False
    """Allow http off loopback. Default false: credentials would cross the network in the clear."""


class RuleEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[rules]]`: who may do what. The longest matching prefix decides; of equal ones, deny wins."""

    roles: Annotated[tuple[RoleName, ...], Meta(min_length=1)]
    """The roles it is about."""

    kinds: Annotated[tuple[Kind, ...], Meta(min_length=1)] = ("call", "publish", "subscribe", "register")
    """What it is about: calls by topic, events published and subscribed by topic, services registered by name."""

    prefixes: tuple[str, ...] = ()
    """Topics that begin so; "" is all of them. Missing only beside preset."""

    preset: Literal["viewer"] | None = None
    """What a role needs for one purpose, instead of kinds and prefixes: viewer, to look at the dashboard. Default
    none."""

    allow: bool = True
    """false takes the right away below the prefix, whatever a wider rule allows."""


class AccessSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[access]`: what web users may be."""

    allow_owner: bool = False
    """Let users carry the role *owner* over the web. Default false: such a user commands the whole instance."""

    allow_admin: bool = False
    """Let users carry the role *admin* over the web. Default false."""

    login_links: Literal["off", "user", "owner"] = "off"
    """The role that one-time login links give. Default off; `headgate up` and `make run` set owner, which is granted
    on loopback listeners only."""

    hook_url: SecretUrl | None = None
    """The authorisation hook, `https://...` (http: on this machine only): asked, beside the rules, whether a user may
    do what the rules allow. Default none. While it does not answer, nobody may."""

    hook_s: Annotated[float, Meta(ge=0.05, le=5)] = 2.0
    """How long its answer may take. Default 2."""

    hook_cache_s: Annotated[float, Meta(ge=0, le=3600)] = 30.0
    """How long an answer counts for the same user, kind and topic, events that are delivered among them. Default 30. 0
    asks each time, for each event, too."""

    own_userids: tuple[Userid, Userid] = (2**31, 2**32 - 3)
    """From which userid to which people who log in at a provider have one of their own, each another one, for good.
    Default 2147483648 to 4294967293, which no system has accounts in: keep them free of others."""

    client_crls: tuple[Text, ...] = ()
    """PEM files of revocation lists, signed by authorities of `client_ca`; read again when they change. Default none.
    With one, client certificates of an issuer without a list, or with one that is overdue, are refused. A list that is
    the part of a distribution point counts for the certificates that name it."""

    allowed_origins: tuple[Text, ...] = ()
    """Origins besides the own host that browsers may come from, like `https://grafana.example.org`, or an app's, like
    `tauri://localhost`; there are no wildcards. Their pages may use the cookie of who is logged in, too. Default
    none."""

    cookie_s: Annotated[float, Meta(ge=60, le=86400 * 365)] = 43200.0
    """How long a login lasts. Default 12 hours."""

    login_link_s: Annotated[float, Meta(ge=1, le=86400)] = 3600.0
    """How long a one-time link may wait for its use. Default an hour."""


class HistorySection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[history]`: what the pipeline made of the journal, shown to web users (needs pyarrow, `headgate[history]`), and
    the charts of the last day.
    """

    warehouse: SecretPlace | None = None
    """Directory that `headgate pipeline` writes its tables into, or the URL of one in a store
    (`s3://bucket/warehouse`). Default none: there is no history."""

    roles: tuple[RoleName, ...] = ("owner", "admin")
    """Roles that may read it. Default owner and admin: it names users, topics and sizes of everybody. Empty: nobody."""

    max_days: Annotated[float, Meta(ge=0.01, le=3660)] = 31.0
    """Longest time one question may be about, in days. Default 31."""

    charts: bool = True
    """Ask the brokers for their counters, every second while somebody looks at the dashboard and every ten otherwise,
    and keep a day of them in memory, 20 MB at most. Default true. false: there are no charts, and no broker is asked
    while nobody looks."""

    charts_file: bool = False
    """Keep that day in `STATEDIR/trends.bin`, too, so that it outlives a restart. Default false."""


class LimitsSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[limits]`: what a web client may cost."""

    handshake_s: Annotated[float, Meta(ge=0.1, le=300)] = 10.0
    """Seconds from connect to a complete HTTP request head, and from the upgrade to a credential. Default 10."""

    preauth_bytes: Bytes = 2**14
    """Largest frame before authentication, and largest body of a login. Default 16 KiB: a token fits, which has at most
    8192 characters wherever it is shown."""

    message_bytes: Bytes = 2**20
    """Largest WebSocket message or HTTP body after authentication, announced in the welcome. Default 1 MiB."""

    event_bytes: Bytes = 2**18
    """Largest payload of an event message of a user who is no owner; a larger one is refused. Default 256 KiB, as
    `limits.guest_event_bytes` of the broker, which drops larger ones without a word."""

    outbox_bytes: Bytes = 2**20
    """Bytes of events that may wait for a client, besides one portion of any size; beyond it its policy (disconnect
    or drop). Default 1 MiB."""

    response_bytes: Bytes = 16 * 2**20
    """Bytes of responses that may wait for a client before it is disconnected, besides one of any size. Default
    16 MiB; never dropped."""

    budget_bytes: Bytes = 256 * 2**20
    """Bytes that may wait for all clients together, what many wait for counted once; beyond it the user who holds most
    besides one message loses a connection. Default 256 MiB. Half as much may wait for the authorisation hook, too."""

    slow_policy: Literal["disconnect", "drop"] = "disconnect"
    """What a slow reader gets unless it chose: a close with a reason, or a gap notice with the count."""

    anonymous: Count = 1024
    """Connections of one process that have shown no credential yet: in a TLS handshake, over HTTP, at the door of a
    WebSocket. One more ends the one that has been idle for longest. Default 1024: as many may connect within the
    moment that a handshake takes. A quarter of what the file descriptors allow where that is less."""

    anonymous_per_address: Count = 256
    """The same of one address (of IPv6: one /64), told by a PROXY header where there is one. Default 256: an office
    behind one address that comes back at once. `trusted_proxies` and UNIX sockets are no single clients."""

    connections: Count = 16384
    """Connections of all users. Default 16384; less where the file descriptors (`LimitNOFILE`) allow less."""

    connections_per_user: Count = 64
    """Connections of one user, over all worker processes. Default 64. The owner counts, too. Of HTTP connections that
    are kept open, twice as many in one process: beyond it the one that has been idle for longest ends."""

    in_flight: Count = 256
    """Calls of one connection that wait for an answer; beyond it EAGAIN with a hint. Default 256."""

    msgs_per_s: Rate = 2000.0
    """Messages one connection may send in a second, over time; beyond it EAGAIN with a hint. Default 2 000. 0: no
    limit. Owners are not limited."""

    msgs_burst: Count = 1000
    """Messages above the rate that are taken at once. Default 1 000."""

    replay_msgs_per_s: Rate = 20000.0
    """Events of the history that replays to one user's returning clients may go through in a second, over time; at once
    the whole history for each connection that the user may have. Beyond it replays wait, and new event streams with a
    `Last-Event-ID` get 429. Default 20 000: a tenth of a core. 0: no limit. Owners are not limited."""

    subscriptions: Count = 256
    """Prefixes one connection may subscribe to. Default 256."""

    services: Count = 16
    """Services one connection may register. Default 16."""

    ping_s: Annotated[float, Meta(ge=0.1, le=3600)] = 25.0
    """Seconds between pings. Default 25: proxies cut idle connections after 60."""

    pong_s: Annotated[float, Meta(ge=0.1, le=3600)] = 15.0
    """Seconds a client may take for its pong. Default 15."""

    call_s: Seconds = 300.0
    """Seconds an HTTP call may wait for its first answer. Default 300. 0: no limit."""


class GatewaySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration of a gateway."""

    gateway: GatewaySection = field(default_factory=GatewaySection)
    """`[gateway]`: this process and its upstream."""

    listen: tuple[ListenEntry, ...] = (ListenEntry(),)
    """`[[listen]]`: where web clients connect. Default `http://127.0.0.1:8280`."""

    tokens: TokenSection = field(default_factory=TokenSection)
    """`[tokens]`: bearer tokens."""

    jwt: JwtSection = field(default_factory=JwtSection)
    """`[jwt]`: JSON Web Tokens."""

    oidc: tuple[OidcEntry, ...] = ()
    """`[[oidc]]`: identity providers that people log in at. Default none."""

    users: tuple[UserEntry, ...] = ()
    """`[[users]]`: users of the web. Default none."""

    access: AccessSection = field(default_factory=AccessSection)
    """`[access]`: what web users may be."""

    rules: tuple[RuleEntry, ...] = ()
    """`[[rules]]`: who may do what. Default none: owners everything, others what `gateway.access` builds in."""

    history: HistorySection = field(default_factory=HistorySection)
    """`[history]`: what the pipeline made of the journal."""

    limits: LimitsSection = field(default_factory=LimitsSection)
    """`[limits]`: what a web client may cost."""

    @classmethod
    def defaults(cls) -> Self:
        """Return the settings of an empty file."""
        return cls()
