"""Commands that take the options of the connection without spelling them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import Parameter, Signature, signature
from typing import Any, Final, get_type_hints

from broker.cli import options
from broker.cli.nfp import session as shared
from broker.cli.nfp.session import NfpSession

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
"""Parameter of ``NfpSession`` -> its option and default."""
_STORE: Final[dict[str, tuple[Any, Any]]] = {"no_store": (shared.NoStore, False)}
"""The same, of verbs that submit jobs."""

Command = Callable[..., int]
Work = Callable[..., Awaitable[int | None]]


def with_session(verb: str, *, submits: bool = False) -> Callable[[Command], Command]:
    """Make a command of ``def work(session, ...) -> int``, which checks what it was given and runs the session.

    To its other parameters, the options of the command, those of the connection and ``--json`` are added; of a verb
    that ``submits`` jobs, which a named client keeps, ``--no-store``, too. Its docstring is the help.
    """

    def made(work: Command) -> Command:
        return _command(verb, submits, work, 1, lambda session, given: work(session, **given))

    return made


def connected(verb: str, *, submits: bool = False) -> Callable[[Work], Command]:
    """Make a command of ``async def work(client, screen, ...)``: connect, do it, leave.

    The rest is as with ``with_session``. Work returns an exit code, None for 0.
    """

    def made(work: Work) -> Command:
        def call(session: NfpSession, given: dict[str, Any]) -> int:
            return session.run(lambda client: work(client, session.screen, **given))

        return _command(verb, submits, work, 2, call)

    return made


def _command(
    verb: str,
    submits: bool,
    work: Callable[..., Any],
    before: int,
    call: Callable[[NfpSession, dict[str, Any]], int],
) -> Command:
    """What typer is given: the parameters of ``work`` behind the first ``before``, then those of the connection."""
    shared_options = _OPTIONS | (_STORE if submits else {})

    def command(**given: Any) -> int:
        session = NfpSession(verb, **{name: given.pop(name) for name in shared_options})
        return call(session, given)

    hints = get_type_hints(work, include_extras=True)
    own = list(signature(work).parameters.values())[before:]
    parameters = [each.replace(annotation=hints[each.name], kind=Parameter.KEYWORD_ONLY) for each in own] + [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=option)
        for name, (option, default) in shared_options.items()
    ]
    command.__doc__ = work.__doc__
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return command
