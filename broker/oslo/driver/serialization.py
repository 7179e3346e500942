"""Bodies of the wing's messages, as JSON; they hold what rabbit's driver would hand to the other side.

::

    request       {"ctxt": {...}, "message": {"method", "args" [, "namespace"] [, "version"]}}
    notification  {"ctxt": {...}, "message": {...}}; with envelope the message is
                  {"oslo.version": "2.0", "oslo.message": "..."}, else bare
    reply         {"result": value} or {"failure": "..."}, the text of ``serialize_remote_exception``

What has no form in JSON becomes what oslo.serialization makes of it: tuples and sets are lists, dates, UUIDs and bytes
are strings, keys are strings; NaN and infinity stay numbers, as Python's JSON writes them. One key is not imitated:
rabbit adds its own ``client_timeout`` to the context of each endpoint; here a context arrives as it was sent.
"""

from __future__ import annotations

import inspect
import json
import logging
import traceback
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
import oslo_messaging
from oslo_messaging._drivers import common
from oslo_serialization import jsonutils

from broker.nesting import check
from broker.oslo.bodies import USUAL, BodyFormat, plain
from broker.safe_text import about, kind, text

log = logging.getLogger(__name__)

ENVELOPE_VERSION: Final = 2.0
"""Notifications of this version or newer travel in an envelope."""

# what jsonutils.dumps would make anew for each message
_to_text = json.JSONEncoder(default=jsonutils.to_primitive).encode
_from_text = json.JSONDecoder().decode
_from_bytes = msgspec.json.Decoder().decode


class Unreadable(ValueError):
    """A body that no driver of this kind has made."""


class Request(NamedTuple):
    """What a server is given."""

    ctxt: dict[str, Any]
    message: dict[str, Any]


def encode(value: Any) -> bytes:
    """JSON of ``value`` with oslo's conversions.

    Raises:
        ValueError: something in it cannot be converted, or contains itself.
        TypeError: a key that JSON does not have.
    """
    return _to_text(value).encode()


def decode(body: bytes) -> Any:
    """The value of a JSON body.

    Raises:
        ValueError: it is no JSON, or nested too deeply.
    """
    check(body)
    try:
        return _from_bytes(body)
    except RecursionError:  # an application may call from deep within itself
        raise ValueError("nested too deeply for what is left of the stack") from None
    except msgspec.DecodeError:
        # NaN, infinity and halves of surrogate pairs, which Python's JSON has and the text of JSON has not
        return _from_text(body.decode())


def request_body(ctxt: Any, message: Mapping[str, Any]) -> bytes:
    """Body of a call, cast or fan-out. A context is what rabbit takes, dictionaries and whatever has ``to_dict``; its
    keys become strings.
    """
    items = {} if ctxt is None else ctxt if isinstance(ctxt, Mapping) else ctxt.to_dict()
    plain_ctxt = dict(zip(map(str, items), items.values(), strict=True))
    return encode({"ctxt": plain_ctxt, "message": message})


def notification_body(ctxt: Any, message: Mapping[str, Any], version: float) -> bytes:
    """Body of a notification."""
    return request_body(ctxt, common.serialize_msg(message) if version >= ENVELOPE_VERSION else message)


def read_request(body: bytes, form: BodyFormat = USUAL) -> Request:
    """What came to a server or listener, the envelope taken off.

    Raises:
        Unreadable: not a body of this module.
        oslo_messaging._drivers.common.UnsupportedRpcEnvelopeVersion: an envelope of another major version.
    """
    try:
        data = decode(plain(body, form.limit))
    except ValueError as error:
        raise Unreadable(f"a body of {len(body)} bytes, expected JSON: {error}") from None
    if type(data) is not dict or type(data.get("ctxt")) is not dict or type(data.get("message")) is not dict:
        raise Unreadable(f"a body of {len(body)} bytes, expected an object with the objects ctxt and message")
    message = data["message"]
    if "oslo.message" in message:
        try:
            check(message["oslo.message"])
            message = common.deserialize_msg(message)
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            raise Unreadable(f"an envelope that holds no message: {error}") from None
        if type(message) is not dict:
            raise Unreadable(f"an envelope that holds a {type(message).__name__}, expected an object")
    return Request(data["ctxt"], message)


