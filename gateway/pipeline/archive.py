"""The classes that Spark loads, kept so that the next JVM has them at once (AppCDS of Java): that is half of its start.

One archive for each Java and each set of jars, some 180 MB, in ``$XDG_CACHE_HOME/headgate``, for the user alone, since
whoever writes it decides what runs. The first JVM that finds none writes it as it ends (``ending``); it counts once
that JVM has ended well. A JVM that cannot use one goes on without.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker import home, trust
from broker.errors import ConfigError

END_S: Final = 300.0
"""How long the JVM that writes one may take to end."""
UNUSED_S: Final = 30 * 86400
"""An archive that nobody has used for so long is deleted when another one is made."""
AGAIN_S: Final = 86400
"""When the next JVM tries, after one that did not end well."""
_FRESH: Final = re.compile(r"-XX:ArchiveClassesAtExit=(\S+)")


def name_of(java: str, jars: Path) -> str:
    """Of the archive that fits a Java, by what ``java -version`` says, and jars; another one would be refused."""
    known = hashlib.sha256(java.encode())
    known.update(repr([os.environ.get(name) for name in ("SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH")]).encode())
    for jar in sorted(jars.glob("*.jar")):
        found = jar.stat()
        known.update(f"{jar} {found.st_size} {found.st_mtime_ns}\n".encode())
    return f"spark-{known.hexdigest()[:16]}.jsa"


def options(java: str, jars: Path, *, make: bool) -> str:
    """What a JVM is started with: to use the archive, or else, if it is to ``make`` one, to write it at its end."""
    folder = home.cache_folder()
    try:
        home.make(folder)
    except (ConfigError, OSError):
        return ""
    path = os.path.join(folder, name_of(java, jars))
    if any(each in path for each in " \t\"'\\") or trust.folder_objection(folder):
        return ""
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return ""
        if found.st_size:
            os.utime(path)
            return f"-XX:SharedArchiveFile={path}"
        make = make and time.time() - found.st_mtime > AGAIN_S
    return f"-XX:ArchiveClassesAtExit={path}.{os.getpid()}" if make else ""


def written_by(settings: str) -> str:
    """Where a JVM with these options writes an archive as it ends; "" if it does not."""
    found = _FRESH.search(settings)
    return found[1] if found else ""


@contextlib.contextmanager
def ending(fresh: str) -> Iterator[list[int]]:
    """While a JVM ends that writes ``fresh``: it counts if the block puts its exit code, 0, into the list. With another
    code an empty file stands for it, so that not every JVM tries in vain.
    """
    codes: list[int] = []
    try:
        yield codes
        if codes:
            path = Path(fresh.rpartition(".")[0])
            if codes != [0] or not os.path.isfile(fresh):
                Path(fresh).write_bytes(b"")
            os.chmod(fresh, 0o600)
            os.replace(fresh, path)
            _tidy(path)
    except OSError:  # the disk is full or away: the next one tries again
        pass
    finally:
        with contextlib.suppress(OSError):
            os.unlink(fresh)


def _tidy(kept: Path) -> None:
    """Delete what nobody has used for long, and what nobody waited for."""
    for pattern, most_s in (("spark-*.jsa", UNUSED_S), ("spark-*.jsa.*", AGAIN_S)):
        for other in kept.parent.glob(pattern):
            if other != kept and time.time() - other.stat().st_mtime > most_s:
                other.unlink(missing_ok=True)
