"""systemd's unit files as data, and a root directory in which systemd-analyze can look at them."""

import re
import shutil
from pathlib import Path

from tests.deploy.paths import DEPLOY

FOLDER = DEPLOY / "systemd"
SYSTEM = Path("/usr/lib/systemd/system")
"""Units of the machine's own systemd: ours name its targets."""
_TIMES = {"": 1.0, "s": 1.0, "sec": 1.0, "ms": 0.001, "min": 60.0, "h": 3600.0}

Unit = dict[str, dict[str, list[str]]]
"""Section -> key -> its values in the order of the file."""


def names() -> list[str]:
    """All units, templates with an ``@`` at their end."""
    return sorted(path.name for path in FOLDER.glob("*.service"))


def drop_ins(name: str) -> list[Path]:
    """The drop-ins that lie beside a unit."""
    return sorted((FOLDER / f"{name}.d").glob("*.conf"))


def instance(name: str) -> str:
    """A unit that can be started: a template's for the room ``call``."""
    return name.replace("@.", "@call.")


def read(name: str, *drop: Path) -> Unit:
    """One unit, with drop-ins on top: an empty value there takes away what stood before, as systemd does."""
    found: Unit = {}
    for path in (FOLDER / name, *drop):
        section: dict[str, list[str]] = {}
        for line in path.read_text().splitlines():
            if match := re.fullmatch(r"\[(\w+)\]", line):
                section = found.setdefault(match[1], {})
            elif line and not line.startswith(("#", ";")):
                key, _, value = line.partition("=")
                if value:
                    section.setdefault(key, []).append(value)
                else:
                    section[key] = [] if path != FOLDER / name else [""]
    return found


def one(unit: Unit, key: str, section: str = "Service") -> str:
    """The one value of a key."""
    (value,) = unit[section][key]
    return value


def seconds(text: str) -> float:
    """A time span such as ``30``, ``1min 30s``."""
    return sum(float(number) * _TIMES[name] for number, name in re.findall(r"([\d.]+)\s*([a-z]*)", text))


def root(folder: Path, name: str, *drop: Path) -> Path:
    """A root directory with the machine's own units, ours, and a program to start. Returns it."""
    own = folder / "etc/systemd/system"
    own.mkdir(parents=True)
    shutil.copy(FOLDER / name, own)
    for other in FOLDER.glob("*.service"):
        shutil.copy(other, own)
    for path in drop:
        place = own / f"{name}.d"
        place.mkdir(exist_ok=True)
        shutil.copy(path, place)
    shutil.copytree(SYSTEM, folder / "usr/lib/systemd/system", symlinks=True)
    programs = folder / "usr/bin"
    programs.mkdir()
    for program in ("headgate", "kill"):
        (programs / program).write_text("#!/bin/sh\n")
        (programs / program).chmod(0o755)
    return folder
