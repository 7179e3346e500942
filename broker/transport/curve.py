"""CURVE certificates in the ZPL format of CZMQ and ``flux keygen``, and the owners of keys.

A certificate file has two sections of indented, quoted values (ZeroMQ RFC 4/ZPL)::

    metadata
        name = "node0"
    curve
        public-key = "40 characters of Z85"
        secret-key = "40 characters of Z85"

The secret key makes the file worth stealing: it is written with mode 0600, and not read when anyone else may read it
(``secret.check_mode``).
A public certificate is the same without the secret key, readable by everyone.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from broker import atomic, z85
from broker.errors import ConfigError
from broker.obstacles import obstacle
from broker.secret import check_mode

log = logging.getLogger("headgate")

_TEMPLATE_MARKS: Final = ("{{", "{%", "{#")
_NAME: Final = r"[A-Za-z0-9$\-_@.&+/]+"
_LINE: Final = re.compile(
    rf"""^(?P<indent>\ *)(?P<name>{_NAME})\ *
         (?:=\ *(?P<value>"[^"]*"|'[^']*'|[^\s"'\#]+))?\ *(?:\#.*)?$""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A CURVE key pair, or only its public half.

    Attributes:
        public_key: 40 characters of Z85.
        secret_key: the same, or None in a public certificate; never shown by ``repr``.
        metadata: what the section ``metadata`` says.
    """

    public_key: str
    secret_key: str | None = field(default=None, repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def public(self) -> Certificate:
        """The half that may be shown to everyone."""
        return Certificate(self.public_key, None, self.metadata)


@dataclass(frozen=True, slots=True)
class CurveServer:
    """``Options.extra["curve"]`` of a listener: its own certificate."""

    certificate: Certificate


@dataclass(frozen=True, slots=True)
class CurveClient:
    """``Options.extra["curve"]`` of a dialer: its own certificate and the key the listener must have (Z85).

    ``next_key`` is tried in turn with it while the listener changes its key; None: it does not.
    """

    certificate: Certificate
    server_key: str
    next_key: str | None = None


def server_of(told: object) -> CurveServer | None:
    """The keys of a listener, as of ``Options.extra["curve"]``; None: plaintext.

    Raises:
        ConfigError: not a CurveServer, or a certificate without secret key.
    """
    if told is not None and not isinstance(told, CurveServer):
        raise ConfigError(f"curve of a listener: {type(told).__name__}, expected CurveServer")
    _check_own(told)
    return told


def client_of(told: object) -> CurveClient | None:
    """The keys of a dialer, as of ``Options.extra["curve"]``; None: plaintext.

    Raises:
        ConfigError: not a CurveClient, or a certificate without secret key.
    """
    if told is not None and not isinstance(told, CurveClient):
        raise ConfigError(f"curve of a dialer: {type(told).__name__}, expected CurveClient")
    _check_own(told)
    return told


def _check_own(told: CurveServer | CurveClient | None) -> None:
    if told is not None and told.certificate.secret_key is None:
        raise ConfigError("our own CURVE certificate has no secret-key")


def check_key(text: str, where: str = "key") -> str:
    """``text`` itself when it is a CURVE key in Z85 (ZeroMQ RFC 32).

    Raises:
        ConfigError: not 40 characters of Z85; ``where`` begins its text. The key is not repeated: it may be a secret.
    """
    raw_key(text, where)
    return text


def raw_key(text: str, where: str = "key") -> bytes:
    """The 32 bytes of a key in Z85.

    Raises:
        ConfigError: as of ``check_key``.
    """
    try:
        return z85.decode(text)
    except ValueError as error:
        raise ConfigError(f"{where}: expected {error}") from None


def generate(metadata: Mapping[str, str] | None = None) -> Certificate:
    """A new key pair, without what begins something in a template: keys stand in inventories, which are rendered."""
    from nacl import bindings  # late, as in `load`: a service with oslo's driver needs none of it

    while True:
        public, secret = map(z85.encode, bindings.crypto_box_keypair())
        if not any(mark in key for mark in _TEMPLATE_MARKS for key in (public, secret)):
            return Certificate(public, secret, dict(metadata or {}))


# -- files ----------------------------------------------------------------------------------------


def load(path: str | Path) -> Certificate:
    """The key pair in the file ``path``.

    Raises:
        ConfigError: unreadable, readable by others (``secret.check_mode``), no certificate, without secret key, or two
            keys that do not belong together.
    """
    certificate = decode(_read(path, secret=True), str(path))
    if certificate.secret_key is None:
        raise ConfigError(f"{path}: a public certificate, expected one with a secret-key")
    from nacl import bindings

    if z85.encode(bindings.crypto_scalarmult_base(raw_key(certificate.secret_key))) != certificate.public_key:
        raise ConfigError(f"{path}: public-key does not belong to secret-key")
    return certificate


def load_public(path: str | Path) -> Certificate:
    """The public half of the certificate in the file ``path``, whatever its mode.

    Raises:
        ConfigError: unreadable or no certificate.
    """
    return decode(_read(path, secret=False), str(path)).public


def save(certificate: Certificate, path: str | Path, *, replace: bool = False) -> None:
    """Write ``certificate``: mode 0600 with a secret key, 0644 without. An existing file is kept unless ``replace``.

    The file appears whole: others wait for it, or begin at the same time, and read it as soon as it is there.

    Raises:
        ConfigError: the file exists or cannot be written, or a metadata value cannot be quoted.
    """
    mode = 0o644 if certificate.secret_key is None else 0o600
    data = encode(certificate).encode()
    try:
        atomic.write(path, data, mode, replace=replace)
    except OSError as error:
        raise obstacle(f"{path}: cannot write the certificate: {error.strerror}", error) from error


def _read(path: str | Path, *, secret: bool) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            if secret:
                check_mode(path, os.fstat(file.fileno()))
            return file.read()
    except OSError as error:
        text = f"{path}: cannot read the certificate: {error.strerror}"
        raise obstacle(text, error, absent=secret) from error  # one's own may yet be mounted
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a certificate: not UTF-8 text") from error


# -- text -----------------------------------------------------------------------------------------


def encode(certificate: Certificate) -> str:
    """The text of a certificate file.

    Raises:
        ConfigError: a metadata value has a double quote or a line break, which ZPL cannot write.
    """
    lines = [
        "#  ZeroMQ CURVE Public Certificate",
        "#  Exchange securely, or use a secure mechanism to verify",
        "",
    ]
    if certificate.secret_key is not None:
        lines = ["#  ZeroMQ CURVE **Secret** Certificate", "#  DO NOT DISTRIBUTE", ""]
    lines.append("metadata")
    lines += [_entry(name, value) for name, value in certificate.metadata.items()]
    lines.append("curve")
    lines.append(_entry("public-key", certificate.public_key))
    if certificate.secret_key is not None:
        lines.append(_entry("secret-key", certificate.secret_key))
    return "\n".join(lines) + "\n"


def _entry(name: str, value: str) -> str:
    if '"' in value or "\n" in value or not re.fullmatch(_NAME, name):
        raise ConfigError(f"certificate metadata {name!r}: cannot be written as name and quoted value")
    return f'    {name} = "{value}"'


def decode(text: str, where: str = "certificate") -> Certificate:
    """The certificate in ``text``, with or without secret key.

    Raises:
        ConfigError: not ZPL, no public key, or a key that is not Z85; ``where`` begins its text.
    """
    sections: dict[str, dict[str, str]] = {}
    section: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None or len(match["indent"]) % 4:
            raise ConfigError(f'{where}:{number}: expected a section, or four spaces and name = "value"')
        name, value = match["name"], match["value"]
        if not match["indent"]:
            section = sections.setdefault(name, {})
        elif value is not None:
            section[name] = value.strip("\"'")
    return _certificate(sections, where)


def _certificate(sections: dict[str, dict[str, str]], where: str) -> Certificate:
    keys = sections.get("curve", {})
    public, secret = keys.get("public-key"), keys.get("secret-key")
    if public is None:
        raise ConfigError(f"{where}: no public-key in a section curve, expected a CURVE certificate")
    check_key(public, f"{where}: public-key")
    if secret is not None:
        check_key(secret, f"{where}: secret-key")
    return Certificate(public, secret, sections.get("metadata", {}))
