"""Where a user's state is kept, and that there is such a place: one answer for all that keep some. A leaf.

A user without an entry in passwd and without ``$HOME`` has none, as in a container with a number for a user: what they
name then is below a folder that never is, and ``make`` says what is missing.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Final

from broker.errors import ConfigError

NOWHERE: Final = "/nonexistent"
"""The home of users who have none; what passwd says of many services, too."""


def state_folder(*names: str) -> str:
    """``$XDG_STATE_HOME/headgate/NAMES``, else ``~/.local/state/headgate/NAMES``; below ``NOWHERE`` without a home."""
    return _folder("XDG_STATE_HOME", os.path.join(".local", "state"), names)


def cache_folder(*names: str) -> str:
    """``$XDG_CACHE_HOME/headgate/NAMES``, else ``~/.cache/headgate/NAMES``; below ``NOWHERE`` without a home."""
    return _folder("XDG_CACHE_HOME", ".cache", names)


def make(folder: str | os.PathLike[str]) -> None:
    """Make a folder of the user's state, and those above it, for the user alone; one that is there stays as it is.

    Raises:
        ConfigError: it would be below a home that there is not. OSError: it cannot be made.
    """
    check(folder)
    Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)


def check(folder: str | os.PathLike[str]) -> None:
    """Refuse a folder below a home that there is not.

    Raises:
        ConfigError: it is one.
    """
    if os.path.abspath(folder).startswith(f"{NOWHERE}/"):
        uid = os.geteuid()
        raise ConfigError(
            f"uid {uid} has no home directory to keep state in: set HOME or XDG_STATE_HOME, or name a folder"
        )


def _folder(variable: str, default: str, names: tuple[str, ...]) -> str:
    base = os.environ.get(variable, "")
    if not os.path.isabs(base):  # the XDG base directory specification has a relative path ignored
        base = os.path.join(_home(), default)
    return os.path.join(base, "headgate", *names)


def _home() -> str:
    home = os.environ.get("HOME", "")
    if os.path.isabs(home):
        return home
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/root" if os.getuid() == 0 else NOWHERE
