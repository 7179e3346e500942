"""Options that client verbs share, and the way from typer to an exit code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, get_type_hints

import typer

from broker.cli import pages
from broker.cli.exits import INTERRUPTED, OK, USAGE, UsageError, report
from broker.errors import print_error
from broker.wire.message import NODEID_ANY

Uri = Annotated[
    str | None,
    typer.Option(
        "--uri",
        "-u",
        metavar="URI",
        help="The broker: local:///PATH, tcp://HOST:PORT, ipc://PATH. "
        "Default: $HEADGATE_URI, $FLUX_URI, or the local socket of this user.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one value a line.")]
Timeout = Annotated[
    float,
    typer.Option("--timeout", min=0, metavar="SECONDS", help="Wait this long for each answer; 0: no limit."),
]
Rank = Annotated[
    int | None,
    typer.Option(
        "--rank", "-r", min=0, max=NODEID_ANY - 2, metavar="RANK", help="Ask the broker of this rank."
    ),
]
All = Annotated[bool, typer.Option("--all", "-a", help="Ask every broker of the instance.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")]
Every = Annotated[
    float, typer.Option("--interval", "-i", min=0.1, metavar="SECONDS", help="From one look to the next.")
]

_HELP = ("--help", "-h")
ANSWER_S = 30.0
"""Default of ``--timeout`` where an answer is expected at once."""


def nodeid(rank: int | None) -> int:
    """What ``--rank`` means in a request."""
    return NODEID_ANY if rank is None else rank


def run(verb: str, command: Callable[..., Any], examples: Sequence[str], argv: Sequence[str]) -> int:
    """Parse ``argv`` for the function ``command`` and call it; returns its exit code.

    ``--help`` shows the function's docstring and ``examples``. A wrong option is one line and exit code 2.
    """
    app = application(verb)
    app.command(verb, help=command.__doc__)(command)
    return run_app(verb, app, examples, argv)


def with_shared(
    command: Callable[..., int], work: Callable[..., Any], given: int, shared: Mapping[str, tuple[Any, Any]]
) -> Callable[..., int]:
    """``command(**options)`` with the help and the options of ``work``, and with those of ``shared`` behind them.

    Args:
        command: is called with all of these options.
        work: what it calls.
        given: how many parameters of ``work`` stand in front and are no options.
        shared: name -> option and default; ``Parameter.empty``: it has to be given.
    """
    hints = get_type_hints(work, include_extras=True)
    own = list(signature(work).parameters.values())[given:]
    parameters = [
        *(each.replace(annotation=hints[each.name], kind=Parameter.KEYWORD_ONLY) for each in own),
        *(
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=option)
            for name, (option, default) in shared.items()
        ),
    ]
    command.__doc__ = work.__doc__
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    return command


class _Found(Exception):
    """The command of a verb."""


_looking = False


def command_of(main: Callable[[list[str]], Any]) -> Any:
    """The click command of a verb, by its entry point, which is not run; it has ``params`` and perhaps ``commands``."""
    global _looking
    _looking = True
    try:
        main(["--help"])
    except _Found as found:
        return found.args[0]
    finally:
        _looking = False
    raise LookupError(f"{main.__module__}: its options are not typer's")


def application(verb: str) -> typer.Typer:
    """A typer application in the manner of this command line."""
    return typer.Typer(
        name=f"headgate {verb}",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # rich would take [[users]] for markup of its own
        context_settings={"help_option_names": list(_HELP), "max_content_width": pages.WIDTH},
    )


def run_app(
    verb: str, app: typer.Typer, examples: Sequence[str], argv: Sequence[str], usual: str = ""
) -> int:
    """As ``run``, for an application with commands of its own.

    Without a word it is ``usual``, if there is one, else help, and wrong usage, as for ``headgate`` itself.
    """
    if _looking:
        raise _Found(typer.main.get_command(app))
    if usual and (not argv or (argv[0].startswith("-") and argv[0] not in _HELP)):
        argv = [usual, *argv]
    bare = not argv and app.registered_callback is not None  # one has commands
    if bare:
        argv = ["--help"]
    try:
        code = app(list(argv), prog_name=f"headgate {verb}", standalone_mode=False)
    except typer.Abort:
        return INTERRUPTED
    except SystemExit as left:
        if isinstance(
            left.__context__, BrokenPipeError
        ):  # typer makes exit code 1 of it; `main` knows better
            raise left.__context__ from None
        raise
    except Exception as error:
        # typer brings its own copy of click's errors, older ones click itself: known by what they can do
        show, code = getattr(error, "format_message", None), getattr(error, "exit_code", None)
        if show is None or code is None:
            raise
        if "--json" in argv:
            return report(UsageError(show()), as_json=True)
        print_error(f"headgate {verb}: {show().rstrip('.')}; see headgate {verb} --help")
    if any(word in _HELP for word in argv):
        text = "\n".join(["", "Examples:", *(f"  {example}" for example in examples)])
        print(pages.fit(text, pages.width()))
    return USAGE if bare else code if isinstance(code, int) else OK
