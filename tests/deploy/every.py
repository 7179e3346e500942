"""A check of one thing becomes a test of all of them."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any


def every(entries: Callable[[], Iterable[Any]]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Decorate a check whose arguments are attributes of an entry; the test says of each wrong entry what is wrong.

    Args:
        entries: gives them; each has a ``name``.
    """

    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        wanted = list(inspect.signature(check).parameters)

        def test() -> None:
            wrong = {}
            for entry in entries():
                try:
                    check(*(getattr(entry, each) for each in wanted))
                except Exception as error:
                    wrong[entry.name] = f"{type(error).__name__}: {error}"
            assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate
