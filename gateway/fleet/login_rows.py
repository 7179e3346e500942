"""Logins as the gateways of a fleet tell them: rows of the table ``logins``, in MessagePack.

A row has the hash of its cookie and never the cookie. A login that counts on one machine only (``loopback``) stays
there. One that was ended is remembered as a revocation until it would have ended anyway (``login``), and is not taken
from anybody.

What others say is theirs to say wrongly: `Row`, `Claims` and `_read` bound every field, and a row that is not so is
left out with a line of the log, and keeps back no other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec

from broker.identity import USERID_UNKNOWN
from gateway.fleet.messages import Name
from gateway.identity.login import Login, insert, trim_all
from gateway.identity.store import FOREVER, LOGIN, Store, count_change

LISTED: Final = 1024
"""Roles, or groups, of one login."""
SKEW_S: Final = 300.0
"""How far the clocks of two gateways may be apart."""
Names = Annotated[list[Name], msgspec.Meta(max_length=LISTED)]
Number = Annotated[int, msgspec.Meta(ge=0, lt=USERID_UNKNOWN)]
Time = Annotated[float, msgspec.Meta(ge=0, le=FOREVER)]


class Claims(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a provider or a JWT said of the user, as far as it counts."""

    groups: Names | None = None
    roles: Names | None = None
    userid: Number | None = None
    own: Number | None = None


class Row(msgspec.Struct, frozen=True, array_like=True):
    """A login, as it is told; the times are wall clock seconds."""

    hash: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
    source: Name
    user: Name
    claims: Claims
    role: Literal["", "user"]
    made: Time
    expires: Time


log = logging.getLogger("headgate")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Row).decode


def rows(store: Store, login_id: str = "") -> dict[str, tuple[bytes, float]]:
    """The login with this id, or all of them: id -> (row, when it ends).

    Raises:
        Denied: the store cannot be read.
    """
    query = (
        "SELECT hash, id, source, user, claims, role, made, expires FROM logins "
        "WHERE NOT loopback AND expires > ? AND ? IN ('', id)"
    )
    found = store.reading(query, store.wall(), login_id)
    told = ((each, _encode([*each[:4], msgspec.json.decode(each[4]), *each[5:]])) for each in found)
    return {each[1]: (row, each[7]) for each, row in told if not isinstance(_read(row, store), str)}


def take(store: Store, told: Iterable[bytes]) -> None:
    """Write logins that others have made, except those that are over, have ended, or are written otherwise than here.

    Raises:
        Denied: the store cannot be written.
    """
    now = store.wall()
    with store.writing() as base:
        for each in (_read(one, store) for one in told):
            if isinstance(each, str):  # it must not keep back all others
                log.warning("a login of another gateway was left out: %s", each)
                continue
            found = base.execute("SELECT 1 FROM revocations WHERE credential = ?", (LOGIN + each.id,))
            if each.expires > now and found.fetchone() is None:
                claims = msgspec.to_builtins(each.claims)
                login = Login(
                    each.id, each.source, each.user, claims, each.role, False, each.made, each.expires
                )
                insert(base, each.hash, login)
        if trim_all(base):
            count_change(base)


def _read(row: bytes, store: Store) -> Row | str:
    """A login, or why it is none that can be kept."""
    try:
        found = _decode(row)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        return str(error)
    if not (found.user.isprintable() and found.source.isprintable()):
        return "a user, or a source, that cannot be shown"
    if found.expires > (latest := store.wall() + store.login_s + SKEW_S):
        return f"it ends {found.expires - latest:.0f} s later than one may (access.cookie_s)"
    return found