def reply_body(result: Any) -> bytes:
    """Body of a reply; a result that cannot be converted becomes a failure, so that no caller waits in vain."""
    try:
        if inspect.isgenerator(result) or inspect.isawaitable(result) or inspect.isasyncgen(result):
            raise TypeError(f"the endpoint returned a {type(result).__name__}, expected a value")
        return encode({"result": result})
    except BaseException as error:  # also what a result does when it is gone through
        log.error("the result of a call, a %s, cannot be sent: %s", kind(result), about(error))
        return failure_body((type(error), error, error.__traceback__))


def failure_body(failure: tuple[Any, Any, Any]) -> bytes:
    """Body of a reply that raises at the caller; ``failure`` is ``sys.exc_info()`` of the endpoint."""
    try:
        return encode({"failure": common.serialize_remote_exception(failure)})
    except (
        BaseException
    ) as error:  # its arguments cannot be sent, or its __str__ fails: as much of it as can be
        log.error("an exception of a call, %s, cannot be sent as it is: %s", about(failure[1]), about(error))
        return encode({"failure": _to_text(_told(failure[1], failure[2]))})


def _told(error: Any, trace: Any) -> dict[str, Any]:
    """What ``serialize_remote_exception`` writes of an exception, with texts where something cannot be sent."""
    try:
        lines = traceback.format_exception(type(error), error, trace)
    except BaseException:  # attributes that no exception of its kind has
        lines = [*traceback.format_tb(trace), f"{about(error)}\n"]
    try:
        args, kwargs = [_sendable(each) for each in error.args], getattr(error, "kwargs", None)
    except BaseException:  # properties in place of what every exception has
        args, kwargs = [], None
    return {
        "class": kind(error),
        "module": text(type(error).__module__),
        "message": text(error),
        "tb": [text(line) for line in lines],
        "args": args,
        "kwargs": {text(key): _sendable(each) for key, each in kwargs.items()}
        if type(kwargs) is dict
        else {},
    }


def _sendable(value: Any) -> Any:
    try:
        _to_text(value)
    except BaseException:
        return text(value)
    return value


def too_large_body(size: int, limit: int) -> bytes:
    """Body of a reply in place of one that is too large to be sent: its caller is told why it has none."""
    text = f"the reply to this call has {size} bytes, expected {limit} at most (rpc_zmq_message_max)"
    log.error("a reply is not sent: %s", text)
    return encode({"failure": common.serialize_remote_exception((RuntimeError, RuntimeError(text), None))})


def read_reply(body: bytes, allowed_remote_exmods: list[str], form: BodyFormat = USUAL) -> Any:
    """The result of a call.

    Raises:
        Exception: what the endpoint raised, if it is built in or of an allowed module, else
            ``oslo_messaging.RemoteError``.
        Unreadable: not a body of this module.
    """
    try:
        data = decode(plain(body, form.limit))
    except ValueError as error:
        raise Unreadable(f"a reply of {len(body)} bytes, expected JSON: {error}") from None
    if type(data) is not dict:
        raise Unreadable(f"a reply that is a {type(data).__name__}, expected an object")
    failure = data.get("failure")
    if failure is None:
        return data.get("result")
    raise _rebuilt(failure, allowed_remote_exmods)


def _rebuilt(failure: Any, allowed_remote_exmods: list[str]) -> Exception:
    try:
        check(failure)
        return common.deserialize_remote_exception(failure, allowed_remote_exmods)  # type: ignore[no-any-return]
    except Exception as error:  # the exception's own class may raise anything when it is made anew
        return _as_it_was_said(failure) or Unreadable(f"a failure that cannot be read: {text(error)}")


def _as_it_was_said(failure: Any) -> Exception | None:
    """The failure without its class; None: it is none of ``failure_body``."""
    try:
        said = decode(failure.encode())
        return oslo_messaging.RemoteError(said["class"], said["message"], said["tb"])  # type: ignore[no-any-return]
    except (ValueError, TypeError, AttributeError, KeyError):
        return None
