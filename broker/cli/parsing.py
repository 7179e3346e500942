"""Options of verbs that become servers: argparse, which costs them little memory, in the look of the other verbs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from broker.cli.exits import UsageError, report


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """As typer has it: ``-n, --size N``, a short usage, as wide as the terminal."""

    def __init__(self, prog: str) -> None:
        from broker.cli import pages  # late, as in `main`

        super().__init__(prog, max_help_position=28, width=pages.width())
        self._fit = pages.fit

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return self._fit(text, width)

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None = None,
    ) -> None:
        """The first line of the page."""
        super().add_usage(usage, actions, groups, "Usage: ")

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


class Parser(argparse.ArgumentParser):
    """The options of one verb.

    Args:
        verb: its words behind ``headgate``. description: one sentence.
        epilog: what follows the options: examples, exit codes.
        usage: what follows the verb. program: another command than ``headgate``.
    """

    def __init__(
        self,
        verb: str,
        description: str,
        epilog: str,
        *,
        usage: str = "[OPTIONS]",
        program: str = "headgate",
        allow_abbrev: bool = True,
    ) -> None:
        prog = f"{program} {verb}".rstrip()
        super().__init__(
            prog=prog,
            usage=f"%(prog)s {usage}",
            description=description,
            epilog=epilog,
            formatter_class=_Formatter,
            allow_abbrev=allow_abbrev,
            add_help=False,
        )
        self._optionals.title = "Options"
        self._positionals.title = "Arguments"
        self.add_argument("-h", "--help", action="help", help="Show this message and exit.")

    _as_json = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does; a wrong word beside ``--json`` is told as JSON, whether or not the verb has that option."""
        self._as_json = "--json" in (sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def add_set(self, metavar: str, what: str, *names: str) -> None:
        """The option ``names`` (``-s``, ``--set``), given once for each setting: ``set`` is a list."""
        again = f"{what}; may be given again."
        names = names or ("-s", "--set")
        self.add_argument(*names, action="append", default=[], metavar=metavar, help=again)

    def error(self, message: str) -> NoReturn:
        """One line, and the exit code of a wrong command line."""
        program, _, verb = self.prog.partition(" ")
        wrong = UsageError(f"{message}; see {self.prog} --help")
        raise SystemExit(report(wrong, verb, as_json=self._as_json, program=program))
