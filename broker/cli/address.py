"""Which broker a client verb, or a wing, talks to, and with which CURVE key."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.cli.exits import UsageError
from broker.errors import ConfigError, LinkRefused
from broker.schemes import capabilities_of, scheme_of
from broker.settings.schema import default_rundir
from broker.trust import folder_objection

if TYPE_CHECKING:
    from broker.transport.curve import CurveClient
    from broker.transport.link import Options

SYSTEM_RUNDIR: Final = "/run/headgate"
"""Where the systemd unit and the container image put their sockets."""
CERT: Final = "HEADGATE_CERT"
"""Environment: path of the certificate to show to a broker over ``tcp://`` or ``ipc://``."""
SERVER_KEY: Final = "HEADGATE_SERVER_KEY"
"""Environment: the public key that broker must have, 40 characters of Z85, or the path of its certificate."""
OPTIONS: Final = "HEADGATE_OPTIONS"
"""Environment: ``KEY=VALUE ...`` for the transport of another package, the keys of its ``options`` table."""
KEYS_HELP: Final = f"""\
A broker over tcp:// is reached with CURVE: ${CERT} is our certificate, whose key has roles = ["owner"] in
[[clients]] there, ${SERVER_KEY} that broker's public key or a file with it. Both are read at the start."""
"""For the help of what keeps a link to a broker as its owner."""


def choose(given: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The URI to dial: ``given``, else HEADGATE_URI, else FLUX_URI, else a local socket of this user.

    Raises:
        UsageError: it is no ``scheme://place``.
    """
    return named(given, environ) or f"local://{default_socket()}"


def named(given: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The URI that somebody named: ``given``, else HEADGATE_URI, else FLUX_URI; "" when none of them says one.

    Raises:
        UsageError: it is no ``scheme://place``.
    """
    for source, uri in (
        ("--uri", given),
        ("HEADGATE_URI", environ.get("HEADGATE_URI")),
        ("FLUX_URI", environ.get("FLUX_URI")),
    ):
        if uri:
            try:
                scheme_of(uri)
            except ConfigError as error:
                raise UsageError(f"{source}: {error}, such as local:///run/headgate/local-0") from None
            return uri
    return ""


def default_socket() -> str:
    """The socket to try when nobody named one: that of the lowest rank, in a folder to be trusted."""
    first = default_rundir()
    for directory in (first, SYSTEM_RUNDIR):
        found = sockets_in(directory)
        if found and not folder_objection(directory):
            return found[0]
    return f"{first}/local-0"


def sockets_in(directory: str) -> list[str]:
    """Paths of the sockets ``local-RANK`` in ``directory``, by rank; empty when it cannot be read."""
    ranks: list[int] = []
    try:
        for entry in os.scandir(directory):
            number = entry.name.removeprefix("local-")
            if number != entry.name and number.isdecimal() and stat.S_ISSOCK(entry.stat().st_mode):
                ranks.append(int(number))
    except OSError:
        return []
    return [f"{directory}/local-{rank}" for rank in sorted(ranks)]


def extra(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """``Options.extra`` for the dialer: the CURVE keys that the environment names, if it does.

    Raises:
        ConfigError: only one of the two variables is set, or a certificate is wrong.
    """
    cert, server = environ.get(CERT), environ.get(SERVER_KEY)
    if not cert and not server:
        return {}
    if not cert or not server:
        missing = SERVER_KEY if cert else CERT
        raise ConfigError(f"{missing} is not set; a CURVE connection needs {CERT} and {SERVER_KEY}")
    return {"curve": curve_client(cert, server)}


def curve_client(cert: str, server: str) -> CurveClient:
    """Keys for dialing: our certificate file, and the server's key or certificate file.

    Raises:
        ConfigError: one of them is wrong.
    """
    from broker.transport import curve

    if len(server) == 40 and not Path(server).exists():
        key = curve.check_key(server, SERVER_KEY)
    else:
        key = curve.load_public(server).public_key
    return curve.CurveClient(curve.load(cert), key)


def link_options(uri: str, environ: Mapping[str, str] = os.environ, **more: Any) -> Options:
    """What the dialer of ``uri`` tells the transport: the keys of the environment for ``tcp://`` and ``ipc://``, its
    options for the transport of another package; at other addresses neither is looked at. ``more`` of ``Options``.

    Raises:
        ConfigError: as of ``extra``, or the options are wrong.
    """
    from broker.settings.transport_options import from_words
    from broker.transport.link import Options

    if _takes_keys(uri):
        return Options(extra=extra(environ), **more)
    if capabilities_of(uri).options is not None:
        return Options(settings=from_words(environ.get(OPTIONS, ""), uri), **more)
    return Options(**more)


@contextlib.contextmanager
def keys_explained(uri: str, options: Options) -> Iterator[None]:
    """While ``uri`` is dialled: a refusal that keys could have spared us says how to name them.

    Raises:
        LinkRefused, ConfigError: those of the body.
    """
    try:
        yield
    except (LinkRefused, ConfigError) as error:
        plaintext = _takes_keys(uri) and "curve" not in options.extra
        if not plaintext or not (isinstance(error, LinkRefused) or "plaintext" in str(error)):
            raise
        hint = f"{error}; no CURVE keys are named, see {CERT} and {SERVER_KEY}"
        raise type(error)(hint, error.errno) from error


def _takes_keys(uri: str) -> bool:
    return uri.startswith(("tcp://", "ipc://"))
