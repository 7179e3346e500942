"""Reading JSON that others wrote; no input or output, no clock."""

from __future__ import annotations

from typing import Any

import msgspec


def decoded(body: bytes | str) -> Any:
    """The value that ``body`` is the JSON of.

    Raises:
        ValueError: it is none, not UTF-8, has a number out of range, or is nested too deeply to be read.

    >>> decoded(b'{"a": [1]}')
    {'a': [1]}
    """
    try:
        return msgspec.json.decode(body)
    except RecursionError:
        raise ValueError(f"saw {len(body)} bytes of JSON, nested too deeply") from None
