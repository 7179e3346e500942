"""The pages that people read, and the blocks of code in them: tests execute what they tell people to type."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
READ = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "examples" not in path.parts),
]
"""What is written for people who begin; pages beside the code have tests of their own."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path: Path) -> list[tuple[str, str]]:
    """Language and text of each block of a page, in order."""
    return BLOCK.findall(path.read_text())


class Page:
    """One page.

    Args:
        path: below ``docs``.
    """

    def __init__(self, path: str) -> None:
        self.path = ROOT / "docs" / path
        self.blocks = blocks(self.path)

    def block(self, kind: str, holding: str) -> str:
        """The one block of this language with these characters in it."""
        found = [text for language, text in self.blocks if language == kind and holding in text]
        assert len(found) == 1, (self.path, kind, holding)
        return found[0]
