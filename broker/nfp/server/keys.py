"""The broker's own files: its base directory, its CURVE key, and the key of its owner.

::

    broker.key_secret   the broker's certificate, mode 0600 (another place: the setting key_secret)
    broker.key          its public half: what workers and clients need
    owner.key_secret    a client's certificate that is an owner here, for whoever can read it; owner.key its public half
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from broker import home
from broker.errors import ConfigError
from broker.nfp.access import Access
from broker.nfp.peer.keys import kept_certificate
from broker.obstacles import obstacle
from broker.settings.nfp import KeyEntry, NfpSection
from broker.transport import curve
from broker.transport.curve import Certificate

OWNER: Final = "owner"


class BrokerKeys(NamedTuple):
    """Both are None in plaintext."""

    broker: Certificate | None
    owner: Certificate | None


def prepare(section: NfpSection) -> BrokerKeys:
    """Make the base directory and what is missing in it.

    Raises:
        ConfigError: something cannot be read or written; a ``key_secret`` that was named and is not there.
    """
    base = Path(section.base_dir)
    try:
        home.make(base)
    except OSError as error:
        raise obstacle(
            f"{base}: cannot make the base directory: {error.strerror}", error, absent=True
        ) from error
    if not section.curve:
        return BrokerKeys(None, None)
    secret = Path(section.secret_file)
    broker = curve.load(secret) if section.key_secret is not None else kept_certificate(secret, "NFPBroker")
    _show(broker, base / "broker.key")
    owner = kept_certificate(base / "owner.key_secret", OWNER)
    _show(owner, base / "owner.key")
    return BrokerKeys(broker, owner)


def access_of(section: NfpSection, keys: BrokerKeys) -> Access:
    """Make the rules of the settings, with the owner's key in the base directory listed."""
    listed = list(section.keys)
    if keys.owner is not None:
        listed.append(KeyEntry(key=keys.owner.public_key, name=OWNER, standing="owner", services=("*",)))
    return Access(
        listed,
        section.rules,
        section.tasks,
        unlisted=section.unlisted,
        offer_unlisted=section.offer_unlisted,
        results=section.results,
    )


def _show(certificate: Certificate, path: Path) -> None:
    """Write the public half to ``path`` unless it stands there."""
    try:
        if curve.load_public(path).public_key == certificate.public_key:
            return
    except ConfigError:
        pass  # not there, or something else
    curve.save(certificate.public, path, replace=True)
