"""Jinja2 in a sandbox: templates see their variables and nothing of this process.

An unknown variable renders as nothing, and templates cannot include others. The limits are against a loop that writes
for ever, and a text multiplied by a number from somewhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from broker.errors import ConfigError

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment

RENDERED_CHARS_MAX: Final = 16 << 20
"""What one file may render to: a thousand devices of 16 KiB each."""
OPERAND_MAX: Final = 1 << 20
"""Of a repetition or a power, before it is computed."""
SHOWN_CHARS: Final = 200
"""Of what Jinja2 says is wrong."""
_NAME: Final = "<template>"


def render(text: str, name: str, variables: Mapping[str, Any]) -> str:
    """Return ``text`` rendered with ``variables``; as it came when it has no markup.

    Raises:
        ConfigError: ``name``, line and what is wrong.
    """
    if "{%" not in text and "{{" not in text and "{#" not in text:
        return text
    from jinja2 import TemplateSyntaxError

    try:
        pieces: list[str] = []
        size = 0
        for piece in _jinja().from_string(text).generate(dict(variables)):
            size += len(piece)
            if size > RENDERED_CHARS_MAX:
                raise ConfigError(f"{name}: renders to more than {RENDERED_CHARS_MAX} characters")
            pieces.append(piece)
    except ConfigError:
        raise
    except TemplateSyntaxError as error:
        raise ConfigError(f"{name}:{error.lineno}: {error.message}") from error
    except Exception as error:
        line = _line_of(sys.exc_info()[2])
        raise ConfigError(
            f"{name}:{line}: rendering: {type(error).__name__}: {str(error)[:SHOWN_CHARS]}"
        ) from error
    return "".join(pieces)


def _line_of(trace: TracebackType | None) -> int:
    """Where in the template: Jinja2 puts a frame of that name into the traceback."""
    line = 1
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


@cache
def _jinja() -> SandboxedEnvironment:
    from jinja2.exceptions import SecurityError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Confined(ImmutableSandboxedEnvironment):
        """Refuses products and powers that would fill the memory."""

        intercepted_binops = frozenset(("*", "**"))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            sized = [len(each) for each in (left, right) if isinstance(each, (str, bytes, list, tuple))]
            numbers = [abs(each) for each in (left, right) if isinstance(each, (int, float))]
            large = sized and numbers and sized[0] * numbers[0] > OPERAND_MAX
            if large or (operator == "**" and max(numbers, default=0) > 1024):
                raise SecurityError(f"{operator} makes more than {OPERAND_MAX} elements or digits")
            return super().call_binop(context, operator, left, right)

    return Confined()
