"""URLs that may hold a secret, as they may be shown: without login, and without the values of query and fragment.

Settings that may hold one are of the type `SecretUrl`, which shows itself so wherever it becomes a text, and is no
``str``: what needs the real one says ``reveal``. And who may read a file with a secret: one rule for keys, passwords
and tokens (``check_mode``). A leaf: every room may ask here.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import stat
from pathlib import Path
from typing import Any, Final

from broker.errors import ConfigError, NotReady

log = logging.getLogger("headgate")

HIDDEN: Final = "***"
"""What stands where something is hidden."""
FILE_BYTES: Final = 4096
"""Longest secret in a file."""
MOUNTS: Final = "/run/secrets"
"""Where Docker, Podman and Kubernetes mount secrets."""
_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_URLS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>`]+")
_LOGIN: Final = re.compile(r"[^/@]*:[^@]*@")
"""``USER:PASSWORD@`` before anything that could be a folder: a URL whose scheme was forgotten."""
_HERE: Final = frozenset({"local", "ipc", "inproc"})
"""Schemes of sockets on this machine: behind them stands the name of a file, whatever is in it but a login in front."""
_CONTAINERS: Final = frozenset({"abfs://", "abfss://"})
"""Before the @ of these stands the container, which is a place; behind its colon a key."""


def masked(url: str) -> str:
    """A URL, or a text that is none, as it may be shown.

    >>> masked("s3://key:se/cret@bucket/j?scheme=http&token=a#b"), masked("tcp://[::1]:80"), masked("kary:2")
    ('s3://bucket/j?scheme=***&token=***#***', 'tcp://[::1]:80', 'kary:2')
    >>> masked("user:password@host"), masked("local://user:password@/run/x")  # no scheme, and one that has no logins
    ('***', 'local:///run/x')
    """
    found = _SCHEME.match(url)
    if found is None and _LOGIN.match(url):
        return HIDDEN
    if found is None:
        return url
    rest = url[found.end() :]
    if found.group()[:-3].lower() in _HERE and not _LOGIN.match(rest):
        return url
    if "@" in rest and not rest.startswith(("/", "@")):
        # of several the last one: there are passwords with a slash, a question mark or an @ in them
        login, _, rest = rest.rpartition("@")
        if found.group().lower() in _CONTAINERS:
            rest = f"{login.partition(':')[0]}@{rest}"
    rest, hash_, fragment = rest.partition("#")
    path, mark, query = rest.partition("?")
    return f"{found.group()}{path}{mark}{_valueless(query)}{hash_}{_valueless(fragment)}"


def _valueless(query: str) -> str:
    """``name=***`` of each part; a part without a name is a value."""
    parts = (part.partition("=") for part in query.split("&")) if query else ()
    return "&".join(f"{name}={HIDDEN}" if mark else HIDDEN for name, mark, _value in parts)


def masked_in(text: str) -> str:
    """A text with URLs somewhere in it.

    >>> masked_in("cannot reach redis://:pw@h:6379/0, trying again")
    'cannot reach redis://h:6379/0, trying again'
    """
    return _URLS.sub(lambda found: masked(found.group()), text)


class SecretUrl:
    """A URL that may hold a secret.

    >>> url = SecretUrl("redis://user:password@host:6379/0")
    >>> f"{url}", repr(url), url.reveal()
    ('redis://host:6379/0', "SecretUrl('redis://host:6379/0')", 'redis://user:password@host:6379/0')
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The URL itself: for the store or server that it names, never for a person."""
        return self._text

    @property
    def secret(self) -> bool:
        """Whether something of it is not shown: nobody can tell which login or value is harmless."""
        return str(self) != self._text

    def masked_in(self, text: str) -> str:
        """``text``, in which somebody may have quoted this URL."""
        return str(self).join(map(masked_in, text.split(self._text)))

    def __str__(self) -> str:
        return masked(self._text) if "://" in self._text else HIDDEN

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretUrl) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


class SecretPlace(SecretUrl):
    """A URL that may hold a secret, or the path of a file or folder, which holds none."""

    __slots__ = ()

    def __str__(self) -> str:
        return masked(self._text)


# ---------------------------------------------------------------- for msgspec, which knows no such type


def convert_secret(kind: type, value: Any) -> Any:
    """For ``dec_hook``: a text becomes a URL of ours.

    Raises:
        TypeError: it is none.
    """
    assert issubclass(kind, SecretUrl), kind  # settings have no other type that msgspec does not know
    if isinstance(value, kind):
        return value
    if not isinstance(value, str) or not value:
        raise TypeError(
            "Expected `str`" if not isinstance(value, str) else "Expected a text that is not empty"
        )
    return kind(value)


def revealed(value: Any) -> Any:
    """For ``enc_hook``: the URL itself, for a child of ours or for settings that are read back."""
    assert isinstance(value, SecretUrl), type(value)
    return value.reveal()


def hidden(value: Any) -> Any:
    """For ``enc_hook``: what may be shown."""
    assert isinstance(value, SecretUrl), type(value)
    return str(value)


# ---------------------------------------------------------------- secrets in files


def read_file(path: str, *, limit: int = FILE_BYTES, refuse: bool = True) -> str:
    """The secret in a file, ``limit`` bytes of it at most; ``refuse``: see ``check_mode``.

    Raises:
        ConfigError: it cannot be read or is empty, or others may read it.
    """
    try:
        with open(path, "rb") as file:
            check_mode(path, os.fstat(file.fileno()), refuse=refuse)
            text = file.read(limit).decode().strip()
    except FileNotFoundError as error:  # it may yet be mounted
        raise NotReady(f"{path}: {error.strerror}", error.errno) from error
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", error.errno) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: saw a byte that is not UTF-8 at offset {error.start}") from None
    if not text:
        raise ConfigError(f"{path}: empty, expected the secret")
    return text


def exposure(seen: os.stat_result, what: str = "the secret") -> str:
    """What others can do with a file of this mode; "" where they can do nothing that matters.

    Args:
        seen: of the file.
        what: is secret in it; "" where nothing is, so that only writing counts.
    """
    mode = f"mode {stat.S_IMODE(seen.st_mode):04o}"
    if what and seen.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return f"{mode} shows {what} to others"
    if seen.st_mode & _WRITE:
        return f"{mode} lets others write it"
    return ""


def check_mode(
    path: str | os.PathLike[str], seen: os.stat_result, what: str = "the secret", *, refuse: bool = True
) -> None:
    """A file with a secret is its owner's alone. Of one that was handed over, whose mode is not ours to choose, it is
    only said that others may read it (``_is_handed_over``); one that they may write is refused wherever it lies.

    Args:
        path: as it is configured.
        seen: of the open file.
        what: see ``exposure``.
        refuse: False: a person or a program that is not ours keeps it, and it is used whatever its mode; that is said.

    Raises:
        ConfigError: others may read or write it.
    """
    told = exposure(seen, what)
    if not told:
        return
    if refuse and (seen.st_mode & _WRITE or not _is_handed_over(path, seen)):
        raise ConfigError(f"{path}: {told}, expected 0600")
    _warn(os.fspath(path), told)


@functools.lru_cache(maxsize=64)
def _warn(path: str, told: str) -> None:
    """Once for each file and mode: some are read at every login."""
    log.warning("%s: %s; it is used all the same", path, told)


def _is_handed_over(path: str | os.PathLike[str], seen: os.stat_result) -> bool:
    """Whether a container engine or service manager gave us this file: it lies where secrets are mounted, or nobody
    here can change it (a volume of Kubernetes is read-only, wherever it is mounted), or it is somebody else's and open
    to our group alone (``fsGroup``, a group for certificates).
    """
    real = os.path.realpath(path)
    for place in (MOUNTS, os.environ.get("CREDENTIALS_DIRECTORY", "")):
        if place and Path(real).is_relative_to(os.path.realpath(place)):
            return True
    if os.statvfs(real).f_flag & os.ST_RDONLY:
        return True
    return seen.st_uid != os.geteuid() and not seen.st_mode & stat.S_IRWXO
