"""Hello: a child introduces itself, its parent admits or refuses it, with the errors of deployed flux-core.

::

    child  -> parent  request overlay.hello {"rank", "version", "uuid", "status", "hostname"?, "headgate"?}
    parent -> child   {"uuid", "headgate"?}, or errnum: EPROTO (no hello), EPERM (no OWNER, foreign key),
                      EINVAL (version, hostname, not a child)

``version`` is major << 16 | minor << 8 | patch. ``headgate`` is ours; deployed software ignores it:
``{"version", "batch": 2, "epoch": uuid of rank 0, "keepalive_s": seconds, "windows": 1}``. Nothing of it is used unless
both sides sent it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from broker import __version__
from broker.errors import ConfigError, ProtocolError
from broker.identity import Role
from broker.node.overlay.control import Status, read
from broker.wire.message import REQUEST, RESPONSE, Message, request, response
from broker.wire.parts import encode_part
from broker.wire.payload import any_text, decode_json, encode_json, encode_reason

TOPIC: Final = "overlay.hello"
BATCH: Final = 2
"""The form of batches that we read and write (``transport.batching``)."""
_TOPIC_PART: Final = encode_part(TOPIC.encode())
UUID_CHARS: Final = 36
"""A hop is the text form of a UUID; the route stack relies on its length."""
_KEEPALIVE_MAX_S: Final = 86400
_UUID: Final = re.compile(f"[!-~]{{{UUID_CHARS}}}")


class HeadgateHello(NamedTuple):
    """Additions of a Headgate peer to hello and its answer; the defaults stand for a deployed peer."""

    headgate: bool = False
    batch: bool = False
    """It takes many messages in one."""
    epoch: str = ""
    """Uuid of rank 0, which numbers the events; "" while unknown."""
    keepalive_s: float = 0.0
    """It is never silent for much longer while it lives; 0: it does not say."""
    windows: bool = False
    """It tells how many of our events it has handled, and heeds what it is told (see ``routing.flow``)."""


class Hello(NamedTuple):
    """What a child says of itself."""

    rank: int
    version: int
    uuid: str
    status: Status
    hostname: str = ""
    ours: HeadgateHello = HeadgateHello()


class Answer(NamedTuple):
    """What a parent answered; ``errnum`` 0 admits."""

    errnum: int
    text: str = ""
    uuid: str = ""
    ours: HeadgateHello = HeadgateHello()


class Refusal(NamedTuple):
    """Why a hello is refused; ``text`` goes to the child, ``reason`` to the log."""

    errnum: int
    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that a parent holds a hello against.

    Attributes:
        rank: its own. children: the ranks that may join here. version: encoded, its own.
        hostnames: rank -> hostname; empty when nobody named them.
    """

    rank: int
    children: Collection[int]
    version: int
    hostnames: Mapping[int, str] = field(default_factory=dict)


def encode_version(text: str) -> int:
    """``major.minor.patch`` as hello carries it; what follows the patch number is ignored.

    Raises:
        ConfigError: not three numbers from 0 to 255.

    >>> hex(encode_version("0.88.0-12-gabc"))
    '0x5800'
    """
    numbers = [part.partition("-")[0] for part in text.split(".")[:3]]
    if len(numbers) != 3 or not all(n.isascii() and n.isdigit() and int(n) < 256 for n in numbers):
        raise ConfigError(f"version {text!r}: expected MAJOR.MINOR.PATCH, each below 256")
    major, minor, patch = map(int, numbers)
    return major << 16 | minor << 8 | patch


def show_version(version: int) -> str:
    """An encoded version as text.

    >>> show_version(0x5800)
    '0.88.0'
    """
    return f"{version >> 16 & 0xFF}.{version >> 8 & 0xFF}.{version & 0xFF}"


# -- the child's side ------------------------------------------------------------------------------


def encode(hello: Hello) -> Message:
    """The request a child sends first; OWNER without a userid, as deployed software does."""
    payload: dict[str, Any] = {
        "rank": hello.rank,
        "version": hello.version,
        "uuid": hello.uuid,
        "status": int(hello.status),
    }
    if hello.hostname:
        payload["hostname"] = hello.hostname
    _add_ours(payload, hello.ours)
    return request(TOPIC, encode_json(payload), rolemask=int(Role.OWNER))


def is_answer(message: Message) -> bool:
    """True for a response to hello."""
    return message.type == RESPONSE and message.topic_part == _TOPIC_PART


