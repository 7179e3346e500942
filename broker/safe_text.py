"""What somebody else's code has left, as text that can be written: of anything, and never with an exception (pure).

An exception whose ``__str__`` fails, a name of a file that is no UTF-8, a path where a text belongs: code that logs
such a thing takes its text from here, so that logging cannot fail.
"""

from __future__ import annotations

from typing import Any


def text(value: object) -> str:
    r"""``value`` as text that UTF-8 can say: half characters, and bytes that are none, are written as escapes.

    >>> text("caf\udce9"), text(b"caf\xe9"), text(None)
    ('caf\\udce9', 'caf\\xe9', 'None')
    """
    if type(value) is str and value.isascii():
        return value
    try:
        said = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
        return said.encode("utf-8", "backslashreplace").decode()
    except BaseException as error:  # it is not ours: it may raise anything
        return f"({kind(value)}, whose text cannot be read: {kind(error)})"


def one_line(said: str) -> str:
    r"""``said`` on one line, whatever a peer put into it: no control character reaches a terminal, or forges a line.

    >>> one_line("full\x1b[2J\n7 demo.alarm"), one_line("plain")
    ('full\\x1b[2J\\n7 demo.alarm', 'plain')
    """
    if said.isprintable():
        return said
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in said)


def visible(said: str) -> str:
    r"""``said`` with its lines and tabs, and no other control characters.

    >>> visible("one\n\ttwo\x9b2J")
    'one\n\ttwo\\x9b2J'
    """
    if said.isprintable():
        return said
    return "".join(each if each in "\n\t" else one_line(each) for each in said)


def texts(said: Any) -> list[str]:
    """A list of texts, of whatever was put in place of one; [] for None and "".

    >>> texts(("a", 1)), texts("one"), texts(None), texts(ValueError("no"))
    (['a', '1'], ['one'], [], ['no'])
    """
    if said is None or isinstance(said, str | bytes):
        return [text(said)] if said else []
    try:
        return [text(each) for each in said]
    except BaseException:  # nothing that can be gone through, or its going through fails
        return [text(said)]


def about(error: BaseException) -> str:
    """The kind of ``error`` and what it says.

    >>> about(ValueError("no")), about(KeyError())
    ('ValueError: no', 'KeyError')
    """
    said = text(error)
    return f"{kind(error)}: {said}" if said else kind(error)


def kind(value: object) -> str:
    """The name of its class."""
    try:
        return str(type(value).__name__)
    except BaseException:  # a class of classes may say anything, too
        return "something"
