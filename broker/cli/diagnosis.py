"""What stands between us and a broker, one step after the other: each step says what it saw and what to do.

A step that fails ends the walk, because the later ones would only fail with it. Steps that only look (modes, keys,
speed) may warn and go on. Everything here blocks but ``announced_version``: it is for ``headgate doctor``.
"""

from __future__ import annotations

import asyncio
import errno
import os
import pwd
import re
import socket
import stat
import uuid
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from broker import trust
from broker.cli.address import sockets_in
from broker.cli.exits import GUESTS
from broker.endpoints import is_loopback, listening_host, parse, split
from broker.errors import ConfigError, LinkError
from broker.node.overlay import hello
from broker.node.overlay.control import Status
from broker.schemes import scheme_of
from broker.settings import Settings
from broker.settings.schema import HostEntry
from broker.sockets import tcp_listeners
from broker.transport.link import Link
from broker.wire.message import Message

WAIT_S: Final = 3.0
"""How long one step waits for the other side."""
ZMTP_GREETING: Final = b"\xff" + bytes(8) + b"\x7f\x03"
"""Signature and major version, which every ZeroMQ peer of today sends first (ZMTP 3.1, "Greeting"). The rest of a
greeting names the mechanism; the other side shows its own as long as ours is not told."""
_GREETING_BYTES: Final = 64


class Finding(NamedTuple):
    """What one step found; ``advice`` says what to do about it, "" where there is nothing to do."""

    level: Literal["ok", "warn", "fail"]
    text: str
    advice: str = ""


def ok(text: str) -> Finding:
    """All is well here."""
    return Finding("ok", text)


def packages() -> Finding:
    """Whose packages ``broker`` and ``gateway`` are: other distributions have such names, and overwrite ours."""
    from headgate import ADVICE, PACKAGES, intruder, owners

    if said := intruder():
        return Finding("fail", said, ADVICE)
    others = sorted({each for name in PACKAGES for each in owners(name)})
    if others:
        return Finding("warn", f"{' and '.join(others)} in this environment has files among ours", ADVICE)
    return ok(f"{' and '.join(PACKAGES)} are Headgate's")


def user_name(uid: int) -> str:
    """The name of a uid, with the number."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


# ---------------------------------------------------------------- local://


def local(uri: str) -> Iterator[Finding]:
    """Walk to a UNIX socket up to the handshake byte."""
    try:
        path = parse(uri, "local").path
    except ConfigError as error:
        yield Finding(
            "fail", str(error), "give the address that `headgate attr get local-uri` shows at the broker"
        )
        return
    yield from _directory(os.path.dirname(path))
    found = _socket(path)
    yield found
    if found.level == "ok":
        yield _greeting(path)


def _directory(path: str) -> Iterator[Finding]:
    """The directory of the socket is what keeps other users out."""
    try:
        seen = os.stat(path)
    except OSError:
        return  # the socket's own step says what is missing
    mode = stat.S_IMODE(seen.st_mode)
    if mode & 0o022 and not mode & stat.S_ISVTX:
        yield Finding(
            "warn",
            f"directory {path} has mode {mode:04o}: others may replace the socket in it",
            f"chmod go-w {path}",
        )
    else:
        yield ok(f"directory {path} belongs to {user_name(seen.st_uid)}, mode {mode:04o}")


def _socket(path: str) -> Finding:
    try:
        seen = os.stat(path)
    except FileNotFoundError:
        return Finding("fail", f"there is no socket {path}", _where_else(path))
    except OSError as error:
        return Finding(
            "fail",
            f"cannot look at {path} as {user_name(os.geteuid())}: {error.strerror}",
            "the directory lets its owner in only; run as that user, or give others access to it",
        )
    if not stat.S_ISSOCK(seen.st_mode):
        return Finding(
            "fail", f"{path} is no socket", "the address is wrong, or something took the broker's place"
        )
    return ok(f"socket {path} is there")


def _where_else(path: str) -> str:
    directory = os.path.dirname(path)
    if others := sockets_in(directory):
        return f"there are others: try --uri local://{others[0]}"
    if not os.path.isdir(directory):
        return f"{directory} does not exist, either: the broker is not running, or its rundir is another one"
    return "the broker is not running (headgate start, headgate broker), or its rundir is another one"


def _greeting(path: str) -> Finding:
    """Connect and read the handshake byte (RFC 3; deployed: 0 or an errno)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(WAIT_S)
        try:
            trust.connect(sock, path)
            return _byte(sock.recv(1), trust.peer_uid(sock))
        except trust.Untrusted as error:
            return Finding(
                "fail", str(error.strerror), "somebody else may listen there in your broker's place"
            )
        except TimeoutError:
            return Finding(
                "fail",
                f"somebody listens but sends no handshake byte within {WAIT_S:g} s",
                "the broker hangs, or it is another kind of server: look at its log and its CPU time",
            )
        except OSError as error:
            return _no_connection(path, error)


