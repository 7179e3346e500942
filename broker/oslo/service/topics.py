"""What a request asks for, what the server is sent, what its reply says; no input or output, no clock.

Bodies are JSON as oslo.messaging has it: a request is {"ctxt": {}, "message": {"method", "args"[, "namespace"][,
"version"]}}, a reply {"result": ...} or {"failure": TEXT} whose text is the JSON of an exception: {"class", "module",
"message", "tb", "args", "kwargs"}.
"""

from __future__ import annotations

import errno
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from broker.errors import HeadgateError, RpcError
from broker.identity import Credentials
from broker.nesting import read_json
from broker.oslo.bodies import plain
from broker.oslo.contract import Address, Undelivered
from broker.oslo.frames import check_name
from broker.oslo.names import NAME_BYTES_MAX
from broker.wire.payload import read_request

SERVICE: Final = "oslo"
RESERVED: Final = "headgate"
"""Key of a context that says who called through the broker; nobody else can set it there."""
FAILURE_CHARS_MAX: Final = 1000
"""Of a server's exception in an error text: enough to see what it is about, without its traceback."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_BYTES_MAX)]


class Send(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Payload of ``oslo.EXCHANGE.TOPIC.METHOD``."""

    args: dict[str, Any] = msgspec.field(default_factory=dict)
    ctxt: dict[str, Any] = msgspec.field(default_factory=dict)
    server: Annotated[str, msgspec.Meta(max_length=NAME_BYTES_MAX)] = ""
    mode: Literal["call", "cast", "fanout"] = "call"
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    namespace: str | None = None
    version: str | None = None
    mandatory: bool = True


class NamedSend(Send, forbid_unknown_fields=True, kw_only=True):
    """Payload of ``oslo.send``."""

    exchange: Name
    topic: Name
    method: Name


class WhichTopics(msgspec.Struct, forbid_unknown_fields=True):
    """Payload of ``oslo.topics.list``."""

    exchange: str = ""


class StatusPayload(msgspec.Struct, forbid_unknown_fields=True):
    """Payload of ``oslo.status``."""


class Asked(NamedTuple):
    """A request to be sent."""

    address: Address
    method: str
    send: Send


def asked(topic: str, payload: bytes | None) -> Asked:
    """What a request with this topic and payload wants sent.

    Raises:
        RpcError: ENOSYS, the topic has too few words. EINVAL, the payload or a name is wrong.
    """
    if topic == f"{SERVICE}.send":
        named = read_request(NamedSend, payload)
        return _checked(named.exchange, named.topic, named.method, named)
    words = topic.split(".")
    if len(words) < 4 or not all(words):
        text = f"Unknown service method '{topic[:128]}', expected {SERVICE}.EXCHANGE.TOPIC.METHOD"
        raise RpcError(errno.ENOSYS, text)
    return _checked(words[1], ".".join(words[2:-1]), words[-1], read_request(Send, payload))


def _checked(exchange: str, topic: str, method: str, send: Send) -> Asked:
    if send.mode == "fanout" and send.server:
        raise RpcError(errno.EINVAL, "saw a server and mode fanout, expected one of them")
    try:
        names = (
            check_name(exchange, "exchange"),
            check_name(topic, "topic"),
            check_name(send.server, "server"),
        )
    except ValueError as error:
        raise RpcError(errno.EINVAL, str(error)) from None
    return Asked(Address(*names), method, send)


def body_of(what: Asked, who: Credentials) -> bytes:
    """The body for the server. Its context has ``who`` under ``RESERVED``, whatever the caller put there."""
    message: dict[str, Any] = {"method": what.method, "args": what.send.args}
    if what.send.namespace is not None:
        message["namespace"] = what.send.namespace
    if what.send.version is not None:
        message["version"] = what.send.version
    caller = {"userid": who.userid, "rolemask": who.rolemask}
    return msgspec.json.encode({"ctxt": {**what.send.ctxt, RESERVED: caller}, "message": message})


def result_of(body: bytes) -> Any:
    """The result that a reply carries.

    Raises:
        RpcError: EIO, the server raised an exception; EPROTO, it is no reply.
    """
    try:
        said = read_json(plain(body))
    except ValueError:
        said = None
    if not isinstance(said, dict) or not ("result" in said or "failure" in said):
        raise RpcError(
            errno.EPROTO, f"saw a reply of {len(body)} bytes, expected a JSON object with result or failure"
        )
    if said.get("failure") is not None:
        raise RpcError(errno.EIO, failure_text(said["failure"]))
    return said.get("result")


def failure_text(failure: object) -> str:
    """What a server's exception is for people: its class and message, or what could be read of it.

    >>> failure_text('{"class": "ValueError", "module": "builtins", "message": "no such host"}')
    'ValueError: no such host'
    """
    try:
        said = read_json(failure) if isinstance(failure, (str, bytes)) else failure
    except ValueError:
        said = None
    if not isinstance(said, dict):
        return "the server raised an exception that cannot be read"
    module, name = str(said.get("module") or ""), str(said.get("class") or "Exception")
    if module not in ("", "builtins", "exceptions"):
        name = f"{module}.{name}"
    message = str(said.get("message") or "")
    text = f"{name}: {message}" if message else name
    return text if len(text) <= FAILURE_CHARS_MAX else text[: FAILURE_CHARS_MAX - 3] + "..."


def error_of(error: HeadgateError, what: Asked) -> RpcError:
    """A failure of the pipelines as the caller is told it."""
    number = error.errno
    if isinstance(
        error, Undelivered
    ):  # it was tried once: nobody was known to listen, or no node could be reached
        number = errno.EHOSTUNREACH
    text, where = str(error), f"{what.address}: "
    return RpcError(number, (text if text.startswith(where) else where + text)[:FAILURE_CHARS_MAX])
