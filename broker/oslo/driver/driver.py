"""The driver that oslo.messaging loads for ``zmq://`` (entry point ``oslo.messaging.drivers``: ``zmq``).

Nothing is opened before the first message or listener: services build their transports, then fork their workers, and
threads and sockets do not survive that. Each process that uses a driver has a session of its own.

What a target's fields mean, and how long each call may wait, is said in ``client.session``.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import oslo_messaging
from oslo_messaging._drivers import base

from broker.oslo import client
from broker.oslo.bodies import BodyFormat
from broker.oslo.contract import Address, CallTimeout, OsloFailure, Undelivered, Unroutable
from broker.oslo.driver import options, serialization
from broker.oslo.driver.listener import LEAST_WINDOW, ServerListener, ZmqListener
from broker.oslo.driver.options import Exchanges, masked, overridden, read_settings
from broker.oslo.frames import check_name
from broker.oslo.names import DEFAULT_EXCHANGE, Reason

if TYPE_CHECKING:
    from broker.oslo.client.inbox import ClientInbox
    from broker.oslo.client.session import ClientSession

log = logging.getLogger(__name__)

_ADDRESSES_KEPT: Final = 4096
"""Addresses that one driver has checked and keeps: services speak to the same ones again and again."""


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


class ZmqDriver(base.BaseDriver):  # type: ignore[misc]
    """Calls, casts, fan-outs and notifications over the pipelines of the nodes' proxies.

    Args:
        conf: the service's configuration.
        url: parsed transport URL; its query overrides options.
        default_exchange: of targets that name none.
        allowed_remote_exmods: modules whose exceptions are raised again as they are.

    Raises:
        oslo_messaging.InvalidTransportURL, oslo_messaging.exceptions.ConfigurationError: see ``options.read_settings``.
    """

    def __init__(
        self,
        conf: Any,
        url: Any,
        default_exchange: str | None = None,
        allowed_remote_exmods: list[str] | None = None,
    ) -> None:
        options.register(conf)
        super().__init__(conf, url, default_exchange, allowed_remote_exmods)
        asked = overridden(conf, url)
        options.warn(asked, url)
        self._settings = read_settings(asked, url)
        self._form = BodyFormat(self._settings.message_bytes_max, asked.zmq_compression == "zlib")
        self._exchanges = Exchanges(url)
        self._sessions: dict[int, ClientSession] = {}
        self._address = functools.lru_cache(_ADDRESSES_KEPT)(self._checked)
        log.debug("driver for %s", masked(url))

    def require_features(self, requeue: bool = False) -> None:
        """Everything that can be asked for is there."""

    # ------------------------------------------------------------ sending

    def send(
        self,
        target: Any,
        ctxt: Any,
        message: Mapping[str, Any],
        wait_for_reply: bool | None = None,
        timeout: float | None = None,
        call_monitor_timeout: float | None = None,
        retry: int | None = None,
        transport_options: Any = None,
    ) -> Any:
        """Call (``wait_for_reply``), cast or fan out. Neither ``ctxt`` nor ``message`` is changed.

        A call is bounded by ``timeout``, whatever ``retry`` says; the others return when a node has been given the
        message, or when ``retry`` is used up. With ``at_least_once`` in ``transport_options``, a message for which
        nobody listens raises at once; one of which that is not known, since no directory answers, is a
        ``MessageDeliveryFailure``. An infinite ``timeout`` is none.

        Returns:
            The result of a call; None for others.

        Raises:
            Exception: what the endpoint of a call raised.
            oslo_messaging.MessagingTimeout, oslo_messaging.MessageUndeliverable, oslo_messaging.MessageDeliveryFailure.
            oslo_messaging.ClientSendError: refused, or closed meanwhile; its ``ex`` is a ``ZmqDriverError``.
            oslo_messaging.InvalidTarget: a name in ``target`` that cannot be sent.
            ValueError: a timeout that is not a number.
        """
        address = self._address(target.exchange, target.topic, "" if target.fanout else target.server)
        body = self._form.write(serialization.request_body(ctxt, message))
        session = self._sessions.get(os.getpid()) or self._session()
        at_least_once = bool(transport_options) and _at_least_once(transport_options)
        try:
            if wait_for_reply:
                reply = session.call(
                    address,
                    body,
                    timeout_s=timeout,
                    monitor_s=call_monitor_timeout or None,
                    mandatory=at_least_once,
                )
            elif target.fanout:
                return session.fanout(address, body, retry=retry)
            else:
                return session.cast(address, body, mandatory=at_least_once, retry=retry)
        except OsloFailure as failure:
            raise sent_by_client(translated(failure, address, message), target) from failure
        return serialization.read_reply(reply, self._allowed_remote_exmods, self._form)

    def send_notification(
        self, target: Any, ctxt: Any, message: Mapping[str, Any], version: float, retry: int | None = None
    ) -> None:
        """Publish to one listener of each pool; the topic of ``target`` has the priority at its end.

        Raises:
            oslo_messaging.MessageDeliveryFailure, ZmqDriverError.
        """
        address = self._address(target.exchange, target.topic, None)
        body = self._form.write(serialization.notification_body(ctxt, message, version))
        try:
            self._session().notify(address.exchange, address.topic, body, retry=retry)
        except OsloFailure as failure:
            raise translated(failure, address, message) from failure

    # ------------------------------------------------------------ listening

    def listen(self, target: Any, batch_size: int, batch_timeout: float | None) -> Any:
        """Listen to a topic: to what is for any of its servers, for this one, for all of them."""
        address = self._address(target.exchange, target.topic, target.server)
        try:
            inbox = self._session().listen(address)
        except OsloFailure as failure:
            raise translated(failure, address, None) from failure
        return self._polled(inbox, batch_size, batch_timeout)

    def listen_for_notifications(
        self,
        targets_and_priorities: Iterable[tuple[Any, str]],
        pool: str | None,
        batch_size: int,
        batch_timeout: float | None,
    ) -> Any:
        """Listen to notifications: listeners of one ``pool`` share them, each pool has all of them."""
        addresses = sorted(
            {
                self._address(target.exchange, f"{target.topic}.{priority}", None)
                for target, priority in targets_and_priorities
            }
        )
        if pool:
            _check_pool(pool, addresses)
        topics = [(address.exchange, address.topic) for address in addresses]
        try:
            inbox = self._session().listen_notifications(topics, pool or None)
        except OsloFailure as failure:
            raise translated(failure, addresses[0], None) from failure
        return self._polled(inbox, batch_size, batch_timeout)

    def _polled(self, inbox: ClientInbox, batch_size: int, batch_timeout: float | None) -> Any:
        size = batch_size or 1
        window = max(LEAST_WINDOW, 2 * size, int(getattr(self.conf, "executor_thread_pool_size", 0) or 0))
        listener = ZmqListener(inbox, self._settings.inbox_msgs, window, self._form)
        return ServerListener(listener, inbox, size, batch_timeout)

    # ------------------------------------------------------------ life

    def cleanup(self) -> None:
        """Send what was handed over, within ``zmq_linger``, then end this process's use of the pipelines."""
        session = self._sessions.pop(os.getpid(), None)
        if session is not None:
            session.close()

    def _session(self) -> ClientSession:
        """This process's session. No lock guards it: one that a thread of the parent held while forking stays held."""
        pid = os.getpid()
        session = self._sessions.get(pid)
        if session is None:
            mine = client.open_session(self._settings)
            session = self._sessions.setdefault(pid, mine)
            if session is not mine:
                mine.close()
        return session

    def _checked(self, exchange: str | None, topic: str, server: str | None) -> Address:
        try:
            return Address(
                check_name(
                    self._exchanges.wire(exchange or self._default_exchange or DEFAULT_EXCHANGE), "exchange"
                ),
                check_name(topic, "topic"),
                check_name(str(server) if server else "", "server"),
            )
        except ValueError as error:
            target = oslo_messaging.Target(exchange=exchange, topic=topic, server=server)
            raise oslo_messaging.InvalidTarget(str(error), target) from None


def _check_pool(pool: str, addresses: Iterable[Address]) -> None:
    try:
        check_name(pool, "pool")
    except ValueError as error:
        target = oslo_messaging.Target(topic=", ".join(address.topic for address in addresses))
        raise oslo_messaging.InvalidTarget(str(error), target) from None


def _at_least_once(transport_options: Any) -> bool:
    """``TransportOptions`` has it as an attribute; the interface's text speaks of a dictionary."""
    if isinstance(transport_options, Mapping):
        return bool(transport_options.get("at_least_once"))
    return bool(getattr(transport_options, "at_least_once", False))