def _no_connection(path: str, error: OSError) -> Finding:
    advice = {
        errno.ECONNREFUSED: "the broker that made this socket is gone; start it again, it replaces the file",
        errno.EACCES: "the socket's mode keeps us out; run as the owner of the instance",
        errno.EAGAIN: "too many clients connect at once; try again",
    }
    said = "nobody listens" if error.errno == errno.ECONNREFUSED else str(error.strerror)
    return Finding(
        "fail", f"cannot connect to {path}: {said}", advice.get(error.errno or 0, "see the broker's log")
    )


def _byte(greeting: bytes, server: int) -> Finding:
    if greeting == b"\0":
        return ok(f"the broker of {user_name(server)} let us in")
    if not greeting:
        return Finding(
            "fail",
            "the other side hung up without a handshake byte",
            "it is no Flux broker, or it is leaving",
        )
    if greeting[0] == errno.EPERM:
        return Finding(
            "fail",
            f"the broker of {user_name(server)} refused {user_name(os.geteuid())}: {os.strerror(errno.EPERM)}",
            f"run as its owner; {GUESTS}",
        )
    return Finding("fail", f"the broker refused us: {os.strerror(greeting[0])}", "see the broker's log")


# ---------------------------------------------------------------- tcp:// and ipc://


def zeromq(uri: str, *, curve: bool) -> Iterator[Finding]:
    """Walk to a ZeroMQ endpoint up to its greeting, which names its security mechanism.

    Args:
        uri: ``tcp://HOST:PORT`` or ``ipc://PATH``.
        curve: whether we mean to speak CURVE.
    """
    try:
        sock = _dial(uri)
    except (OSError, ValueError, ConfigError) as error:
        yield _unreachable(uri, error)
        return
    with sock:
        yield ok(f"{uri}: somebody listens")
        yield _mechanism(sock, curve)


def _dial(uri: str) -> socket.socket:
    endpoint = parse(uri, "tcp", "ipc")
    if endpoint.scheme == "tcp":
        return socket.create_connection((endpoint.host, endpoint.port), WAIT_S)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(WAIT_S)
        trust.connect(sock, endpoint.host)
    except BaseException:
        sock.close()
        raise
    return sock


def _unreachable(uri: str, error: Exception) -> Finding:
    if isinstance(error, trust.Untrusted):
        return Finding("fail", str(error.strerror), "somebody else may listen there in its place")
    if isinstance(error, ConfigError):
        return Finding("fail", str(error), "give tcp://HOST:PORT or ipc://PATH")
    if isinstance(error, socket.gaierror):
        return Finding(
            "fail",
            f"{uri}: the name has no address: {error.strerror}",
            "is it spelt right, does DNS know it?",
        )
    if isinstance(error, TimeoutError):
        return Finding(
            "fail", f"{uri}: no answer within {WAIT_S:g} s", "the host is down, or a firewall drops packets"
        )
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ECONNREFUSED, errno.ENOENT):
        return Finding(
            "fail", f"{uri}: nobody listens", "the broker is not running, or listens elsewhere (hosts.bind)"
        )
    return Finding("fail", f"{uri}: {error}", "check the address and the network")


def mechanism_of(greeting: bytes) -> str | None:
    r"""The security mechanism that a ZMTP 3 greeting names; None when it is no such greeting.

    >>> mechanism_of(ZMTP_GREETING + b"\1" + b"CURVE" + bytes(47))
    'CURVE'
    """
    if len(greeting) < _GREETING_BYTES or greeting[0] != 0xFF or greeting[9] != 0x7F or greeting[10] < 3:
        return None
    return greeting[12:32].rstrip(b"\0").decode("ascii", "replace")


def _mechanism(sock: socket.socket, curve: bool) -> Finding:
    ours = "CURVE" if curve else "NULL"
    sock.settimeout(WAIT_S)
    greeting = b""
    try:
        sock.sendall(ZMTP_GREETING)
        while len(greeting) < _GREETING_BYTES and (data := sock.recv(_GREETING_BYTES - len(greeting))):
            greeting += data
    except OSError as error:
        return Finding(
            "fail", f"no ZeroMQ greeting: {error}", "something else listens there, or the broker hangs"
        )
    theirs = mechanism_of(greeting)
    if theirs is None:
        return Finding("fail", f"no ZeroMQ greeting, but {greeting[:16]!r}", "something else listens there")
    if theirs == ours:
        return ok(f"both sides speak {theirs}")
    if curve:
        return Finding(
            "fail", f"we speak CURVE, they speak {theirs}", "give that broker a tree.curve_cert, too"
        )
    return Finding(
        "fail",
        f"they speak {theirs}, we speak plaintext",
        "set HEADGATE_CERT (our certificate) and HEADGATE_SERVER_KEY (theirs), or tree.curve_cert for a broker",
    )


# ---------------------------------------------------------------- this host's configuration


def configuration(settings: Settings) -> Iterator[Finding]:
    """What a broker with these settings (of ``Settings.at_rank``) would find on this host."""
    rank = settings.broker.rank or 0
    yield ok(f"this is rank {rank} of {settings.size}")
    yield from _directory(settings.broker.rundir)
    if settings.tree.curve_cert is not None:
        yield _certificate(settings.tree.curve_cert, settings, rank)


