"""Bearer tokens: ``hgt_<id>_<secret>``, of which the token file keeps a hash.

The secret is 256 random bits, so plain SHA-256 is enough: a slow hash (scrypt, argon2) makes guessing *passwords*
dear, and nobody guesses 2**256 values at any speed; it would only let anyone keep our processor busy. Found by id,
compared in constant time.

The file is JSON, mode 0600, and read again when it changes: ``headgate token add`` needs no restart. It is replaced in
one step under a lock, so that readers see the old or the new one, and two writers lose nothing of each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec

from broker import atomic, home
from broker.errors import ConfigError
from broker.obstacles import obstacle
from broker.secret import check_mode
from gateway.identity.store import KEY_BYTES
from gateway.principal import refused
from gateway.settings.schema import GatewaySettings

if TYPE_CHECKING:
    from aiohttp import web

PREFIX: Final = "hgt_"
"""How every token begins: programs that look for leaked secrets know it by that."""
CREDENTIAL: Final = "token:"
"""What stands before a token's id where credentials of all kinds are named."""
ID_BYTES: Final = 6
TOKEN_CHARS: Final = 128
"""Longest text that is looked up: ours have 61 characters."""
FILE_BYTES: Final = 16 * 2**20
"""Largest token file that is read: some 80 000 tokens."""
FILE: Final = "tokens.json"

Content = TypeVar("Content")
Stamp = tuple[int, int, int, int]


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the file."""

    id: str
    """Public: names the token in lists, logs and revocations."""
    user: str
    """Whose it is: a name of ``[[users]]``."""
    hash: str
    """SHA-256 of the secret, hexadecimal."""
    created: float
    """Wall clock seconds since 1970."""
    expires: float | None = None
    """Wall clock seconds since 1970; None: never."""
    note: str = ""
    """What it is for, in its maker's words."""


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    version: int = 1
    tokens: tuple[Token, ...] = ()


def token_path(settings: GatewaySettings) -> Path:
    """Where the token file of these settings is."""
    return Path(settings.tokens.file or os.path.join(settings.gateway.statedir, FILE))


