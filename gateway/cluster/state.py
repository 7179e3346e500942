"""Where clusters are kept between verbs::

    $XDG_STATE_HOME/headgate/clusters/NAME/   (0700; else ~/.local/state/headgate/clusters/NAME)
        cluster.json    shape, where it is reached, when it was made
        keys/           what ``files.write`` wrote
        logs/           a file for each member, and supervisor.log
    .NAME.lock                                whoever makes or removes the cluster, as long as that takes

Sockets stand elsewhere, for their paths are limited to 107 bytes: see ``sockets_of``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from broker import atomic, home
from broker.errors import ConfigError
from broker.local.rundir import lock_file
from broker.obstacles import obstacle
from broker.settings.schema import default_rundir
from gateway.cluster.shape import Shape

FILE: Final = "cluster.json"
KEYS: Final = "keys"
LOGS: Final = "logs"


@dataclass(frozen=True)
class Saved:
    """What is known of a cluster.

    Attributes:
        shape: of its tree.
        sockets: the folder of its sockets.
        made: when, in seconds since 1970.
        token: a bearer token for the gateway; "" without one.
    """

    shape: Shape
    sockets: str
    made: float
    token: str = ""


def clusters() -> Path:
    """The folder of all clusters of this user."""
    return Path(home.state_folder("clusters"))


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


def new(shape: Shape) -> Saved:
    """A cluster that is made now."""
    return Saved(shape, str(sockets_of(folder_of(shape.name))), time.time())


def save(folder: Path, saved: Saved) -> None:
    """Write down what is known of a cluster, in its state folder, which is made.

    Raises:
        ConfigError: the operating system says no.
    """
    try:
        for path in (folder, folder / KEYS, folder / LOGS):
            home.make(path)
        atomic.write(folder / FILE, msgspec.json.format(msgspec.json.encode(dataclasses.asdict(saved))))
    except OSError as error:
        raise obstacle(f"{folder}: {error.strerror}", error) from error


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


def remove(folder: Path) -> None:
    """Remove the state folder and all that is in it; harmless without one."""
    shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------- locks


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
    try:
        home.make(path.parent)
        lock = lock_file(path, wait_s)
    except OSError as error:
        raise obstacle(f"{path}: {error.strerror}", error) from error
    if lock is None:
        raise Held(f"cluster {name} is being started or ended by somebody else: try again soon")
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)
