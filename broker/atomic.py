"""Files that are written whole or not at all: a reader meanwhile has the old or the new one. A leaf.

The new file lies beside the old one until it is complete, as ``.NAME.RANDOM``, and takes its place in one step
(rename(2)): so the mode and the owner of the old one are gone, and who has it open keeps it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final

_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""What a file system without hard links says."""


def write(
    path: str | os.PathLike[str],
    data: bytes,
    mode: int = 0o600,
    *,
    durable: bool = False,
    replace: bool = True,
) -> None:
    """Write a file.

    Args:
        path: its folder is there.
        data: all of it.
        mode: of the file, whatever the umask is.
        durable: it is on the disk when this returns (fsync(2)); else the machine's crash may cost its content.
        replace: in the place of a file that is there; else that one is kept.

    Raises:
        FileExistsError: a file is kept. OSError: it cannot be written; nothing has changed.
    """
    folder, name = os.path.split(os.path.abspath(path))
    fresh = os.path.join(folder, f".{name[:200]}.{os.urandom(8).hex()}")
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if replace:
            os.replace(fresh, path)
        else:
            _rename_to_new(fresh, path)
        if durable:
            sync_folder(folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise


def sync_folder(folder: str) -> None:
    """Have the names of a folder on the disk, too: of files that were made, renamed or removed in it.

    Raises:
        OSError: it is not there, or cannot be written.
    """
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _rename_to_new(fresh: str, path: str | os.PathLike[str]) -> None:
    """Rename, unless there is a file at ``path``.

    Raises:
        FileExistsError: there is.
    """
    try:
        os.link(fresh, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from error
        os.replace(fresh, path)
    else:
        os.unlink(fresh)
