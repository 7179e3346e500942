"""Logins that count at several gateways: the rows of the table ``logins`` as gateways tell them to each other.

A row has the hash of its cookie and never the cookie. A login that counts on one machine only (``loopback``) stays
there. One that was ended is remembered as a revocation until it would have ended anyway (``login``), and is not taken
from anybody.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal

import msgspec

from gateway.identity.login import Login, insert, trim_all
from gateway.identity.store import LOGIN, Store, count_change

NAME_CHARS: Final = 1024
Name = Annotated[str, msgspec.Meta(max_length=NAME_CHARS)]


class Row(msgspec.Struct, frozen=True, array_like=True):
    """A login, as it is told; the times are wall clock seconds."""

    hash: Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
    source: Name
    user: Name
    claims: dict[str, Any]
    role: Literal["", "user"]
    made: float
    expires: float


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
    return {
        each[1]: (_encode([*each[:4], msgspec.json.decode(each[4]), *each[5:]]), each[7]) for each in found
    }


def take(store: Store, told: Iterable[bytes]) -> None:
    """Write logins that others have made, except those that are over, have ended, or are written otherwise than here.

    Raises:
        Denied: the store cannot be written.
    """
    now = store.wall()
    with store.writing() as base:
        for each in filter(None, map(_read, told)):
            found = base.execute("SELECT 1 FROM revocations WHERE credential = ?", (LOGIN + each.id,))
            if each.expires > now and found.fetchone() is None:
                login = Login(
                    each.id, each.source, each.user, each.claims, each.role, False, each.made, each.expires
                )
                insert(base, each.hash, login)
        if trim_all(base):
            count_change(base)


def _read(row: bytes) -> Row | None:
    try:
        found = _decode(row)
        msgspec.json.encode(found.claims)
        return found
    except (
        msgspec.MsgspecError,
        TypeError,
        ValueError,
    ) as error:  # another version must not keep back all others
        log.warning("a login of another gateway was left out: %s", error)
        return None
