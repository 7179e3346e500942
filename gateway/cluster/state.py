"""Where clusters are kept between verbs::

    $XDG_STATE_HOME/headgate/clusters/NAME/   (0700; else ~/.local/state/headgate/clusters/NAME)
        cluster.json    shape, engine, when it was made
        keys/           what ``files.write`` wrote
        logs/           a file for each member, and supervisor.log
    .NAME.lock                                whoever makes or removes the cluster, as long as that takes

Sockets stand elsewhere, for their paths are limited to 107 bytes: see ``sockets_of``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from broker.errors import ConfigError
from broker.settings.schema import default_rundir
from gateway.cluster.shape import Shape

FILE: Final = "cluster.json"
KEYS: Final = "keys"
LOGS: Final = "logs"
_LOOK_S: Final = 0.1


@dataclass(frozen=True)
class Saved:
    """What is known of a cluster.

    Attributes:
        shape: of its tree.
        engine: the name of what runs it.
        sockets: the folder of its sockets.
        made: when, in seconds since 1970.
    """

    shape: Shape
    engine: str
    sockets: str
    made: float


def clusters() -> Path:
    """The folder of all clusters of this user."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base, "headgate", "clusters")


def folder_of(name: str) -> Path:
    """The state folder of the cluster ``name``, whether it is there or not.

    Raises:
        ConfigError: no cluster can have this name.
    """
    return clusters() / Shape(name, 1).name


def sockets_of(folder: Path) -> Path:
    """Where the sockets of the cluster with this state folder are, below ``$XDG_RUNTIME_DIR/headgate`` or
    ``/tmp/headgate-UID``: a folder that no other cluster has, be it of the same name.
    """
    mark = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:6]
    return Path(default_rundir(), "clusters", f"{folder.name}-{mark}")


def names() -> list[str]:
    """The clusters of this user, sorted."""
    with contextlib.suppress(OSError):
        return sorted(path.parent.name for path in clusters().glob(f"*/{FILE}"))
    return []


def save(folder: Path, saved: Saved) -> None:
    """Make the state folder of a cluster.

    Raises:
        ConfigError: the operating system says no.
    """
    try:
        for path in (folder, folder / KEYS, folder / LOGS):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = folder / f".{FILE}"
        new.write_bytes(msgspec.json.format(msgspec.json.encode(dataclasses.asdict(saved))))
        new.replace(folder / FILE)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}", error.errno) from error


def load(folder: Path) -> Saved:
    """What ``save`` left.

    Raises:
        ConfigError: no cluster of this name, or its file is none of ours.
    """
    try:
        tables = msgspec.json.decode((folder / FILE).read_bytes(), type=dict[str, object])
        return msgspec.convert(tables, Saved)
    except FileNotFoundError:
        raise ConfigError(f"no cluster {folder.name}; `headgate cluster ls` shows which there are") from None
    except (OSError, msgspec.MsgspecError, ValueError, ConfigError) as error:
        raise ConfigError(f"{folder / FILE}: {error}") from error


class Held(ConfigError):
    """Somebody else makes or removes this cluster."""


@contextlib.contextmanager
def held(name: str, wait_s: float = 0.0) -> Iterator[None]:
    """Nobody else makes or removes the cluster ``name`` meanwhile.

    Args:
        name: of the cluster.
        wait_s: how long to wait for whoever does; 0: not at all.

    Raises:
        Held: somebody does. ConfigError: the operating system says no.
    """
    path = folder_of(name).with_name(f".{name}.lock")
    until = time.monotonic() + wait_s
    try:
        while (lock := _locked(path)) is None:
            if time.monotonic() >= until:
                raise Held(f"cluster {name} is being started or ended by somebody else: try again soon")
            time.sleep(_LOOK_S)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", error.errno) from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)


def _locked(path: Path) -> int | None:
    """A lock on the file at this path, which is made; None when somebody has it, or has just removed it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), path.stat()):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(lock)
    return None


def new(shape: Shape, engine: str) -> Saved:
    """A cluster that is made now."""
    return Saved(shape, engine, str(sockets_of(folder_of(shape.name))), time.time())


def remove(folder: Path) -> None:
    """Remove the state folder and all that is in it; harmless without one."""
    shutil.rmtree(folder, ignore_errors=True)
