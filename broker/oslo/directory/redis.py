"""States shared by Redis: written to all hosts, read from all that can be reached.

The directory of a node speaks Redis, and an application where no proxy runs on its node, which only reads: from threads
of its own, one for each host; whatever these read is handed to the reactor. Each host is a source of its own in the
replica, so what differs between them is settled there: the newest is in force. To a directory it is a peer as others
are (``peer.Peer``): it is told the same, by the same names.

A state is written as a whole, with the lease that its keys have to live. The channel says only which place has changed:
who hears that reads its key. Twice in a lease all leases are looked at, so that what was not heard is found, too.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from broker import secret
from broker.backoff import Backoff
from broker.endpoints import parse
from broker.errors import ConfigError
from broker.extras import install
from broker.oslo.directory import wire
from broker.oslo.directory.state import Replica
from broker.oslo.directory.wire import (
    RESTART_S,
    DirectoryKind,
    DirectoryMessage,
    Gone,
    States,
    Welcome,
)
from broker.oslo.frames import Malformed
from broker.oslo.node import NodeConfig
from broker.oslo.reactor import natives
from broker.oslo.reactor.loop import Reactor
from broker.oslo.records import STATES_MAX, Age, Place, State, to_json
from broker.rates import Throttle
from broker.secret import SecretUrl

SOCKET_S: Final = 2.0
"""Longest wait for one answer of a host; only its own thread waits."""


CHANNEL_S: Final = 2.0
"""Longest wait for the channel to be there."""
RETRY_FIRST_S: Final = 0.1
RETRY_LAST_S: Final = 2.0
"""After an attempt to connect that failed; doubled each time, and never more than half a lease: whoever is back first
keeps for a lease what it does not find there, and by then all others have written theirs again."""
LEASES_AT_ONCE: Final = 512
STATES_AT_ONCE: Final = 32
NEVER: Final = (0, 0)
"""The age of what has to be written again."""
ROUND_S: Final = 0.1
"""A round waits for the channel so long, at most. After one that wrote or read there is none for as long: what changes
meanwhile is written once, and read once."""
HEARD_MAX: Final = 1_024
"""Messages of the channel in one round."""
QUIET_S: Final = 3_600.0
"""Between two lines in the log about the same state: each scan reads it again."""

Opener = Callable[[], Any]
"""Makes a client of redis-py."""


PREFIX: Final = b"headgate:oslo:"
PLACES: Final = PREFIX + b"places"
CHANNEL: Final = PREFIX + b"changed"
PLACE_BYTES_MAX: Final = 1_024
AGE_BYTES_MAX: Final = 64


def state_key(place: Place) -> bytes:
    """Where the state of ``place`` is."""
    return PREFIX + b"state:" + to_json(place)


def lease_key(place: Place) -> bytes:
    """Where the age of that state is."""
    return PREFIX + b"lease:" + to_json(place)


def read_place(data: bytes) -> Place | None:
    """A member of ``PLACES``, or a message of ``CHANNEL``; None when it is none."""
    if len(data) > PLACE_BYTES_MAX:
        return None
    try:
        return msgspec.json.decode(data, type=tuple[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def read_age(data: bytes | None) -> Age | None:
    """A value at ``lease_key``; None when it is none."""
    words = (data or b"").split() if len(data or b"") <= AGE_BYTES_MAX else ()
    if len(words) != 2 or not (words[0].isdigit() and words[1].isdigit()):
        return None
    return (int(words[0]), int(words[1]))


def read_state(place: Place, data: bytes) -> State:
    """A value at ``state_key``.

    Raises:
        Malformed: it is none, or that of another place.
    """
    try:
        state = msgspec.json.decode(data, type=State)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"saw a state that is not its JSON: {str(error)[:120]}") from None
    wire.check_state(state)
    if state.place != place:
        raise Malformed(f"saw the state of {state.node[:64]}, expected that of {place[0][:64]}")
    return state


class RedisHost:
    """One host, and the thread that writes, renews and reads there, from the beginning until ``close``.

    Args:
        name: of the source in the replica.
        label: for logs: host and port.
        open_: makes a client.
        config: of the node: its name, whose places are not read, how long a lease lasts and how often it is renewed.
        reactor: whose thread is told what was read.
        replica: what is fed.
        stopping: ends this thread, and those of all hosts that share it.

    Attributes:
        alive: True while it answers.
        heard_all: True once it has told all it knows, or could not be reached.
        counts: what happened how often.
    """

    def __init__(
        self,
        name: str,
        label: str,
        open_: Opener,
        config: NodeConfig,
        reactor: Reactor,
        replica: Replica,
        stopping: Any,
    ) -> None:
        self.name = name
        self.label = label
        self.alive = self.heard_all = False
        self.counts = dict.fromkeys(
            ("connects", "losses", "writes", "renewals", "scans", "read", "heard", "malformed"), 0
        )
        self._open = open_
        self._node = config.node
        self._lease_ms = max(int(config.lease_s * 1000), 1)
        self._lease_s = config.lease_s
        self._beat_s = config.beat_s
        self._reactor = reactor
        self._replica = replica
        self._stopping = stopping
        self._lines = Throttle(QUIET_S)
        self._lock = natives.allocate_lock()
        self._wanted: dict[Place, State] = {}
        self._away: set[Place] = set()
        self._changed: set[Place] = set()
        self._untaken = 0
        self._known: dict[Place, Age] = {}
        self._written: dict[Place, Age] = {}
        self._since = inf  # when this session began
        self._thread: Any = None

    # ------------------------------------------------------------ the reactor's thread

    def start(self) -> None:
        """Start the thread."""
        self._thread = natives.start_thread(self._run, f"headgate-{self.name}")

    def announce(self, state: State) -> None:
        """Write ``state`` soon, and renew its lease until ``withdraw``."""
        with self._lock:
            self._wanted[state.place] = state
            self._away.discard(state.place)

    def away(self, place: Place) -> None:
        """Keep the state there for ``RESTART_S``, whether we are here to renew it or not."""
        with self._lock:
            if place in self._wanted:
                self._away.add(place)

    def withdraw(self, place: Place) -> None:
        """Take the state there back, when it was ours."""
        with self._lock:
            self._away.discard(place)
            self._wanted.pop(place, None)

    def close(self, linger_ms: int = 0) -> None:
        """End the threads; unless ``linger_ms`` is 0 wait until this one has taken back what has ended, ``SOCKET_S`` at
        most. Harmless twice.
        """
        self._stopping.set()
        if self._thread is not None and linger_ms:
            self._thread.join(SOCKET_S)

    def status(self) -> dict[str, Any]:
        """For status; no password."""
        return {"host": self.label, "alive": self.alive, "states": len(self._known), **self.counts}

    def _take(self, call: Callable[..., None], values: tuple[Any, ...]) -> None:
        with self._lock:
            self._untaken -= 1
        call(*values)

    def _feed(self, kind: DirectoryKind, body: wire.Body) -> None:
        if kind is DirectoryKind.WELCOME:
            self._reactor.say(logging.INFO, "redis at %s: connected", (self.label,))
        self._replica.feed(self.name, DirectoryMessage(kind, body), self._reactor.now())

    def _complete(self, places: Iterable[Place]) -> None:
        self.heard_all = True
        self._replica.complete(self.name, places, self._reactor.now() + self._lease_s)

    def _lose(self, error: str) -> None:
        self.heard_all = True
        self._replica.source_lost(self.name)
        text = "redis at %s: %s; what it told stays in use"
        self._reactor.say(logging.WARNING, text, (self.label, error))

    # ------------------------------------------------------------ the host's own thread

    def _hand_over(self, call: Callable[..., None], *values: Any) -> None:
        """Have the reactor call it; nothing is logged here, where locks of the log may be another library's."""
        with self._lock:
            self._untaken += 1
        self._reactor.call_threadsafe(self._take, call, values)

    def _run(self) -> None:
        backoff = Backoff(RETRY_FIRST_S, min(RETRY_LAST_S, self._lease_s / 2))
        while not self._stopping.is_set():
            self._since = inf
            error = self._session()
            if self._stopping.is_set():
                return
            if self.alive or not self.counts["losses"]:
                self.alive = False
                self.counts["losses"] += 1
                self._hand_over(self._lose, error)
            self._stopping.wait(backoff.after(max(0.0, time.monotonic() - self._since)))

    def _session(self) -> str:
        """From a connection to its loss; returns why it was lost."""
        client: Any = None
        channel: Any = None
        try:
            client = self._open()
            channel = client.pubsub(ignore_subscribe_messages=False)
            channel.subscribe(CHANNEL)
            channel.get_message(timeout=CHANNEL_S)  # from here on nothing that is published is missed
            self._written = dict.fromkeys(self._written, NEVER)  # it may have forgotten everything
            self.alive, self._since = True, time.monotonic()
            self.counts["connects"] += 1
            self._write(client)
            self._begin(client)
            self._stay(client, channel)
        except Exception as error:  # whatever it is: the thread has to try again
            return f"{type(error).__name__}: {str(error)[:160]}"
        finally:
            for each in (channel, client):
                with contextlib.suppress(Exception):
                    each.close()
        return "ended"

    def _stay(self, client: Any, channel: Any) -> None:
        beat_at = rest_until = time.monotonic()
        scan_at = beat_at + self._lease_s / 2
        while True:
            self._hear(channel)
            now = time.monotonic()
            if now < rest_until and not self._stopping.is_set():
                continue
            if now >= beat_at:
                beat_at = now + self._beat_s
                self._renew(client)
            busy = self._write(client)
            if self._stopping.is_set():
                return
            if not self._untaken:  # else the reactor is busy with what was read before
                if now >= scan_at:
                    scan_at = now + self._lease_s / 2
                    self._scan(client)
                changed, self._changed = self._changed, set()
                self._read(client, changed)
                busy |= bool(changed)
            if busy:
                rest_until = now + ROUND_S

    def _hear(self, channel: Any) -> None:
        """Wait for the channel, and note which places it says."""
        wait_s = ROUND_S
        for _ in range(HEARD_MAX):
            said = channel.get_message(timeout=wait_s)
            if said is None:
                return
            wait_s = 0.0
            if said["type"] != "message":
                continue
            self.counts["heard"] += 1
            place = read_place(said["data"])
            if place is None:
                self.counts["malformed"] += 1
            elif place[0] != self._node and len(self._changed) < STATES_MAX:
                self._changed.add(place)

    # ------------------------------------------------------------ writing

    def _write(self, client: Any) -> bool:
        """Take back what has ended, write what has changed; whether there was any."""
        with self._lock:
            wanted, waiting = dict(self._wanted), set(self._away)
        ended, away = self._written.keys() - wanted.keys(), self._written.keys() & waiting
        changed = [
            state
            for place, state in wanted.items()
            if self._written.get(place) != state.age and place not in waiting
        ]
        for place in ended:
            with client.pipeline(transaction=True) as batch:
                batch.delete(state_key(place), lease_key(place))
                batch.srem(PLACES, to_json(place))
                batch.publish(CHANNEL, to_json(place))
                batch.execute()
            del self._written[place]
        for state in changed:
            place = state.place
            with client.pipeline(transaction=True) as batch:
                batch.set(state_key(place), to_json(state), px=self._lease_ms)
                batch.set(lease_key(place), b"%d %d" % state.age, px=self._lease_ms)
                batch.sadd(PLACES, to_json(place))
                batch.publish(CHANNEL, to_json(place))
                batch.execute()
            self._written[place] = state.age
            self.counts["writes"] += 1
        for place in away:  # its next process will renew it; until then nobody does
            self._expire(client, (place,), max(int(RESTART_S * 1000), self._lease_ms))
            del self._written[place]
        return bool(ended or changed or away)

    def _renew(self, client: Any) -> None:
        places = tuple(self._written)
        if not places:
            return
        kept = self._expire(client, places, self._lease_ms)
        client.sadd(PLACES, *map(to_json, places))
        self.counts["renewals"] += 1
        for at, place in enumerate(places):
            if not (kept[2 * at] and kept[2 * at + 1]):
                self._written[place] = NEVER

    def _expire(self, client: Any, places: Sequence[Place], lease_ms: int) -> list[Any]:
        """Let ``places`` live for so long; of both keys of each, whether they were there."""
        with client.pipeline(transaction=False) as batch:
            for place in places:
                batch.pexpire(state_key(place), lease_ms)
                batch.pexpire(lease_key(place), lease_ms)
            return list(batch.execute())

    # ------------------------------------------------------------ reading

    def _begin(self, client: Any) -> None:
        """Tell all of it, from the beginning."""
        self._known.clear()
        welcome = Welcome(self.label[:64], _incarnation(client), self._lease_s)
        self._hand_over(self._feed, DirectoryKind.WELCOME, welcome)
        self._scan(client)

    def _scan(self, client: Any) -> None:
        """Tell what was not heard: newer states, and what is there. What is missing for a lease, in which there are two
        scans, is gone: after FLUSHALL its owner needs a beat to write it again, and of a place that only ``PLACES`` has
        lost the channel says nothing.
        """
        self.counts["scans"] += 1
        found = {place for place in map(read_place, client.smembers(PLACES)) if place}
        places = [place for place in found if place[0] != self._node][:STATES_MAX]
        ages: dict[Place, Age] = {}
        for part in _parts(places, LEASES_AT_ONCE):
            for place, lease in zip(part, client.mget([lease_key(each) for each in part]), strict=True):
                age = read_age(lease)
                if age is not None:
                    ages[place] = age
        self._read(client, [place for place, age in ages.items() if self._known.get(place) != age])
        self._known = {place: age for place, age in self._known.items() if place in ages}
        self._hand_over(self._complete, tuple(ages))
        if len(ages) < len(places):  # whoever is still there adds itself again with its next beat
            client.srem(PLACES, *(to_json(place) for place in places if place not in ages))

    def _read(self, client: Any, places: Iterable[Place]) -> None:
        """Tell what is at ``places`` now."""
        for part in _parts(sorted(places), STATES_AT_ONCE):
            found = dict(zip(part, client.mget([state_key(each) for each in part]), strict=True))
            read = [self._state(place, data) for place, data in found.items() if data is not None]
            states = tuple(state for state in read if state is not None)
            gone = [place for place, data in found.items() if data is None and place in self._known]
            self.counts["read"] += len(states)
            if states:
                self._known.update({state.place: state.age for state in states})
                self._hand_over(self._feed, DirectoryKind.STATES, States(states))
            if gone:
                ended = tuple(Gone(*place, self._known.pop(place)[0]) for place in gone)
                self._hand_over(self._feed, DirectoryKind.GONE, ended)

    def _state(self, place: Place, data: bytes) -> State | None:
        try:
            return read_state(place, data)
        except Malformed as error:
            self.counts["malformed"] += 1
            if self._lines.admits(place, time.monotonic()):
                text, where = "redis at %s: a state was left out: %.64r, %.64r: %s", (self.label, *place)
                self._hand_over(self._reactor.say, logging.WARNING, text, (*where, str(error)))
            return None


