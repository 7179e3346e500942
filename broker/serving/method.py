"""One method of a service: its handler, what kind of function that is, and who may call it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from broker.identity import Role


class Method:
    """One method of a service.

    Args:
        handler: a plain function, ``async def`` or an async generator function of one Request.
        allow: role bits that may call it besides OWNER, who always may; 0 is owner only.
        streaming: a request without flag STREAMING is refused; always so for a generator.

    Attributes:
        asynchronous: runs as a task. generates: an async generator, so each item is a response.
    """

    __slots__ = ("allow", "asynchronous", "generates", "handler", "streaming")

    def __init__(self, handler: Callable[..., Any], allow: int, *, streaming: bool = False) -> None:
        self.handler = handler
        self.allow = int(allow | Role.OWNER)  # a plain int: IntFlag arithmetic costs 2 µs a request
        self.generates = inspect.isasyncgenfunction(handler)
        self.streaming = streaming or self.generates
        self.asynchronous = (
            self.generates
            or inspect.iscoroutinefunction(handler)
            or inspect.iscoroutinefunction(type(handler).__call__)  # an object that is called
        )
