"""Keys and settings of a cluster, in one folder that every member can be given::

    broker.toml          for all ranks: hosts, keys, who may connect as a client
    rank-N.cert          the CURVE certificate of rank N            rank-N.pub   its public half
    gateway.toml         the gateway in front of rank 0
    gateway.cert         with what it dials rank 0, as an owner
    tokens.json          hash of the bearer token of the user ``operator``
    nfp.toml             a broker of NFP; nfp/broker.key_secret its certificate, nfp/broker.key for its workers
    nfp.cert             with what it dials rank 0, as an owner
    oslo.toml            a node proxy for oslo.messaging
    oslo.cert            certificate of its ports, which all proxies share; with it they dial rank 0, as owners

The folder is made with mode 0700, and an empty one given it; every secret in it has 0600. Files are put there in one
step: a reader sees the whole of a file or none of it. What is there already stays, with one exception: in
``broker.toml`` everything below ``MARK`` is written anew, for a larger cluster has more hosts; settings above it are
their writer's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec

from broker import __version__, atomic, home
from broker.errors import ConfigError
from broker.obstacles import obstacle
from broker.settings import loads as loads_broker
from broker.transport import curve
from gateway.cluster.shape import Shape
from gateway.identity.tokens import TokenFile
from gateway.settings import loads as loads_gateway

MARK: Final = "# ---- written by headgate cluster init; what stands below is written anew by it ----"
"""The line of ``broker.toml`` that divides the reader's settings from those of the cluster."""
OPERATOR: Final = "operator"
"""Name of the gateway's one user, an owner."""
GATEWAY_PORT: Final = 8280
"""Where the gateway listens; that of a container on the loopback of its machine, too, unless told otherwise."""
_PUBLIC: Final = 0o644
_SECRET: Final = 0o600
_HEAD: Final = f"""\
# Settings of all ranks of this cluster. Yours may stand here, above the next line; `headgate config show` has them all.

{MARK}
"""


@dataclass(frozen=True)
class Written:
    """What ``write`` did.

    Attributes:
        folder: where.
        made: names of files, relative to it, that were made or changed. kept: of those that stood there.
        token: a bearer token of the user ``operator``, whose hash alone is kept; "" when one was there already.
        keys: file of a certificate, such as ``rank-3.cert`` -> its public key (Z85).
    """

    folder: Path
    made: tuple[str, ...]
    kept: tuple[str, ...]
    token: str
    keys: Mapping[str, str]


def write(
    shape: Shape,
    folder: Path,
    *,
    addresses: Mapping[int, str] | None = None,
    binds: Mapping[int, str] | None = None,
    renew: bool = False,
    userid: int | None = None,
) -> Written:
    """Write what is missing of the files of a cluster.

    Args:
        shape: of the cluster. A larger size than last time adds ranks.
        folder: made with mode 0700 if need be; one that has something in it keeps its mode.
        addresses: rank -> where its children dial it; others have ``tcp://HOST:PORT`` of the shape.
        binds: rank -> where it listens for them; others have ``tcp://*:PORT``, or what ``addresses`` says.
        renew: replace every key, token and file that is there.
        userid: of the gateway and of other owners by CURVE; None is the uid of this process.

    Raises:
        ConfigError: something cannot be read or written, or a file that is there is none of ours.
    """
    with _Writing(folder, renew) as out:
        _keys(shape, out)
        who = os.getuid() if userid is None else userid
        _brokers(shape, out, addresses or {}, binds or {}, who)
        token = ""
        if shape.gateway:
            token = _token(out)
            out.text("gateway.toml", _checked_gateway(_gateway(shape, who)), _PUBLIC)
        if shape.nfp:
            out.text("nfp.toml", _checked_broker(_NFP), _PUBLIC)
        if shape.oslo:
            out.text("oslo.toml", _checked_broker(_OSLO), _PUBLIC)
        return Written(out.folder, tuple(out.made), tuple(out.kept), token, out.keys)


# ---------------------------------------------------------------- the folder


