"""States shared by Redis: written to all hosts, read from all that can be reached.

The directory of a node speaks Redis, and an application where no proxy runs on its node, which only reads: from threads
of its own (``redis_host``); whatever these read is handed to the reactor. Each host is a source of its own in the
replica, so what differs between them is settled there: the newest is in force. There is what is stored, too.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any, Final
from urllib.parse import urlsplit

from broker import secret
from broker.errors import ConfigError
from broker.extras import install
from broker.oslo.directory.redis_host import Opener, RedisHost
from broker.oslo.directory.replica import Replica
from broker.oslo.directory.wire import DirectoryKind, DirectoryMessage
from broker.oslo.node import NodeConfig
from broker.oslo.reactor.loop import Reactor
from broker.oslo.records import Place, State
from broker.secret import SecretUrl

SOCKET_S: Final = 2.0
"""Longest wait for one answer of a host; only its own thread waits."""


class RedisShare:
    """All Redis hosts of one node's directory; its threads run from the beginning until ``close``.

    Args:
        reactor: whose thread is told what was read, and calls ``announce`` and ``withdraw``.
        config: of the node. ``redis`` are URLs: ``redis://[user:password@]host:port[/db]``, ``rediss://``, ``unix://``,
            or ``sentinel://[user:password@]host:port[,host:port]/service[/db]``; none: nothing is shared.
        replica: what is fed; the sources are called ``redis:0`` and so on.

    Raises:
        ConfigError: redis-py is not installed, or one of the URLs is none; its text has no password.
    """

    def __init__(self, reactor: Reactor, config: NodeConfig, replica: Replica) -> None:
        self.kind = "redis"
        self._reactor = reactor
        self._replica = replica
        self._seen: set[str] = set()
        password = secret.read_file(config.redis_password_file) if config.redis_password_file else ""
        openers = [opener(url, f"redis URL {number}", password) for number, url in enumerate(config.redis, 1)]
        self.hosts = [
            RedisHost(f"redis:{number}", label, open_, config, self._said, self._warn)
            for number, (label, open_) in enumerate(openers)
        ]
        for host in self.hosts:
            host.start()

    @property
    def heard_all(self) -> bool:
        """True once each host has told all it knows, or could not be reached."""
        return all(host.name in self._seen for host in self.hosts)

    def announce(self, state: State) -> None:
        """One of our own pipelines announced ``state``."""
        for host in self.hosts:
            host.put(state)

    def withdraw(self, place: Place) -> None:
        """One of our own pipelines has ended."""
        for host in self.hosts:
            host.remove(place)

    def away(self, place: Place) -> None:
        """One of our own pipelines is started again in a moment."""
        for host in self.hosts:
            host.away(place)

    def status(self) -> list[dict[str, Any]]:
        """For status; no password."""
        return [host.status() for host in self.hosts]

    def close(self, wait_s: float = SOCKET_S) -> None:
        """End all threads; each has ``wait_s`` to take back what has ended. Harmless twice."""
        for host in self.hosts:
            host.stop()
        for host in self.hosts:
            host.join(wait_s)

    def _said(self, host: RedisHost, message: DirectoryMessage | None, error: str) -> None:
        """From a host's thread."""
        self._reactor.call_threadsafe(self._take, host, message, error)

    def _warn(self, host: RedisHost, text: str) -> None:
        """From a host's thread, in which locks of the log may be another library's."""
        self._reactor.call_threadsafe(
            self._reactor.say, logging.WARNING, "redis at %s: %s", (host.label, text)
        )

    def _take(self, host: RedisHost, message: DirectoryMessage | None, error: str) -> None:
        host.taken()
        now = self._reactor.now()
        if message is None:
            self._seen.add(host.name)
            self._replica.source_lost(host.name, now)
            text = "redis at %s: %s; what it told stays in use"
            self._reactor.say(logging.WARNING, text, (host.label, error))
            return
        if message.kind is DirectoryKind.WELCOME:
            self._reactor.say(logging.INFO, "redis at %s: connected", (host.label,))
        self._replica.feed(host.name, message, now)
        if message.kind is DirectoryKind.STATES and message.body.complete:
            self._seen.add(host.name)


def library() -> Any:
    """redis-py.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        for part in ("backoff", "retry", "sentinel"):
            importlib.import_module(f"redis.{part}")
        return importlib.import_module("redis")
    except ImportError as error:
        text = f"Redis is configured, and redis-py cannot be imported ({error.name}): {install('redis')}"
        raise ConfigError(text) from None


def opener(url: SecretUrl, what: str, password: str = "") -> tuple[str, Opener]:
    """(label without password, function that makes a client) of one URL; ``password`` counts where it has none.

    Raises:
        ConfigError: redis-py is missing, or this is no URL of Redis; ``what`` begins its text.
    """
    redis = library()
    options: dict[str, Any] = {
        "socket_timeout": SOCKET_S,
        "socket_connect_timeout": SOCKET_S,
        "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        "protocol": 2,
    }
    try:
        parts = urlsplit(str(url))  # what of it is shown
        where = parts.netloc.rpartition("@")[2]
        if parts.scheme == "sentinel":
            return _sentinel(url, what, options, password)
        if parts.scheme not in ("redis", "rediss", "unix"):
            raise ConfigError(
                f"{what}: saw the scheme {parts.scheme[:16]!r}, expected redis, rediss, unix or sentinel"
            )
        redis.connection.parse_url(url.reveal())
    except ValueError:
        raise ConfigError(f"{what}: expected redis://[user:password@]host:port[/db]") from None
    if password:
        options["password"] = password  # what the URL says goes before it
    return where or parts.path, lambda: redis.Redis.from_url(url.reveal(), **options)


def _sentinel(url: SecretUrl, what: str, options: dict[str, Any], other: str) -> tuple[str, Opener]:
    redis = library()
    parts = urlsplit(str(url))
    where = parts.netloc.rpartition("@")[2]
    login, _, _where = url.reveal().partition("://")[2].rpartition("@")
    user, _, password = login.partition(":")
    password = password or other
    service, _, number = parts.path.strip("/").partition("/")
    addresses = []
    for each in where.split(","):
        host, _, port = each.rpartition(":")
        if not (host and port.isascii() and port.isdigit()):
            raise ConfigError(f"{what}: saw {each[:64]!r}, expected host:port of a sentinel")
        addresses.append((host.removeprefix("[").removesuffix("]"), int(port)))
    if not service or (number and not number.isdigit()):
        raise ConfigError(f"{what}: expected sentinel://host:port[,host:port]/service[/db]")
    if user or password:
        options |= {"username": user or None, "password": password or None}
    options["db"] = int(number or 0)

    def open_() -> Any:
        sentinel = redis.sentinel.Sentinel(
            addresses, sentinel_kwargs={key: options[key] for key in _CONNECTION}, **options
        )
        return sentinel.master_for(service)

    return f"{where}/{service}", open_


_CONNECTION: Final = ("socket_timeout", "socket_connect_timeout", "retry", "protocol")
