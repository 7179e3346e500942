"""Close codes of the WebSocket: one range says "connect again", another says "do not" (PROTOCOL.md lists them).

Codes below 3000 are RFC 6455's own. Of ours, 4000 to 4499 mean *reconnect* (from where they were, after a pause that
grows), 4500 to 4999 mean *do not*: the same attempt would fail the same way until a person changes something.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.rfc6455 import INVALID_TEXT, NORMAL, PROTOCOL, TOO_BIG

SHUTDOWN: Final = 4000
INTERNAL: Final = 4001
SLOW: Final = 4002
NO_PONG: Final = 4003
EXPIRED: Final = 4004
BUSY: Final = 4005
ENDED: Final = 4006

BAD_CREDENTIAL: Final = 4500
NO_ROLE: Final = 4501
AUTH_TIMEOUT: Final = 4502
BAD_MESSAGE: Final = 4503
TOO_MANY: Final = 4504
REVOKED: Final = 4506
FLOOD: Final = 4507


class Meaning(NamedTuple):
    """What a close code tells the client."""

    name: str
    text: str
    reconnect: bool


MEANINGS: Final[dict[int, Meaning]] = {
    NORMAL: Meaning("normal", "the client asked for the end", False),
    PROTOCOL: Meaning("protocol", "a frame broke RFC 6455", False),
    INVALID_TEXT: Meaning("invalid-text", "a text frame or close reason is not UTF-8", False),
    TOO_BIG: Meaning("too-big", "a message above the announced limit", False),
    SHUTDOWN: Meaning("shutdown", "the gateway leaves or restarts", True),
    INTERNAL: Meaning("internal", "a fault of the gateway; its log has the reason", True),
    SLOW: Meaning("slow", "the client reads too slowly: more waits for it than its limits allow", True),
    NO_PONG: Meaning("no-pong", "the client answered no ping in time", True),
    EXPIRED: Meaning("expired", "the credential expired; connect with a fresh one", True),
    BUSY: Meaning("busy", "too many connections at the moment", True),
    ENDED: Meaning("ended", "the session was ended by an administrator; a new one may begin", True),
    BAD_CREDENTIAL: Meaning("bad-credential", "the credential is missing, wrong or of another user", False),
    NO_ROLE: Meaning("no-role", "the user has no role here", False),
    AUTH_TIMEOUT: Meaning("auth-timeout", "no credential came in time", False),
    BAD_MESSAGE: Meaning("bad-message", "bytes that are no message of this subprotocol", False),
    TOO_MANY: Meaning("too-many", "the user has as many connections as allowed", False),
    REVOKED: Meaning("revoked", "the credential was revoked", False),
    FLOOD: Meaning("flood", "the client went on sending above its rate limit", False),
}
"""Close code -> meaning; the source of the table in PROTOCOL.md and of client.js's decision to reconnect."""
