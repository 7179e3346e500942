"""What types cannot say about `[oslo]`: addresses, plaintext, ports that collide, keys, leases, folders too deep."""

from collections.abc import Iterator
from urllib.parse import urlsplit

from broker.endpoints import SHORTER_HELPS, UNIX_PATH_BYTES, is_loopback, numeric
from broker.schemes import beyond_loopback
from broker.settings.faults import Problem, check_key, check_metrics, check_uri, saw
from broker.settings.lines import KeyPath
from broker.settings.oslo import OsloSection

NAME_BYTES = 255
"""UTF-8 bytes of an exchange, topic or pool: longer ones cannot be sent."""
_LONGEST_FILE = "directory.ctl"
_REDIS_SCHEMES = ("redis", "rediss", "sentinel", "redis+sentinel")


def oslo_problems(section: OsloSection) -> Iterator[Problem]:
    """Yield every fault of a section whose types are right."""
    yield from _host(section)
    yield from _ports(section)
    yield from _rooms(section)
    yield from _folder(section)
    yield from _directories(section)
    yield from _keys(section)
    yield from _limits(section)
    if section.metrics_listen is not None:
        yield from check_metrics(("oslo", "metrics_listen"), section.metrics_listen, section.metrics_insecure)
    yield from _bridge(section)


def _host(section: OsloSection) -> Iterator[Problem]:
    path: KeyPath = ("oslo", "host")
    if not section.host:
        return
    if not _is_host(section.host):
        yield saw(path, section.host, 'an address or host name without port, "*" for all, or "" for none')
        return
    if not is_loopback(section.host) and section.curve_cert is None and not section.insecure:
        yield saw(path, section.host, "a loopback address, or oslo.curve_cert, or oslo.insecure = true")


def _is_host(text: str) -> bool:
    return text == "*" or numeric(text) is not None or all(char.isalnum() or char in "-._" for char in text)


def _ports(section: OsloSection) -> Iterator[Problem]:
    if not section.host:
        return
    taken: dict[int, str] = {}
    for room in dict.fromkeys(section.run):
        port = section.port_of(room)
        if port and port in taken:
            yield saw(("oslo", f"{room}_port"), port, f"another port than that of {taken[port]}")
        taken[port] = room


def _rooms(section: OsloSection) -> Iterator[Problem]:
    for index, room in enumerate(section.run):
        if room in section.run[:index]:
            yield saw(("oslo", "run"), room, "each room once")


def _folder(section: OsloSection) -> Iterator[Problem]:
    folder = section.ipc_dir
    if folder is None:
        return
    if not folder.startswith("/"):
        yield saw(("oslo", "ipc_dir"), folder, "an absolute path")
    if len(f"{folder}/{_LONGEST_FILE}".encode()) > UNIX_PATH_BYTES:
        yield saw(
            ("oslo", "ipc_dir"),
            folder,
            f"room for {_LONGEST_FILE} within {UNIX_PATH_BYTES} bytes; {SHORTER_HELPS}",
        )


def _directories(section: OsloSection) -> Iterator[Problem]:
    for index, uri in enumerate(section.directories):
        path: KeyPath = ("oslo", "directories", index)
        faults = list(check_uri(path, uri, "tcp"))
        yield from faults
        if uri.endswith(":*"):
            yield saw(path, uri, "tcp://HOST:PORT")
        elif not faults and beyond_loopback(uri) and section.curve_cert is None and not section.insecure:
            yield saw(path, uri, "a loopback address, or oslo.curve_cert, or oslo.insecure = true")
    for index, url in enumerate(section.redis):
        scheme, mark, rest = url.reveal().partition("://")
        if not mark or scheme not in _REDIS_SCHEMES or not rest or not _parses(scheme, url.reveal()):
            # what stands behind the scheme may hold a password: it is not repeated
            yield saw(
                ("oslo", "redis", index),
                scheme if mark else "...",
                "redis://, rediss:// or sentinel:// and an address",
            )


def _parses(scheme: str, url: str) -> bool:
    """Whether a URL of one server names a host and a port; of sentinels there may be several."""
    try:
        return not scheme.startswith("redis") or "+" in scheme or urlsplit(url).port != 0
    except ValueError:
        return False


def _keys(section: OsloSection) -> Iterator[Problem]:
    if section.directory_key is not None:
        yield from check_key(("oslo", "directory_key"), section.directory_key)
    seen: set[str] = set()
    for index, entry in enumerate(section.keys):
        path: KeyPath = ("oslo", "keys", index, "key")
        yield from check_key(path, entry.key)
        if entry.key in seen:
            yield saw(path, entry.key, "each key once")
        seen.add(entry.key)
    if section.curve_cert is not None:
        return
    if section.keys:
        yield Problem(
            ("oslo", "keys"), "saw keys without oslo.curve_cert, expected it: only CURVE checks keys"
        )
    if section.directory_key is not None:
        yield Problem(
            ("oslo", "directory_key"), "saw a key without oslo.curve_cert, expected it: CURVE needs both"
        )


def _limits(section: OsloSection) -> Iterator[Problem]:
    if section.beat_s * 2 > section.lease_s:
        yield saw(("oslo", "beat_s"), section.beat_s, f"at most half of lease_s, {section.lease_s:g}")
    for smaller, larger in (("message_bytes_max", "queue_bytes"), ("call_timeout_s", "call_timeout_max_s")):
        low, high = getattr(section, smaller), getattr(section, larger)
        if low > high:
            yield saw(("oslo", smaller), low, f"at most {larger}, {high:g}")


def _bridge(section: OsloSection) -> Iterator[Problem]:
    for index, place in enumerate(section.notify):
        path: KeyPath = ("oslo", "notify", index)
        exchange, mark, topic = place.rpartition("/")  # an exchange of a virtual host has slashes
        if not mark or not exchange or not topic:
            yield saw(path, place, "EXCHANGE/TOPIC")
        elif max(len(exchange.encode()), len(topic.encode()) + len(".critical")) > NAME_BYTES or _controls(
            place
        ):
            what = (
                f"names of at most {NAME_BYTES} bytes without control characters, a priority behind the topic"
            )
            yield saw(path, place, what)
        elif place in section.notify[:index]:
            yield saw(path, place, "each place once")
    if len(section.notify_pool.encode()) > NAME_BYTES or _controls(section.notify_pool):
        what = f"at most {NAME_BYTES} bytes without control characters"
        yield saw(("oslo", "notify_pool"), section.notify_pool, what)


def _controls(text: str) -> bool:
    return any(character < " " for character in text)
