"""Tables: one case that goes through all entries of a table and names every entry that fails.

`pytest.mark.parametrize` is for cases that somebody reads by name, and for those that need fixtures of their own: the
entries of a table share what their test takes from fixtures.
"""

import inspect
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any

import pytest

Entries = Iterable[Any]
Ids = Sequence[str] | Callable[[Any], object] | None
Test = Callable[..., Any]

SHOWN = 60
"""The characters of a value that the name of its entry shows."""

SAID = 300
"""The characters of an error that are shown for each entry; of the first one everything is."""

Param = type(pytest.param())


def for_each(
    names: str | Sequence[str], entries: Entries | Callable[[], Entries], ids: Ids = None
) -> Callable[[Test], Test]:
    """Run a test for each entry; the arguments are those of `pytest.mark.parametrize`.

    `entries` may be a function: it is called when the test runs, so that collecting computes nothing.
    """
    words = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

    def attempts() -> Iterator[tuple[dict[str, Any], AbstractContextManager[None]]]:
        """Give each entry, and what notes its failure; raise all failures behind the last one."""
        table = list(entries() if callable(entries) else entries)
        assert table, "a table without entries shows nothing"
        wrong: dict[str, BaseException] = {}
        for number, entry in enumerate(table):
            values = entry.values if isinstance(entry, Param) else (entry,) if len(words) == 1 else entry
            noted = note(wrong, f"{number}: {name(entry, values, number, ids)}")
            yield dict(zip(words, values, strict=True)), noted
        if wrong:
            lines = [f"{len(wrong)} of {len(table)} entries fail"]
            lines += [f"  {entry}: {said(error)}" for entry, error in wrong.items()]
            raise AssertionError("\n".join(lines)) from next(iter(wrong.values()))

    def decorate(test: Test) -> Test:
        @wraps(test)
        def every(*args: Any, **kwargs: Any) -> None:
            __tracebackhide__ = True
            for values, noted in attempts():
                with noted:
                    test(*args, **kwargs, **values)

        @wraps(test)
        async def every_in_turn(*args: Any, **kwargs: Any) -> None:
            __tracebackhide__ = True
            for values, noted in attempts():
                with noted:
                    await test(*args, **kwargs, **values)

        whole = every_in_turn if inspect.iscoroutinefunction(test) else every
        signature = inspect.signature(test)
        fixtures = [argument for argument in signature.parameters.values() if argument.name not in words]
        whole.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return whole

    return decorate


@contextmanager
def note(wrong: dict[str, BaseException], entry: str) -> Iterator[None]:
    """Keep the failure of an entry, so that the others are run."""
    try:
        yield
    except pytest.skip.Exception as error:
        if wrong:  # it ends the whole case, and would hide them
            lines = [f"{entry} is skipped ({error}) after failures", *(f"  {each}" for each in wrong)]
            raise AssertionError("\n".join(lines)) from next(iter(wrong.values()))
        raise
    except (Exception, pytest.fail.Exception) as error:
        if str(error).startswith("Timeout"):
            raise  # the clock of the whole case, which goes off once: whatever hangs next would stay
        wrong[entry] = error


def name(entry: Any, values: Sequence[Any], number: int, ids: Ids) -> str:
    """Return the id that an entry was given, or else its values."""
    if isinstance(entry, Param) and entry.id:
        return str(entry.id)
    if ids is not None and not callable(ids):
        return ids[number]
    given = [ids(value) if ids is not None else None for value in values]
    return ", ".join(
        str(repr(value)[:SHOWN] if i is None else i) for value, i in zip(values, given, strict=True)
    )


def said(error: BaseException) -> str:
    """Return what went wrong and where, in one line."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:SAID]
    return f"{type(error).__name__}: {text} ({os.path.relpath(where.filename)}:{where.lineno})"
