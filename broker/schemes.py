"""Schemes of addresses: which transport each has, and what that transport can do. A leaf: settings ask here, too.

A transport declares its ``Capabilities``. What it does not declare it cannot: settings that ask for it all the same are
refused, with their line, before anything is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, NewType

from msgspec import Meta, Struct

from broker import z85
from broker.endpoints import split
from broker.errors import ConfigError
from broker.secret import masked

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "headgate.transports"
"""Entry points of this group name transports; the name of each is its scheme."""


def _anybody(_uri: str) -> bool:
    return True


def nobody(_uri: str) -> bool:
    """For ``Capabilities.is_exposed``: no other machine ever reaches such an address."""
    return False


def _fine(_text: str) -> str:
    return ""


FilePath = NewType("FilePath", str)
"""The type of an option that is the path of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a transport can do."""

    listens: bool = True
    """Brokers can listen with it; False: it only dials."""
    tree: bool = False
    """It may join brokers. A peer that it gives a ``rank`` is trusted as a broker."""
    dialects: tuple[str, ...] = ("flux1",)
    """The encodings of messages it carries (``Options.dialect``)."""
    strict_rfc3: bool = False
    """It can write the form of the text (``Options.strict_rfc3``)."""
    proves: tuple[Literal["uid", "key", "user"], ...] = ()
    """What its handshake proves of a peer: its userid on this machine, a key of ``Options.keys``, a user whom it knows
    by itself, or nothing."""
    protection: Literal["none", "curve", "own"] = "none"
    """Whether a network between can read or change what passes: it can (``none``), it cannot where ``tree.curve_cert``
    is set (``curve``), it never can, or the transport asks for ``insecure`` itself (``own``)."""
    is_exposed: Callable[[str], bool] = _anybody
    """Whether other machines reach a URI; where they do, ``protection`` or ``insecure = true`` is needed."""
    check_address: Callable[[str], str] = _fine
    """What is expected of an address that has not the form of one; "" of one that has. Nothing is opened."""
    check_key: Callable[[str], str] = _fine
    """What is expected of a key that cannot be one; "" of one that can."""
    options: type | None = None
    """The ``msgspec.Struct`` of its ``options`` table; None: it takes none. A field of type ``FilePath`` is the path of
    a file: it is taken from the directory of the configuration."""

    def proves_keys(self, curve: bool) -> bool:
        """Whether a peer has to have a key that is known; ``curve``: ``tree.curve_cert`` is set."""
        return "key" in self.proves and (curve or self.protection != "curve")

    def is_plaintext(self, uri: str, curve: bool) -> bool:
        """Whether other machines could read what passes at ``uri``; ``curve``: ``tree.curve_cert`` is set."""
        safe = self.protection == "own" or (self.protection == "curve" and curve)
        return not safe and self.is_exposed(uri)


def beyond_loopback(uri: str) -> bool:
    """For ``Capabilities.is_exposed``: ``SCHEME://HOST:PORT`` anywhere but on a loopback address."""
    try:
        return not split(uri).is_local
    except ValueError:
        return True


def check_port(uri: str, *schemes: str) -> str:
    """For ``Capabilities.check_address``: ``SCHEME://HOST:PORT``, where port ``*`` takes a free one, or the path of a
    UNIX socket; ``schemes``: those expected, if not any.
    """
    try:
        endpoint = split(uri, *schemes)
    except ValueError as error:
        return str(error).removeprefix("expected ")
    return "" if endpoint.is_unix or endpoint.port or uri.endswith(":*") else "a port from 1 to 65535"


class TlsOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``options`` table of ``tls://``."""

    cert: FilePath
    """Our certificate with its chain, PEM."""
    key: FilePath | None = None
    """Its private key, PEM. Default: in the same file."""
    ca: FilePath
    """The authorities whose certificates are believed, PEM: of the peers, on either side."""
    server_name: Annotated[str, Meta(min_length=1)] | None = None
    """The name that the certificate of the listener has to have. Default: the host that is dialled."""
    minimum: Literal["1.2", "1.3"] = "1.3"
    """The oldest version of TLS that is spoken. Default 1.3."""


def _check_name(text: str) -> str:
    """For ``tls://``: a fingerprint, or a name in a certificate."""
    if text.startswith("sha256:"):
        digits = text.removeprefix("sha256:")
        return "" if len(digits) == 64 and not digits.strip("0123456789abcdef") else _FINGERPRINT
    return "" if text and text == text.strip() else "a name of a certificate"


