"""With which CURVE keys the gateway dials its upstream: files that are read again at each attempt, so that a key can be
changed while the gateway runs. Nothing of ZeroMQ is loaded where none is named.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.errors import ConfigError
from broker.schemes import capabilities_of
from broker.settings.transport_options import from_words, typed

if TYPE_CHECKING:
    from gateway.settings.schema import GatewaySection

CERT: Final = "HEADGATE_CERT"
"""Environment: our certificate, where the settings name none."""
SERVER_KEY: Final = "HEADGATE_SERVER_KEY"
"""Environment: the key that the upstream must have, likewise."""


OPTIONS: Final = "HEADGATE_OPTIONS"
"""Environment: ``KEY=VALUE ...`` for the transport of another package, likewise."""


def keys_of(
    section: GatewaySection, uri: str, environ: Mapping[str, str] = os.environ
) -> Callable[[], dict[str, Any]] | None:
    """What gives ``Options.extra`` of a dialer each time it is called, and raises ConfigError when a file is wrong.

    None: no keys are named, or ``uri`` is nothing that CURVE is spoken to.

    Raises:
        ConfigError: only one of certificate and key is named.
    """
    if not uri.startswith(("tcp://", "ipc://")):
        return None
    named = section.upstream_cert or section.upstream_key
    cert = section.upstream_cert if named else environ.get(CERT)
    key = section.upstream_key if named else environ.get(SERVER_KEY)
    if not cert and not key:
        return None
    if not cert or not key:
        missing = f"{SERVER_KEY} (or gateway.upstream_key)" if cert else f"{CERT} (or gateway.upstream_cert)"
        raise ConfigError(f"{missing} is not set; CURVE needs a certificate and the upstream's key")
    given = (cert, key)

    def extra() -> dict[str, Any]:
        from broker.transport import curve

        cert, key = given
        server = key if is_key(key) else curve.load_public(key).public_key
        return {"curve": curve.CurveClient(curve.load(cert), server)}

    return extra


def options_for(section: GatewaySection, uri: str, environ: Mapping[str, str] = os.environ) -> Any:
    """``Options.settings`` of a dialer; None at an address whose transport takes none.

    Raises:
        ConfigError: they are not what the transport takes.
    """
    if section.upstream_options:
        return typed(section.upstream_options, capabilities_of(uri))
    return from_words(environ.get(OPTIONS, ""), uri) if capabilities_of(uri).options is not None else None


def is_key(text: str) -> bool:
    """Whether ``text`` is a key in Z85 rather than the path of a file."""
    from broker.transport.curve import check_key

    try:
        return bool(check_key(text)) and not os.path.exists(text)
    except ConfigError:
        return False
