"""Failures of the wing as exceptions that oslo.messaging and its applications know."""

from __future__ import annotations

from typing import Any

import oslo_messaging
from oslo_messaging._drivers import base

from broker.oslo.contract import Address, CallTimeout, OsloFailure, Undelivered, Unroutable
from broker.oslo.names import Reason


class ZmqDriverError(base.TransportDriverError):  # type: ignore[misc]
    """A message that was refused, or a session that was closed in the meantime.

    Clients of RPC see it as ``ClientSendError``.
    """


class MessageRefused(ZmqDriverError):
    """A node's proxy refused the message; ``reason`` is one of ``names.Reason``."""

    def __init__(self, text: str, reason: Reason) -> None:
        super().__init__(text)
        self.reason = reason


def sent_by_client(error: Exception, target: Any) -> Exception:
    """What a client of RPC is to see of ``error``: a ``ClientSendError`` where it is one of this driver.

    oslo.messaging makes the same of it, but not before 17.1, where it stumbles over a name that it does not have.
    """
    return oslo_messaging.ClientSendError(target, error) if isinstance(error, ZmqDriverError) else error


def translated(failure: OsloFailure, address: Address, message: Any) -> Exception:
    """The exception that an application is to see; ``address`` and ``message`` are of what was sent."""
    reason = getattr(failure, "reason", None)
    if isinstance(failure, CallTimeout):
        return oslo_messaging.MessagingTimeout(str(failure))  # type: ignore[no-any-return]
    if isinstance(failure, Unroutable):
        key = f"{address.topic}.{address.server}" if address.server else address.topic
        error = oslo_messaging.MessageUndeliverable(failure, address.exchange, key, message)
        error.args = (str(failure),)  # it would say nothing where it is logged
        return error  # type: ignore[no-any-return]
    if isinstance(failure, Undelivered):
        return oslo_messaging.MessageDeliveryFailure(str(failure))  # type: ignore[no-any-return]
    if reason is not None:
        return MessageRefused(str(failure), reason)
    return ZmqDriverError(str(failure))