def _incarnation(client: Any) -> int:
    """Of the server's process: what its restart changes."""
    try:
        return int(str(client.info("server")["run_id"])[:15], 16)
    except (KeyError, ValueError):
        return 0


def _parts(items: Sequence[Place], most: int) -> Iterable[Sequence[Place]]:
    return (items[at : at + most] for at in range(0, len(items), most))


def open_hosts(reactor: Reactor, config: NodeConfig, replica: Replica) -> list[RedisHost]:
    """Begin to share by all Redis hosts of one node's directory.

    Args:
        reactor: whose thread is told what was read.
        config: of the node. ``redis`` are URLs: ``redis://[user:password@]host:port[/db]``, ``rediss://``, ``unix://``,
            or ``sentinel://[user:password@]host:port[,host:port]/service[/db]``; none: nothing is shared.
        replica: what is fed; the sources are called ``redis:0`` and so on.

    Raises:
        ConfigError: redis-py is not installed, or one of the URLs is none; its text has no password.
    """
    password = secret.read_file(config.redis_password_file) if config.redis_password_file else ""
    openers = [opener(url, f"redis URL {number}", password) for number, url in enumerate(config.redis, 1)]
    stopping = natives.new_event()
    hosts = [
        RedisHost(f"redis:{number}", label, open_, config, reactor, replica, stopping)
        for number, (label, open_) in enumerate(openers)
    ]
    for host in hosts:
        host.start()
    return hosts


def library() -> Any:
    """redis-py.

    Raises:
        ConfigError: it is not installed.
    """
    try:
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
    user, _, password = url.reveal().partition("://")[2].rpartition("@")[0].partition(":")
    service, _, number = parts.path.strip("/").partition("/")
    if not service or (number and not number.isdigit()):
        raise ConfigError(f"{what}: expected sentinel://host:port[,host:port]/service[/db]")
    try:
        addresses = [parse(f"tcp://{each}", "tcp") for each in where.split(",")]
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from None
    login = {"username": user or None, "password": password or other or None, "db": int(number or 0)}

    def open_() -> Any:
        hosts = [(each.host, each.port) for each in addresses]
        return redis.sentinel.Sentinel(hosts, sentinel_kwargs=options, **options, **login).master_for(service)

    return f"{where}/{service}", open_
