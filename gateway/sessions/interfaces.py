"""The interfaces that sessions use of other packages, and the stand-ins where one of them is not configured."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from broker.wire.message import Message
    from gateway.principal import Principal


class UpstreamLike(Protocol):
    """The upstream, as sessions see it (``upstream.supervisor.Upstream``)."""

    joined: bool
    choked: bool
    epoch: str
    reason: str
    rank: int
    size: int
    version: str
    journals: bool

    def send(self, message: Message) -> bool:
        """Queue session traffic; False when the upstream is away."""

    def forget(self, front: bytes) -> None:
        """The session with this route stack has ended, and its notices were sent."""

    def tell(self, topic: str, payload: bytes) -> None:
        """Send a request of the gateway's own that wants no response; nothing when the upstream is away."""


class LoginLike(Protocol):
    """A login (``identity.login.Login``)."""

    @property
    def id(self) -> str:
        """Its public name."""

    @property
    def user(self) -> str:
        """Whose it is; "" for those by links."""

    @property
    def credential(self) -> str:
        """What names it for revocation."""

    def described(self) -> dict[str, Any]:
        """It, as its user sees it."""


class LoginsLike(Protocol):
    """Where people are logged in (``identity.login.Logins``)."""

    def of(self, mine: Principal | None) -> Sequence[LoginLike]:
        """The logins of a user, or of everybody; raises Denied."""

    def counts(self, login: Any) -> bool:
        """Whether a login gives anything now; raises Denied."""

    def end_all(self, logins: Sequence[Any]) -> None:
        """End logins, in every process; raises Denied."""


class Identity(Protocol):
    """Who is it, as far as live sessions ask (``identity.authenticate.Authenticator``)."""

    @property
    def logins(self) -> LoginsLike:
        """Where people are logged in."""

    def authenticate_token(self, text: str, *, address: str) -> Awaitable[Principal]:
        """Whose token this is; raises Denied."""

    def revoke(self, principal: Principal) -> None:
        """Let the credential of ``principal`` count no more, in every process; raises Denied."""

    def revoked(self, principal: Principal) -> bool:
        """Whether the credential of ``principal`` counts no more."""

    def again(self, principal: Principal) -> Principal | None:
        """Who ``principal`` is by the users of now; None when that is nobody, or another one."""


class FleetLike(Protocol):
    """What is known of other gateways (``fleet.member.Fleet``)."""

    away: bool
    """They are not reached."""
    label: str
    """What this gateway is called in answers for people."""

    @property
    def others(self) -> int:
        """Their processes."""

    @property
    def processes(self) -> Counter[str]:
        """Labels of the other gateways, and how many processes each has."""


class TrendsLike(Protocol):
    """What a gateway knows of its brokers (``trends.trends.Trends``)."""

    def series(self, range_s: int, figures: Sequence[str]) -> Mapping[str, Any]:
        """Figures over time; raises RpcError."""

    def calls(self, rank: int | None, *, trusted: bool) -> Awaitable[Mapping[str, Any]]:
        """How calls fare, by method, at one broker or at all, for whom brokers would tell all; raises RpcError."""

    def ranks(self, after: int, *, clients: bool, owner: bool) -> Awaitable[Mapping[str, Any]]:
        """The brokers, what changed since an answer, and to the owner who is attached to them; raises RpcError."""


class HasRoom(Protocol):
    """The outbox of a web client, as replays see it (``websocket.waiting.Waiting``)."""

    parked_bytes: int

    def when_room(self, room_bytes: int, told: Callable[[], None]) -> None:
        """Call ``told`` once, when no more than ``room_bytes`` wait any more."""


class ConnectionLimits(Protocol):
    """Connections of each user, over all worker processes (``identity.leases.Connections``)."""

    def acquire(self, user: str, limit: int) -> bool:
        """Count one more unless ``limit`` are there."""

    def release(self, user: str) -> None:
        """Take one back."""

    def uncertain(self, user: str) -> bool:
        """Whether some of those that are there may be gone by now."""


class NullUpstream:
    """The upstream before there is one."""

    joined = False
    choked = False
    epoch = ""
    reason = "not connected yet"
    rank = 0
    size = 0
    version = ""
    journals = False

    def send(self, message: Message) -> bool:
        """Nothing can be sent."""
        return False

    def forget(self, front: bytes) -> None:
        """Nothing is kept."""

    def tell(self, topic: str, payload: bytes) -> None:
        """Nobody is told."""


class LocalConnectionLimits:
    """Connections of each user in this process alone."""

    def __init__(self) -> None:
        self._count: Counter[str] = Counter()

    def acquire(self, user: str, limit: int) -> bool:
        """Count one more unless ``limit`` are there."""
        if self._count[user] >= limit:
            return False
        self._count[user] += 1
        return True

    def release(self, user: str) -> None:
        """Take one back."""
        self._count[user] -= 1
        if not self._count[user]:
            del self._count[user]

    def uncertain(self, user: str) -> bool:
        """Never: memory is the truth."""
        return False
