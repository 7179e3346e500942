"""What the processes of one service tell each other, in MessagePack."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

Short = Annotated[str, msgspec.Meta(max_length=64)]
NAME_CHARS: Final = 1024
Name = Annotated[str, msgspec.Meta(max_length=NAME_CHARS)]


class Counts(msgspec.Struct, tag="counts"):
    """Connections of users in one process.

    ``full``: of no others, once the parts are there that follow where there are ``more``. ``hello``: it asks all to
    tell theirs. ``host``: where it runs, for people.
    """

    gateway: Short
    name: Short
    users: dict[Name, Annotated[int, msgspec.Meta(ge=0, le=2**32)]]
    full: bool = False
    more: bool = False
    hello: bool = False
    host: Annotated[str, msgspec.Meta(max_length=255)] = ""


class Bye(msgspec.Struct, tag="bye"):
    """A process ends."""

    name: Short


class Revoked(msgspec.Struct, tag="revoked"):
    """Credentials that count no more, and until when that has to be remembered."""

    gateway: Short
    credentials: dict[str, float]


class Question(msgspec.Struct, tag="question"):
    """What one process asks others (``Administration.answered``)."""

    gateway: Short
    name: Short
    number: int
    body: bytes


class Reply(msgspec.Struct, tag="reply"):
    """What it is told."""

    name: Short
    number: int
    body: bytes


class Entered(msgspec.Struct, tag="entered"):
    """Logins that were made (`login_rows.Row`)."""

    gateway: Short
    rows: list[bytes]


Said: TypeAlias = Counts | Bye | Revoked | Question | Reply | Entered
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Said).decode
