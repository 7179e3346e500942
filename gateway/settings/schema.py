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
from broker.settings.values import Bytes, Count, Seconds, Text, Userid

RoleName = Literal["owner", "user", "admin"]
Algorithm = Literal["Ed25519", "EdDSA", "RS256", "ES256"]
ALGORITHMS: tuple[Algorithm, ...] = ("Ed25519", "EdDSA", "RS256", "ES256")


class TokenSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[tokens]`: bearer tokens made by `headgate token add`."""

    file: Text | None = None
    """The token file (hashes only). Default `STATEDIR/tokens.json`. Read again when it changes."""


class JwtSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[jwt]`: JSON Web Tokens of an identity provider."""

    keys: tuple[SecretPlace, ...] = ()
    """PEM files of public keys, or `https://` / `file://` addresses of JWKS documents. Default none: no JWT is
    accepted. All keys are tried that fit `kid` and algorithm, so a new one may stand beside the old one."""

    algorithms: tuple[Algorithm, ...] = ALGORITHMS
    """Algorithms that are accepted; `Ed25519` and `EdDSA` are two names of one. Never HS256 or none: a public key must
    not become a secret."""

    issuer: Text | None = None
    """What `iss` must be. Needed with `keys`."""

    audience: Text | None = None
    """What `aud` must hold. Needed with `keys`."""

    leeway_s: Annotated[float, Meta(ge=0, le=300)] = 5.0
    """Difference of clocks that is forgiven. Default 5."""

    refresh_s: Annotated[float, Meta(ge=1, le=86400)] = 300.0
    """How often JWKS documents are read again. Default 300; an unknown `kid` reads at once, at most every 10 s."""

    user_claim: Text = "sub"
    """The claim that names the user, or a path to it: `a.b` is b in the object a. Default `sub`. It is looked up in
    `users`. `email` does not count where `email_verified` says that it was not verified."""

    trust_claims: bool = False
    """Take `userid` and `roles` from the token for users that `users` does not name. Default false: only users that
    are named here come in. Never taken are the userids that `userid_claim` of a provider may not say either, nor one
    that another user came with before, nor a name that begins as those of a provider do."""


class OidcGroup(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[oidc.groups]]`: the roles that a group of the provider gives."""

    group: Text
    """The group, as the provider writes it."""

    roles: Annotated[tuple[RoleName, ...], Meta(min_length=1)]
    """What it gives; `owner` and `admin` need `access.allow_owner` or `access.allow_admin`."""


class OidcEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[oidc]]`: an identity provider that people log in at with their browser (OpenID Connect)."""

    name: Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9_-]{0,31}$")]
    """Its name in addresses, in names of users and in the log: small letters, digits, `-` and `_`."""

    title: Text | None = None
    """What the button says after "Log in with". Default: the name."""

    issuer: Text
    """`https://...` (http: on this machine only), as the provider writes itself in `iss`; its metadata are read below
    it, at `/.well-known/openid-configuration`."""

    client_id: Text
    """As whom the provider knows this gateway."""

    client_secret_file: Text | None = None
    """File (0600) with the secret that belongs to it, read at each login. Default none: a public client, which PKCE
    alone protects."""

    url: Text
    """How browsers reach this gateway, like `https://gate.example.org`. As redirect URI the provider has to know
    `URL/v1/login/oidc/NAME/callback`."""

    scopes: tuple[Text, ...] = ("profile",)
    """Scopes that are asked for besides `openid`. Default profile; some providers tell groups by a scope of its own."""

    user_claim: Text = "sub"
    """The claim that names the user. Default `sub`. `email` counts only with `email_verified`. It may be a path:
    `a.b` is b in the object a."""

    user_prefix: str | None = None
    """What stands before it in the user's name, so that providers cannot name each other's users, nor those of `users`.
    Default: the provider's name and a colon. "" trusts the provider to name any user; one alone may have
    it."""

    groups_claim: Text = "groups"
    """The claim that holds the groups. Default `groups`. It may be a path, like `realm_access.roles`."""

    groups: tuple[OidcGroup, ...] = ()
    """`[[oidc.groups]]`: what groups give. A user that `users` names is who it is there instead. Default none: no
    group gives a role."""

    roles: tuple[RoleName, ...] = ()
    """Roles of everybody whom the provider lets in. Default none: who is in no group of `groups` and not in `users`
    stays outside."""

    userid: Literal[65534] | None = None
    """65534, nobody: users that `users` does not name have no userid to themselves, and own nothing: no jobs, no
    services, no private events. Default: each has one of `access.own_userids`."""

    userid_claim: Text | None = None
    """The claim that holds their userid instead, a number. Default none: the provider chooses no userids. Never taken
    are 0, the gateway's own, 65534, those of `users` and of `access.own_userids`; one that another person came with
    before is not given twice."""

    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1)] = ALGORITHMS
    """Algorithms of its signatures that are accepted."""

    leeway_s: Annotated[float, Meta(ge=0, le=300)] = 5.0
    """Difference of clocks that is forgiven. Default 5."""

    @property
    def prefix(self) -> str:
        """What the names of its users begin with."""
        return f"{self.name}:" if self.user_prefix is None else self.user_prefix


class UserEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[users]]`: a user of the web, and as whom its messages are stamped."""

    name: Text
    """The name credentials refer to."""

    userid: Userid
    """The userid its messages carry. Two with one userid share jobs and services, of which `headgate config check`
    warns, and without the role *owner* receive no private events; who has that of the gateway's own process, and not
    that role, is stamped as 65534, nobody, and owns nothing."""

    roles: Annotated[tuple[RoleName, ...], Meta(min_length=1)] = ("user",)
    """Its roles. Default user: the least that may speak. `owner` and `admin` need `access.allow_owner` or
    `access.allow_admin`; an admin is a user, too."""

    certificates: tuple[Text, ...] = ()
    """Client certificates that are this user: `CN=...` (or a whole RFC 4514 subject), `DNS:name`, `email:address`,
    `URI:...`, or `SHA256:fingerprint`. Default none."""


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
    """Directory (0700) for the token file, the cookie key and the store that worker processes share; gateways with
    other settings that run beside it need one each. Default: `$STATE_DIRECTORY` (systemd), `$XDG_STATE_HOME/headgate`
    or `~/.local/state/headgate`."""

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
