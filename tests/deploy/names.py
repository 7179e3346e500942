"""Names: no public class twice in a package unless the glossary says so, and what the glossary names is there."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from tests.deploy import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
WORDS_MAX = 60


def packages() -> Iterator[Path]:
    """``broker``, ``gateway`` and each package right below them."""
    for top in (ROOT / "broker", ROOT / "gateway"):
        yield top
        yield from sorted(path.parent for path in top.glob("*/__init__.py"))


def classes(package: Path) -> dict[str, set[str]]:
    """Public class -> the files that define it; of ``broker`` and ``gateway`` themselves without their packages."""
    found: dict[str, set[str]] = defaultdict(set)
    files = package.glob("*.py") if package.parent == ROOT else package.rglob("*.py")
    for path in files:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(str(path.relative_to(ROOT)))
    return found


def twice() -> list[str]:
    """A line for each public class that a package has twice and the glossary does not allow."""
    allowed = {
        (package, name)
        for names, package in re.findall(r"^\| (`[^|]+`) \| `([^|]+)` \|", GLOSSARY.read_text(), re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    return [
        f"{name} is defined in {', '.join(sorted(files))}"
        for package in packages()
        for name, files in classes(package).items()
        if len(files) > 1 and (str(package.relative_to(ROOT)), name) not in allowed
    ]


def glossary() -> list[str]:
    """A line for each thing that the glossary names and that is not there, and one where it has grown too long."""
    words = re.findall(
        r"^\| (?!word |name |---|`)([^|]+) \|.*\| `([\w.]+)` \|$", GLOSSARY.read_text(), re.MULTILINE
    )
    wrong = [f"{place} ({word}) is not there" for word, place in words if not _exists(place)]
    if not 0 < len(words) <= WORDS_MAX:
        wrong.append(f"{len(words)} words, expected {WORDS_MAX} at most")
    return wrong


def _exists(place: str) -> bool:
    if place.startswith("Message."):
        place = f"broker.wire.message.{place}"
    names = place.split(".")
    for at in range(len(names), 0, -1):
        try:
            found: object = import_module(".".join(names[:at]))
        except ModuleNotFoundError:
            continue
        return all((found := getattr(found, name, None)) is not None for name in names[at:])
    return False
