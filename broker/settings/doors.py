"""Listeners at which nobody is ever let in, as far as settings tell: they are no fault, and hardly what is meant."""

from __future__ import annotations

from collections.abc import Iterator

from broker.schemes import capabilities_of
from broker.settings.schema import Settings


def closed_doors(settings: Settings) -> Iterator[str]:
    """A line for each of ``[[listen]]`` that nobody can come in by."""
    for number, entry in enumerate(settings.listen):
        can, where = capabilities_of(entry.uri), f"listen[{number}] {entry.uri}: nobody is ever let in"
        if can.proves_keys(settings.tree.curve_cert is not None):
            if not settings.clients:
                yield f"{where}: it wants keys, and there are no [[clients]]"
        elif not {"uid", "user"} & {*can.proves}:
            yield f"{where}: plaintext does not say who a peer is; set tree.curve_cert and list keys in [[clients]]"
