"""Commands that take the options of the connection without spelling them: for verbs that have many commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import Parameter, Signature, signature
from typing import Any, Final, get_type_hints

from broker.cli import options
from broker.cli.nfp import session as shared
from broker.cli.nfp.session import Session
from broker.nfp.client import NfpClient

_OPTIONS: Final[dict[str, tuple[Any, Any]]] = {
    "brokers": (shared.Brokers, None),
    "server_key": (shared.ServerKey, None),
    "key": (shared.Key, None),
    "name": (shared.Name, None),
    "base_dir": (shared.BaseDir, None),
    "plain": (shared.Plain, False),
    "insecure": (shared.Insecure, False),
    "as_json": (options.AsJson, False),
}
"""Parameter of ``Session`` -> its option and default."""
_OURS: Final = 2
"""The client and the screen come first, the options of the command itself behind them."""

Work = Callable[..., Awaitable[int | None]]


def connected(verb: str) -> Callable[[Work], Callable[..., int]]:
    """Make a command of ``async def work(client, screen, *, ...)``: connect, do it, leave.

    Its keyword parameters are options of the command, to which those of the connection and ``--json`` are added; its
    docstring is the help. It returns an exit code, None for 0.
    """

    def made(work: Work) -> Callable[..., int]:
        def command(**given: Any) -> int:
            session = Session(verb, **{name: given.pop(name) for name in _OPTIONS})

            async def inside(client: NfpClient) -> int | None:
                return await work(client, session.screen, **given)

            return session.run(inside)

        hints = get_type_hints(work, include_extras=True)
        own = list(signature(work).parameters.values())[_OURS:]
        parameters = [each.replace(annotation=hints[each.name]) for each in own] + [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=option)
            for name, (option, default) in _OPTIONS.items()
        ]
        command.__doc__ = work.__doc__
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return command

    return made
