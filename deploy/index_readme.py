"""The README as a package index shows it: what it links to in the repository becomes a link to the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

IMAGE = re.compile(r"(?<=\()(?![a-z]+:)(?=[^()\s]+\.(?:svg|png)\))")
LINK = re.compile(r"(?<=\]\()(?![a-z]+:)")


def absolute(text: str, source: str) -> str:
    """``text`` with relative links and pictures below the address ``source`` of the repository.

    >>> absolute("[a](deploy/a.md#b), [c](#d), ![p](p.svg), [e](https://e)", "https://host/us/it")
    '[a](https://host/us/it/blob/main/deploy/a.md#b), [c](https://host/us/it/blob/main/README.md#d), \
![p](https://host/us/it/raw/main/p.svg), [e](https://e)'
    """
    text = IMAGE.sub(f"{source}/raw/main/", text)
    text = text.replace("](#", "](README.md#")
    return LINK.sub(f"{source}/blob/main/", text)


class CustomMetadataHook(MetadataHookInterface):
    """Sets ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """See hatchling."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = absolute(text, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