def read_answer(message: Message) -> Answer:
    """What the parent answered.

    Raises:
        ProtocolError: it admits without a usable uuid.
    """
    if message.errnum:
        return Answer(message.errnum, any_text(message.payload))
    payload = decode_json(message.payload)
    return Answer(0, "", _uuid(payload), _read_ours(payload))


# -- the parent's side -----------------------------------------------------------------------------


def is_hello(message: Message) -> bool:
    """True for the request that introduces a child."""
    return message.type == REQUEST and message.topic_part == _TOPIC_PART


def read_request(message: Message) -> Hello:
    """What a child says of itself.

    Raises:
        ProtocolError: a key is missing or of the wrong type, the uuid is none, the status not one of a live broker.
    """
    payload = decode_json(message.payload)
    status = read(_number(payload, "status"))
    if status is None or not status.online:
        raise ProtocolError(f"hello: status {payload['status']} is not that of a broker that joins")
    hostname = payload.get("hostname", "")
    if not isinstance(hostname, str):
        raise ProtocolError("hello: hostname is no string")
    rank, version = _number(payload, "rank"), _number(payload, "version")
    return Hello(rank, version, _uuid(payload), status, hostname, _read_ours(payload))


def judge(hello: Hello, rolemask: int, key_rank: int | None, rules: Rules) -> Refusal | None:
    """Admit (None) or refuse a hello that came with ``rolemask`` over a link whose key is bound to ``key_rank``.

    The order of the checks is the deployed one; only the key binding is ours.
    """
    if not rolemask & Role.OWNER:
        return Refusal(errno.EPERM, "", "it does not claim the OWNER role")
    expected = rules.hostnames.get(hello.rank)
    if hello.hostname and rules.hostnames and hello.hostname != expected:
        reason = (
            f"{expected} is configured as rank {hello.rank}, not {hello.hostname[:64]!r}: mismatched config?"
        )
        return Refusal(errno.EINVAL, "", reason)
    if hello.rank not in rules.children:
        text = f"rank {hello.rank} is not a child of rank {rules.rank}: mismatched config?"
        return Refusal(errno.EINVAL, text, text)
    if key_rank is not None and key_rank != hello.rank:
        text = f"the key is that of rank {key_rank}, not of rank {hello.rank}"
        return Refusal(errno.EPERM, text, text)
    if hello.version >> 8 != rules.version >> 8:
        theirs, ours = show_version(hello.version), show_version(rules.version)
        text = f"client ({theirs}) version mismatched with server ({ours})"
        return Refusal(errno.EINVAL, text, text)
    return None


def admit(message: Message, uuid: str, ours: HeadgateHello) -> Message:
    """The answer that admits the child, with the parent's ``uuid``; ``ours`` only towards a Headgate child."""
    payload: dict[str, Any] = {"uuid": uuid}
    _add_ours(payload, ours)
    return response(message, encode_json(payload))


def refuse(message: Message, errnum: int, text: str = "") -> Message:
    """The answer that refuses the child."""
    return response(message, encode_reason(text), errnum=errnum)


# -- payloads --------------------------------------------------------------------------------------


def _add_ours(payload: dict[str, Any], ours: HeadgateHello) -> None:
    if ours.headgate:
        table: dict[str, Any] = {"version": __version__}
        if ours.batch:
            table["batch"] = BATCH
        if ours.epoch:
            table["epoch"] = ours.epoch
        if ours.keepalive_s:
            table["keepalive_s"] = ours.keepalive_s
        if ours.windows:
            table["windows"] = 1
        payload["headgate"] = table


def _read_ours(payload: Mapping[str, Any]) -> HeadgateHello:
    table = payload.get("headgate")
    if not isinstance(table, dict):
        return HeadgateHello()
    epoch, keepalive_s = table.get("epoch", ""), table.get("keepalive_s")
    return HeadgateHello(
        True,
        table.get("batch") == BATCH,
        epoch if isinstance(epoch, str) else "",
        _keepalive(keepalive_s),
        table.get("windows") == 1,
    )


def _keepalive(told: object) -> float:
    if isinstance(told, bool) or not isinstance(told, int | float) or not 0 < told <= _KEEPALIVE_MAX_S:
        return 0.0
    return float(told)


def _number(payload: Mapping[str, Any], key: str) -> int:
    value = payload.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ProtocolError(f"hello: {key} is missing or no number")
    return value


def _uuid(payload: Mapping[str, Any]) -> str:
    uuid = payload.get("uuid")
    if not isinstance(uuid, str) or not _UUID.fullmatch(uuid):
        raise ProtocolError(f"hello: uuid is missing or not {UUID_CHARS} graphic characters")
    return uuid