class _Writing:
    """A folder under a lock, and what was done in it.

    Raises:
        ConfigError: from every method: the operating system said no; the text says to what.
    """

    def __init__(self, folder: Path, renew: bool) -> None:
        self.folder = Path(folder)
        self.made: list[str] = []
        self.kept: list[str] = []
        self.keys: dict[str, str] = {}
        self.renew = renew
        self._lock = -1

    def __enter__(self) -> Self:
        with self._told(self.folder):
            home.make(self.folder)
            seen = self.folder.stat()
            if seen.st_uid == os.geteuid() and seen.st_mode & 0o077 and not any(self.folder.iterdir()):
                self.folder.chmod(0o700)  # a new volume comes with a mode of its own; what is in use keeps it
            self._lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def certificate(self, name: str, whose: str, public: str) -> None:
        """The key pair ``name``, and its public half in the file ``public``."""
        path = self.folder / name
        if self.renew or not path.exists():
            made = curve.generate({"name": whose, "keygen.headgate-version": __version__})
            self._put(name, curve.encode(made), _SECRET)
        else:
            self.kept.append(name)
        found = curve.load(path)
        self.keys[name] = found.public_key
        self.changed(public, curve.encode(found.public), _PUBLIC)

    def text(self, name: str, text: str, mode: int) -> None:
        """The file ``name``, unless it is there."""
        if self.renew or not (self.folder / name).exists():
            self._put(name, text, mode)
        else:
            self.kept.append(name)

    def changed(self, name: str, text: str, mode: int) -> None:
        """The file ``name`` with exactly this text."""
        if self.read(name) == text:
            self.kept.append(name)
        else:
            self._put(name, text, mode)

    def read(self, name: str) -> str:
        """What stands in the file ``name``; "" without one."""
        with self._told(self.folder / name):
            try:
                return (self.folder / name).read_text(encoding="utf-8")
            except FileNotFoundError:
                return ""
            except UnicodeDecodeError:
                raise ConfigError(f"{self.folder / name}: not UTF-8, expected a file of ours") from None

    def _put(self, name: str, text: str, mode: int) -> None:
        path = self.folder / name
        with self._told(path):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            atomic.write(path, text.encode(), mode, durable=True)
        self.made.append(name)

    @staticmethod
    @contextlib.contextmanager
    def _told(path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise obstacle(f"{path}: {error.strerror}", error) from error


def _keys(shape: Shape, out: _Writing) -> None:
    for rank in shape.ranks():
        out.certificate(f"rank-{rank}.cert", shape.host(rank), f"rank-{rank}.pub")
    for name in _clients(shape):
        out.certificate(f"{name}.cert", name, f"{name}.pub")
    if shape.nfp:
        out.certificate("nfp/broker.key_secret", "NFPBroker", "nfp/broker.key")


def _clients(shape: Shape) -> list[str]:
    """Who dials rank 0 with a key of its own."""
    wanted = (("gateway", shape.gateway), ("nfp", shape.nfp), ("oslo", shape.oslo))
    return [name for name, there in wanted if there]


# ---------------------------------------------------------------- broker.toml


def _brokers(
    shape: Shape, out: _Writing, addresses: Mapping[int, str], binds: Mapping[int, str], userid: int
) -> None:
    """Above the mark: what stands there. Below: this cluster."""
    head, mark, _ = out.read("broker.toml").partition(MARK)
    head = f"{head}{mark}\n" if mark and not out.renew else _HEAD
    below = [
        "[tree]",
        f"topology = {_toml(shape.topology)}",
        f"size = {shape.size}",
        'curve_cert = "rank-{rank}.cert"',
        "",
    ]
    for rank in shape.ranks():
        below += _host(shape, rank, addresses.get(rank), binds.get(rank), out.keys[f"rank-{rank}.cert"])
    if shape.client_port:
        below += ["[[listen]]", f'uri = "tcp://*:{shape.client_port}"', ""]
    for name in _clients(shape):
        below += [
            "[[clients]]",
            f"name = {_toml(name)}",
            f"public_key = {_toml(out.keys[f'{name}.cert'])}",
            f"userid = {userid}",
            'roles = ["owner"]',
            "",
        ]
    text = head + "\n".join(below)
    out.changed("broker.toml", _checked_broker(text), _PUBLIC)


def _host(shape: Shape, rank: int, address: str | None, bind: str | None, key: str) -> list[str]:
    if bind is None and address is None:
        bind = f"tcp://*:{shape.port}"
    return [
        "[[hosts]]",
        f"rank = {rank}",
        f"hostname = {_toml(shape.host(rank))}",
        f"address = {_toml(address or f'tcp://{shape.host(rank)}:{shape.port}')}",
        *([f"bind = {_toml(bind)}"] if bind else []),
        f"public_key = {_toml(key)}",
        "",
    ]


# ---------------------------------------------------------------- the others


def _token(out: _Writing) -> str:
    """A token of the operator if there is none; its hash goes into the file."""
    path = out.folder / "tokens.json"
    tokens = TokenFile(path)
    if out.renew:
        tokens.remove(lambda token: token.user == OPERATOR)
    elif any(token.user == OPERATOR for token in tokens.entries()):
        out.kept.append(path.name)
        return ""
    _, text = tokens.add(OPERATOR, now=time.time(), note="made with the cluster")
    out.made.append(path.name)
    return text


def _gateway(shape: Shape, userid: int) -> str:
    """A gateway of its own host: it dials rank 0 by CURVE; its port is behind a proxy, or published on a loopback."""
    upstream = [
        "# without a client port, --upstream says where rank 0 is",
    ]
    if shape.client_port:
        upstream = [
            f"upstream = {_toml(f'tcp://{shape.host(0)}:{shape.client_port}')}",
            'upstream_cert = "gateway.cert"',
            'upstream_key = "rank-0.pub" # a file, so that it is read again at each attempt',
        ]
    lines = [
        "# The gateway of this cluster; `headgate gateway --show` has every setting.",
        "",
        "[gateway]",
        *upstream,
        "",
        "[[listen]]",
        f'url = "http://0.0.0.0:{GATEWAY_PORT}"',
        "insecure = true # publish it on a loopback address, or put a proxy with TLS in front of it",
        "",
        "[tokens]",
        'file = "tokens.json"',
        "",
        "[access]",
        "allow_owner = true",
        'login_links = "user"',
        "",
        "[[users]]",
        f'name = "{OPERATOR}"',
        f"userid = {userid}",
        'roles = ["owner"]',
    ]
    return "\n".join(lines) + "\n"


_NFP: Final = """\
# The NFP broker of this cluster; `headgate config show` has every setting of [nfp].

[nfp]
endpoint = "tcp://*:5555"
key_secret = "nfp/broker.key_secret"
"""
_OSLO: Final = """\
# The node proxies of this cluster; `headgate config show` has every setting of [oslo].

[oslo]
host = "*"
curve_cert = "oslo.cert"
"""


def _toml(text: str) -> str:
    """A basic string of TOML is one of JSON."""
    return msgspec.json.encode(text).decode()


def _checked_broker(text: str) -> str:
    loads_broker(text, "broker.toml")
    return text


def _checked_gateway(text: str) -> str:
    loads_gateway(text, "gateway.toml")
    return text
