"""The instructions of a Dockerfile, by stage: enough to compare what it says with other files."""

import json
import re
from dataclasses import dataclass, field

from tests.deploy.paths import ROOT

PATH = ROOT / "Dockerfile"


@dataclass
class Stage:
    """From one FROM to the next.

    Attributes:
        name: behind AS; "" without. base: what FROM names, with ARGs filled in.
        lines: (instruction, its words), continuation lines joined.
    """

    name: str
    base: str
    lines: list[tuple[str, str]] = field(default_factory=list)


def stages(text: str | None = None) -> list[Stage]:
    """All stages, the default one last."""
    found: list[Stage] = []
    arguments: dict[str, str] = {}
    for instruction, words in _instructions(PATH.read_text() if text is None else text):
        if instruction == "ARG" and not found:
            name, _, value = words.partition("=")
            arguments[name] = value.strip("\"'")
        elif instruction == "FROM":
            words = re.sub(r"\$\{?(\w+)\}?", lambda match: arguments[match[1]], words)
            base, _, name = re.sub(r"--platform=\S+ ", "", words).partition(" ")
            found.append(Stage(re.sub(r"(?i)^as ", "", name.strip()), base))
        else:
            found[-1].lines.append((instruction, words))
    return found


def _instructions(text: str) -> list[tuple[str, str]]:
    kept = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", kept)
    pairs = (line.strip().partition(" ") for line in joined.splitlines() if line.strip())
    return [(instruction.upper(), words.strip()) for instruction, _, words in pairs]


def effective(stage: str, every: list[Stage] | None = None) -> list[tuple[str, str]]:
    """The instructions that shape the image of ``stage``: its own behind those of the stages it is made from."""
    every = stages() if every is None else every
    by_name = {each.name: each for each in every}
    this = by_name[stage]
    before = effective(this.base, every) if this.base in by_name else []
    return before + this.lines


def last(stage: str, instruction: str) -> str:
    """The words of the last such instruction.

    Raises:
        KeyError: there is none.
    """
    for name, words in reversed(effective(stage)):
        if name == instruction:
            return words
    raise KeyError(instruction)


def environment(stage: str) -> dict[str, str]:
    """What ENV sets."""
    found: dict[str, str] = {}
    for name, words in effective(stage):
        if name == "ENV":
            found |= dict(re.findall(r'(\w+)="?([^"\s]*)"?', words))
    return found


def exec_form(words: str) -> list[str]:
    """The words of an instruction in exec form; options such as ``--interval=10s`` and CMD in front are left out.

    Raises:
        ValueError: it is in shell form.
    """
    found = json.loads(re.sub(r"^(--\S+\s+)*(CMD\s+)?", "", words))
    if not isinstance(found, list):
        raise ValueError(words)
    return found