def _certificate(path: str, settings: Settings, rank: int) -> Finding:
    from broker.transport import curve

    try:
        key = curve.load(path).public_key
    except ConfigError as error:
        return Finding("fail", str(error), "headgate keygen makes one; it must be readable by its owner only")
    host = settings.host(rank)
    if host is not None and key not in (host.public_key, host.next_key):
        return Finding(
            "fail",
            f"{path} has the public key {key}, [[hosts]] says {host.public_key} for rank {rank}",
            "put the certificate's key into [[hosts]] on every host, or the right certificate here",
        )
    return ok(f"certificate {path} is that of rank {rank}")


# ---------------------------------------------------------------- speed


def box_speed() -> Finding:
    """Time the libsodium that CURVE uses: one without its fast code makes every tree link forty times slower."""
    from broker.transport.zeromq import boxes

    took = boxes.speed()
    if took > boxes.SLOW_US:
        return Finding(
            "warn",
            f"a CURVE box of 64 KiB takes {took:.0f} us; about 30 is usual",
            "install PyNaCl from its wheel: its libsodium is fast",
        )
    return ok(f"a CURVE box of 64 KiB takes {took:.0f} us, by the libsodium {boxes.LIBRARY}")


# ---------------------------------------------------------------- whether others reach this host's broker


def reach(settings: Settings) -> Iterator[Finding]:
    """Whether those who dial this rank (of ``Settings.at_rank``) from other machines reach where it listens.

    Seen from the listening side, where the mistake is.
    """
    rank = settings.broker.rank or 0
    own = settings.host(rank)
    place = (own.bind or own.address) if own is not None else ""
    if (
        own is None
        or {scheme_of(own.address), scheme_of(place)} != {"tcp"}
        or not any(_children(settings, rank))
    ):
        return
    host, bound, port = split(own.address).host, listening_host(split(place).host), place.rpartition(":")[2]
    elsewhere = [
        child.hostname
        for child in _children(settings, rank)
        if child is not None and child.hostname and child.hostname != own.hostname
    ]
    heard = [address for address, _inode in tcp_listeners(int(port))] if port.isdigit() else []
    if is_loopback(bound) and (elsewhere or not is_loopback(host)):
        yield Finding(
            "fail",
            f"rank {rank} listens at {place}, and {own.address} is what its children dial: "
            "others cannot reach this address",
            f'hosts.bind = "tcp://*:{own.address.rpartition(":")[2]}"'
            + ("" if not is_loopback(host) else ", and an address that other machines know"),
        )
    elif heard and not is_loopback(host) and all(is_loopback(each) for each in heard):
        yield Finding(
            "fail",
            f"what listens on port {port} now does so at {', '.join(heard)} alone: others cannot reach {own.address}",
            "is it this broker, started with this configuration? start it again",
        )
    elif not is_loopback(host):
        where = "all interfaces" if bound == "*" else bound
        yield ok(f"rank {rank} listens on {where}, its children dial {own.address}{_known_here(host)}")


def _children(settings: Settings, rank: int) -> Iterator[HostEntry | None]:
    from broker.node.assembly import topology_of

    return (settings.host(child) for child in topology_of(settings).children(rank))


def _known_here(host: str) -> str:
    """What a name means on this machine, where that is the loopback; "" otherwise."""
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return ""
    if not all(is_loopback(each) for each in found):
        return ""
    return f", which is {', '.join(sorted(found))} here: other machines must know {host} by another address"


# ---------------------------------------------------------------- the version that a parent announces

_SERVER = re.compile(r"mismatched with server \((\d+\.\d+\.\d+)\)")
ANSWER_S = 3.0
"""A parent that still waits for its own parent keeps a hello unanswered: then nothing is learnt."""


class _Listener:
    """Waits for the answer to one hello."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[hello.Answer | None] = asyncio.get_running_loop().create_future()

    def received(self, link: Link, messages: list[Message]) -> None:
        for message in messages:
            if hello.is_answer(message) and not self.answer.done():
                self.answer.set_result(hello.read_answer(message))

    def link_ended(self, link: Link, error: LinkError) -> None:
        if not self.answer.done():
            self.answer.set_result(None)

    def link_choked(self, link: Link, choked: bool) -> None:
        """One small message does not choke a link."""


async def announced_version(link: Link, rank: int) -> str | None:
    """The version that the parent at the other end of ``link`` announces, asked as its child ``rank``, without joining.

    A hello that claims version 0.0.0 is refused by every parent, ours and deployed ones, with a text that names both
    versions. A deployed parent forgets the rank's present child when it is greeted, so this is only for a host whose
    own broker is not running.

    None when it did not say: another reason to refuse came first, or no answer came in time. The link is of no use
    afterwards.
    """
    listener = _Listener()
    link.start(listener)
    link.send(hello.encode(hello.Hello(rank, 0, str(uuid.uuid4()), Status.FULL)))
    link.flush()
    try:
        async with asyncio.timeout(ANSWER_S):
            answer = await listener.answer
    except TimeoutError:
        return None
    found = _SERVER.search(answer.text) if answer is not None else None
    return found.group(1) if found else None
