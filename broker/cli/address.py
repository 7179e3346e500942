"""Which broker a client verb talks to, and with which CURVE key."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from broker.cli.exits import UsageError
from broker.errors import ConfigError
from broker.settings.schema import default_rundir
from broker.transport.registry import scheme_of

if TYPE_CHECKING:
    from broker.transport.curve import CurveClient

SYSTEM_RUNDIR: Final = "/run/headgate"
"""Where the systemd unit and the container image put their sockets."""
CERT: Final = "HEADGATE_CERT"
"""Environment: path of the certificate to show to a broker over ``tcp://`` or ``ipc://``."""
SERVER_KEY: Final = "HEADGATE_SERVER_KEY"
"""Environment: the public key that broker must have, 40 characters of Z85, or the path of its certificate."""


def choose(given: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The URI to dial: ``given``, else HEADGATE_URI, else FLUX_URI, else a local socket of this user.

    Raises:
        UsageError: it is no ``scheme://place``.
    """
    for source, uri in (
        ("--uri", given),
        ("HEADGATE_URI", environ.get("HEADGATE_URI")),
        ("FLUX_URI", environ.get("FLUX_URI")),
    ):
        if uri:
            return _checked(uri, source)
    return f"local://{default_socket()}"


def _checked(uri: str, source: str) -> str:
    try:
        scheme_of(uri)
    except ConfigError as error:
        raise UsageError(f"{source}: {error}, such as local:///run/headgate/local-0") from None
    return uri


def default_socket() -> str:
    """The socket to try when nobody named one: that of the lowest rank which has one."""
    first = default_rundir()
    for directory in (first, SYSTEM_RUNDIR):
        if found := sockets_in(directory):
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
