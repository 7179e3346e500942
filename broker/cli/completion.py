"""``headgate completion``: what a shell offers while a command is typed: verbs and options.

The script that ``headgate completion SHELL`` prints asks ``headgate completion words WORD...`` at each tab; that prints
a candidate and what it is, a tab between them, a line each. Verbs of families are known by their tables, options by the
verb's own parser: nothing is listed twice. The broker is asked what ``rpc`` can call. Where there is no candidate the
shell offers files.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from broker.cli import options, verbs
from broker.cli.exits import OK, UsageError
from broker.errors import HeadgateError

_BASH: Final = """\
_headgate() {
    local IFS=$'\\n'
    COMPREPLY=($(headgate completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f1))
    [[ ${COMPREPLY[0]} != *. ]] || compopt -o nospace 2>/dev/null
}
complete -o bashdefault -o default -F _headgate headgate
"""
_ZSH: Final = """\
#compdef headgate
_headgate() {
    local -a found
    local line
    for line in "${(@f)$(headgate completion words "${words[@]:1:$((CURRENT - 1))}" 2>/dev/null)}"; do
        [[ -n $line ]] && found+=("${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}")
    done
    if (( ${#found} )); then _describe headgate found; else _files; fi
}
compdef _headgate headgate
"""
_FISH: Final = """\
function __headgate
    set --local typed (commandline --tokenize --cut-at-cursor --current-process)
    set --local begun (commandline --current-token --cut-at-cursor)
    headgate completion words $typed[2..] "$begun" 2>/dev/null | string match --regex '.+'
    or __fish_complete_path "$begun"
end
complete --command headgate --no-files --arguments '(__headgate)'
"""
SCRIPTS: Final[Mapping[str, str]] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
USAGE: Final = f"""\
Usage: headgate completion {"|".join(SCRIPTS)}

Print the completion of this command for a shell.

Examples:
  . <(headgate completion bash)                                       in ~/.bashrc
  . <(headgate completion zsh)                                        in ~/.zshrc, behind compinit
  headgate completion fish > ~/.config/fish/completions/headgate.fish
"""
PATIENCE_S: Final = 1.0
"""Somebody waits for the shell: what has not come by then is not offered."""
Candidates = Iterator[tuple[str, str]]
"""A word, and what it is."""


def candidates(words: Sequence[str]) -> Candidates:
    """What the last of ``words`` may become; the others stand before it."""
    *before, begun = words or [""]
    for word, what in _all(before, begun):
        if word.startswith(begun):
            yield word, " ".join(what.split())


def _all(before: Sequence[str], begun: str) -> Candidates:
    if not before:
        yield from verbs.BUILT_IN.items()
        return
    verb, *rest = before
    if verb not in verbs.BUILT_IN:
        return
    module = import_module(verbs.module_of(verb))
    if module.main is main:
        yield from ((shell, "its script") for shell in SCRIPTS)
        return
    inner: Mapping[str, str] | None = getattr(module, "VERBS", None)
    if inner is not None:
        if not rest:
            yield from inner.items()
            return
        if rest[0] not in inner:
            return
        module = import_module(f"{module.__name__}.{rest[0]}")
        rest = rest[1:]
    yield from _of_verb(module, rest, begun)


def _of_verb(module: Any, before: Sequence[str], begun: str) -> Candidates:
    if hasattr(module, "arguments"):
        yield from _of_parser(module.arguments(), begun)
        return
    command = options.command_of(module.main)
    for word in before:
        command = getattr(command, "commands", {}).get(word, command)
    yield from ((name, each.help or "") for name, each in getattr(command, "commands", {}).items())
    if begun.startswith("-"):
        for each in command.params:
            yield from ((name, getattr(each, "help", "") or "") for name in each.opts if name.startswith("-"))
        yield "--help", "Show this message and exit."
    elif getattr(module, "OFFERS_TOPICS", False) and _expects_argument(command, before):
        yield from _topics(before)


def _expects_argument(command: Any, before: Sequence[str]) -> bool:
    """The next word is the first that is neither an option nor the value of one."""
    valued = {name for each in command.params if not getattr(each, "is_flag", False) for name in each.opts}
    last = ""
    for word in before:
        if not word.startswith("-") and last not in valued:
            return False
        last = "" if last in valued else word
    return last not in valued


def _of_parser(parser: argparse.ArgumentParser, begun: str) -> Candidates:
    if begun.startswith("-"):
        for action in parser._actions:
            yield from ((name, action.help or "") for name in action.option_strings)


def _topics(before: Sequence[str]) -> list[tuple[str, str]]:
    """What ``headgate rpc`` can call: services of clients anywhere, and methods that were called before.

    Args:
        before: the words of the verb so far, of which ``--uri`` counts.
    """
    import asyncio  # late, with all that a client needs: at nearly every tab nobody asks a broker

    from broker.cli import address

    given = dict(itertools.pairwise(before))
    try:
        return asyncio.run(_ask_for_topics(address.choose(given.get("--uri") or given.get("-u"))))
    except (HeadgateError, TimeoutError, OSError):
        return []


async def _ask_for_topics(uri: str) -> list[tuple[str, str]]:
    import asyncio

    from broker.cli import address
    from broker.cli.tree import providers
    from broker.client import connect

    options = address.link_options(uri, connect_timeout_s=PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S), connect(uri, options=options, retries=0) as handle:
        methods = (await handle.rpc("broker.calls")).json()["methods"]
        known = await providers(handle)
    services = known["services"] if known else {}
    found = {f"{name}.": f"at rank {', '.join(map(str, ranks))}" for name, ranks in services.items()}
    return sorted(
        {**found, **{name: f"called {each['calls']} times" for name, each in methods.items()}}.items()
    )


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    if argv[:1] == ["words"]:
        print("".join(f"{word}\t{what}\n" for word, what in candidates(argv[1:])), end="")
    elif argv in (["--help"], ["-h"]):
        print(USAGE, end="")
    elif len(argv) == 1 and argv[0] in SCRIPTS:
        print(SCRIPTS[argv[0]], end="")
    else:
        raise UsageError(f"saw {' '.join(argv)!r}, expected one of {', '.join(SCRIPTS)}")
    return OK
