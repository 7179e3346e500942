"""Keys and folders of a peer: our own CURVE key pair, the broker's public key, where state is kept.

A peer's folder, ``--base-dir`` (default ``$XDG_STATE_HOME/headgate/nfp``)::

    peers/NAME.key_secret   the key pair of the peer NAME, made at its first start, mode 0600
    peers/NAME.key          its public half, to be given to whoever lists keys
    peers/NAME.db           its jobs
    broker.key              the broker's public key, where broker and peer share the folder
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from broker import home
from broker.endpoints import parse
from broker.errors import ConfigError
from broker.nfp.names import NAME_BYTES_MAX
from broker.obstacles import obstacle
from broker.transport.curve import Certificate, CurveClient, check_key, generate, load, load_public, save

_STEM_MAX: Final = 150
"""Characters of a file's name taken from a peer's; leaves room for endings within the 255 of a file system."""
_KEY_CHARACTERS: Final = 40
OwnKey = Certificate | str | os.PathLike[str] | None
"""A certificate or its file; None: ours is kept in the folder for state."""
BrokerKeys = Mapping[str, str | os.PathLike[str]] | str | os.PathLike[str] | None
"""Z85, the file of a certificate, or {address: one of these}; None: looked for; ``PLAINTEXT``: none."""
PLAINTEXT: Final = ""
"""In place of a broker's key: no encryption, whatever keys lie about."""


DIR_VARIABLE: Final = "HEADGATE_NFP_DIR"
"""Environment: the folder for keys and state of peers, before any rule."""


def default_base_dir() -> Path:
    """Where state is kept unless told otherwise: ``$HEADGATE_NFP_DIR``, else ``headgate/nfp`` in the user's state."""
    if named := os.environ.get(DIR_VARIABLE):
        return Path(named)
    return Path(home.state_folder("nfp"))


def check_name(name: str, what: str = "name") -> str:
    """``name`` itself when it can be a peer's identity, or another name in a frame; ``what`` begins the error's text.

    Raises:
        ConfigError: empty, longer than 255 bytes, with a NUL or half a character.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{what} {name[:64]!r}: half a character, expected UTF-8") from None
    if not 0 < size <= NAME_BYTES_MAX or "\0" in name:
        raise ConfigError(f"{what} {name[:64]!r} of {size} bytes, expected 1 to {NAME_BYTES_MAX} without NUL")
    return name


def peer_file(base_dir: str | Path, name: str, ending: str) -> Path:
    """The file of the peer ``name`` with ``ending`` (``.db``); makes its folder, readable by its owner only.

    Characters a file cannot have are percent-encoded, and a long name is cut and made unique by a digest.

    Raises:
        ConfigError: the folder cannot be made, or the name is none.
    """
    stem = quote(check_name(name), safe=" ")
    if stem.startswith("."):
        stem = "%2E" + stem[1:]
    if len(stem) > _STEM_MAX:
        stem = f"{stem[:_STEM_MAX]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    folder = Path(base_dir) / "peers"
    try:
        home.make(folder)
    except OSError as error:
        raise obstacle(f"{folder}: cannot make the folder: {error.strerror}", error, absent=True) from error
    return folder / (stem + ending)


def own_certificate(base_dir: str | Path, name: str) -> Certificate:
    """The key pair of the peer ``name``, made when it has none.

    Raises:
        ConfigError: its file cannot be read or written, or is readable by others.
    """
    path = peer_file(base_dir, name, ".key_secret")
    if path.exists():
        return load(path)
    made = kept_certificate(path, _printable(name))
    save(made.public, path.with_suffix(".key"), replace=True)
    return made


def kept_certificate(path: Path, name: str) -> Certificate:
    """The key pair in ``path``, made there if there is none; two who start at once agree on one.

    Raises:
        ConfigError: as ``own_certificate``.
    """
    if not os.path.lexists(path):
        try:
            save(generate({"name": name}), path)
        except ConfigError:
            if not path.exists():  # else another process was faster
                raise
    return load(path)


def _printable(name: str) -> str:
    return "".join(character if character.isprintable() and character != '"' else "?" for character in name)


def broker_key(given: str | os.PathLike[str]) -> str:
    """The public key (Z85) that ``given`` is or whose certificate file it names.

    Raises:
        ConfigError: neither 40 characters of Z85 nor a readable certificate.
    """
    text = os.fspath(given)
    if len(text) == _KEY_CHARACTERS and not Path(text).exists():
        return check_key(text, "key of the broker")
    return load_public(text).public_key


def found_broker_key(base_dir: str | Path) -> str | None:
    """The key of a broker that keeps its state in the same folder; None when there is none.

    Raises:
        ConfigError: there is a file, but no certificate in it.
    """
    path = Path(base_dir) / "broker.key"
    return load_public(path).public_key if path.exists() else None


def credentials(
    base_dir: str | Path | None,
    name: str,
    endpoints: Sequence[str],
    *,
    key: OwnKey = None,
    server_key: BrokerKeys = None,
    insecure: bool = False,
) -> dict[str, CurveClient]:
    """Return what the peer ``name`` proves itself with at each broker: its own key pair, and the broker's public key.

    Args:
        base_dir: see the module; None: ``default_base_dir()``, since a name belongs to its key for good.
        name: of the peer.
        endpoints: of its brokers.
        key: our key pair or its file; None: the one in ``base_dir``, made when there is none.
        server_key: of all brokers or by endpoint, as Z85 or as a file; None: ``broker.key`` in ``base_dir`` or else
            in the default folder; "": speak plaintext, although there may be such a file.
        insecure: plaintext may go to another machine.

    {} is plaintext: no key of a broker is known, and every endpoint is on this machine.

    Raises:
        ConfigError: a key is wrong, or one is missing for an endpoint of another machine.
    """
    folder = Path(base_dir) if base_dir is not None else default_base_dir()
    if server_key == PLAINTEXT:
        known: Mapping[str, str] = {}
    elif isinstance(server_key, Mapping):
        known = {endpoint: broker_key(given) for endpoint, given in server_key.items()}
    elif server_key is not None:
        known = dict.fromkeys(endpoints, broker_key(server_key))
    else:
        found = found_broker_key(folder) or found_broker_key(default_base_dir())
        known = {} if found is None else dict.fromkeys(endpoints, found)
    if not known and (insecure or not needs_curve(endpoints)):
        return {}
    missing = [endpoint for endpoint in endpoints if endpoint not in known]
    if missing:
        raise ConfigError(
            f"{missing[0]}: the broker's public key is not known, and CURVE is needed off this machine; give it "
            "(40 characters of Z85, or its .key file)"
        )
    if not isinstance(key, Certificate):
        key = load(Path(key)) if key is not None else own_certificate(folder, name)
    return {endpoint: CurveClient(key, known[endpoint]) for endpoint in endpoints}


def needs_curve(endpoints: Sequence[str]) -> bool:
    """True unless every endpoint is on this machine as far as its text tells: ipc, a loopback number, localhost.

    Raises:
        ConfigError: one of them is no endpoint.
    """
    return not all(parse(endpoint).is_local for endpoint in endpoints)