_FINGERPRINT: Final = "sha256: and 64 hex digits in lower case"
_PLAIN: Final = Capabilities()
"""What a transport can do that declares nothing."""


class _BuiltIn(NamedTuple):
    module: str
    capabilities: Capabilities


_ALL: Final = ("flux1", "cmb1rev", "cmb1")
_ZMQ: Final = "broker.transport.zeromq"
_WEB: Final = _BuiltIn("broker.transport.websocket", Capabilities(listens=False, protection="own"))
BUILT_IN: Final = {
    "local": _BuiltIn(
        "broker.transport.unix",
        Capabilities(
            tree=True, strict_rfc3=True, proves=("uid",), is_exposed=nobody, check_address=check_port
        ),
    ),
    "inproc": _BuiltIn(
        "broker.transport.inproc", Capabilities(tree=True, proves=("uid",), is_exposed=nobody)
    ),
    "tcp": _BuiltIn(
        _ZMQ,
        Capabilities(
            tree=True,
            dialects=_ALL,
            strict_rfc3=True,
            proves=("key",),
            protection="curve",
            check_key=z85.check,
            is_exposed=beyond_loopback,
            check_address=check_port,
        ),
    ),
    "ipc": _BuiltIn(
        _ZMQ,
        Capabilities(
            tree=True,
            dialects=_ALL,
            strict_rfc3=True,
            proves=("uid", "key"),
            protection="curve",
            check_key=z85.check,
            is_exposed=nobody,
            check_address=check_port,
        ),
    ),
    "tls": _BuiltIn(
        "broker.transport.tls",
        Capabilities(
            tree=True,
            proves=("key",),
            protection="own",
            is_exposed=beyond_loopback,
            check_address=check_port,
            check_key=_check_name,
            options=TlsOptions,
        ),
    ),
    "ws": _WEB,
    "wss": _WEB,
}
"""What this distribution brings. It stands here so that nothing of ZeroMQ is loaded to check a configuration."""
_loaded: dict[str, Any] = {}


def scheme_of(uri: str) -> str:
    """The part of ``uri`` before ``://``.

    Raises:
        ConfigError: there is none.

    >>> scheme_of("local:///run/headgate/local-0")
    'local'
    """
    scheme, separator, rest = uri.partition("://")
    if not (scheme and separator and rest):
        raise ConfigError(f"{masked(uri)!r} is not an address: expected scheme://place")
    return scheme


def register(scheme: str, transport: Any) -> None:
    """Use ``transport`` for ``scheme`` from now on, whatever the entry points say."""
    _loaded[scheme] = transport


def find(scheme: str) -> Any:
    """The transport of ``scheme``; loaded at first use.

    Raises:
        ConfigError: no transport has this scheme, or it cannot be loaded.
    """
    found = _loaded.get(scheme)
    if found is None:
        found = _loaded[scheme] = _load(scheme)
    return found


def capabilities_of(uri: str) -> Capabilities:
    """What the transport of ``uri`` can do; a built-in one is not loaded for that.

    Raises:
        ConfigError: as of ``scheme_of`` and ``find``, or it declares something else than ``Capabilities``.
    """
    scheme = scheme_of(uri)
    if scheme in BUILT_IN:
        return BUILT_IN[scheme].capabilities
    declared = getattr(find(scheme), "capabilities", _PLAIN)
    if not isinstance(declared, Capabilities):
        raise ConfigError(
            f"the transport of scheme {scheme!r} declares capabilities that are none: {declared!r:.60}"
        )
    return declared


def _load(scheme: str) -> Any:
    if scheme in BUILT_IN:  # no entry point scan for the built-in ones: it costs 20 ms at start-up
        return import_module(BUILT_IN[scheme].module).transport
    from importlib import metadata  # it loads the e-mail parser: 13 ms that only foreign schemes cost

    points = metadata.entry_points(group=GROUP)
    for point in points:
        if point.name == scheme:
            return _foreign(point)
    names = sorted({*BUILT_IN, *_loaded, *points.names})
    raise ConfigError(f"no transport for scheme {scheme!r}; known: {', '.join(names)}")


def _foreign(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:  # it is somebody else's code: whatever it raises is told in one line
        package = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
        raise ConfigError(
            f"the transport of scheme {point.name!r} ({point.value}{package}) cannot be loaded: "
            f"{type(error).__name__}: {error}"
        ) from error