class WatchedFiles(ABC, Generic[Content]):
    """What files say that are read again when they change.

    Args:
        paths: the files.
        content: what they say before they were read.

    Attributes:
        content: what they said when they could be read last.
        generation: grows each time the content was replaced.
        problem: why the files that are there now were not taken; "" when they were. What was read before counts on.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]], content: Content) -> None:
        self.content = content
        self.generation = 0
        self.problem = ""
        self._paths = paths
        self._stamps: list[Stamp | None] = []

    def refresh(self) -> None:
        """Read the files if one of them is another than before: one stat each. A bad one sets ``problem``."""
        stamps = list(map(stamp_of, self._paths))
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self.content = self._load()
        except ConfigError as error:
            self.problem = str(error)
            return
        self.problem = ""
        self.generation += 1

    @abstractmethod
    def _load(self) -> Content:
        """Read the files.

        Raises:
            ConfigError: one of them is bad.
        """


class TokenFile(WatchedFiles[dict[str, Token]]):
    """The tokens of one file, by their ids. A file that is not there holds none."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        super().__init__([self.path], {})

    def _load(self) -> dict[str, Token]:
        return {token.id: token for token in _read(self.path)}

    # ------------------------------------------------------------ checking

    def check(self, text: str, now: float) -> Token:
        """The token that a client's text is; ``now`` is the wall clock.

        Raises:
            Denied: it is none, or has expired (401, do not reconnect).
        """
        self.refresh()
        found = self.content.get(token_id(text) or "")
        secret = text[len(PREFIX) :].partition("_")[2] if len(text) <= TOKEN_CHARS else ""
        # an unknown id costs as much as a wrong secret
        same = hmac.compare_digest(_hash(secret), found.hash if found is not None else _hash(""))
        if found is None or not same:
            raise refused(f"token {token_id(text)!r} is unknown or its secret is wrong")
        if found.expires is not None and found.expires <= now:
            raise refused(f"token {found.id} of {found.user!r} expired")
        return found

    def get(self, token_id: str) -> Token | None:
        """The token with this id."""
        self.refresh()
        return self.content.get(token_id)

    # ------------------------------------------------------------ changing

    def entries(self) -> list[Token]:
        """All tokens, in the order of their making.

        Raises:
            ConfigError: the file is bad.
        """
        return sorted(_read(self.path), key=lambda token: token.created)

    def add(
        self, user: str, *, now: float, expires: float | None = None, note: str = ""
    ) -> tuple[Token, str]:
        """Make a token; returns its entry and its text, which nothing can show again.

        Raises:
            ConfigError: the file is bad or cannot be written.
        """
        secret = secrets.token_urlsafe(KEY_BYTES)
        token = Token(
            id=secrets.token_hex(ID_BYTES),
            user=user,
            hash=_hash(secret),
            created=now,
            expires=expires,
            note=note,
        )
        self._replace(lambda tokens: (*tokens, token))
        return token, f"{PREFIX}{token.id}_{secret}"

    def remove(self, match: Callable[[Token], bool]) -> tuple[Token, ...]:
        """Take out all tokens that match; returns them.

        Raises:
            ConfigError: the file is bad or cannot be written.
        """
        gone: list[Token] = []

        def without(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
            gone.extend(token for token in tokens if match(token))
            return tuple(token for token in tokens if not match(token))

        self._replace(without)
        return tuple(gone)

    def _replace(self, change: Callable[[tuple[Token, ...]], tuple[Token, ...]]) -> None:
        try:
            home.make(self.path.parent)
            with _locked(self.path):
                before = _read(self.path)
                after = change(before)
                if after != before:
                    data = msgspec.json.format(msgspec.json.encode(_Document(tokens=after)))
                    atomic.write(self.path, data, durable=True)
        except OSError as error:
            raise obstacle(f"{self.path}: cannot write the token file: {error.strerror}", error) from error


def bearer_of(request: web.BaseRequest) -> str | None:
    """The bearer token of a request; other schemes are a proxy's matter.

    Raises:
        Denied: there are several, or an empty one.
    """
    said = request.headers.getall("Authorization", [])
    words = [each.split(None, 1) for each in said]
    found = [each for each in words if each and each[0].lower() == "bearer"]
    if not found:
        return None
    # RFC 6750, section 2: one way to show a token, once; of two, checks might see one and services the other
    if len(found) > 1 or len(found[0]) != 2:
        raise refused("an Authorization header without a token, or several")
    return found[0][1].strip()


def credential_of(token_id: str) -> str:
    """What names a token for revocation."""
    return CREDENTIAL + token_id


def token_id(text: str) -> str | None:
    """The public id in the text of a token; None when it is none.

    >>> token_id("hgt_00ff00ff00ff_secret")
    '00ff00ff00ff'
    """
    if not text.startswith(PREFIX) or len(text) > TOKEN_CHARS:
        return None
    public, mark, _secret = text[len(PREFIX) :].partition("_")
    good = mark and len(public) == 2 * ID_BYTES and all(letter in "0123456789abcdef" for letter in public)
    return public if good else None


# ---------------------------------------------------------------- the file


def _read(path: Path) -> tuple[Token, ...]:
    try:
        with open(path, "rb") as file:
            check_mode(path, os.fstat(file.fileno()), what="")  # hashes tell nothing
            encoded = file.read(FILE_BYTES + 1)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise obstacle(f"{path}: cannot read the token file: {error.strerror}", error) from error
    if len(encoded) > FILE_BYTES:
        raise ConfigError(f"{path}: more than {FILE_BYTES} bytes, expected a token file")
    try:
        document = msgspec.json.decode(encoded, type=_Document)
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigError(f"{path}: not a token file: {error}") from error
    if document.version != 1:
        raise ConfigError(f"{path}: token file of version {document.version}, expected 1")
    return document.tokens


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other writers out. The lock is a file of its own: the token file itself is replaced."""
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def stamp_of(path: str | os.PathLike[str]) -> Stamp | None:
    """What tells a file from the one that was there before; None: there is none."""
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return seen.st_ino, seen.st_mtime_ns, seen.st_size, seen.st_ctime_ns


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
