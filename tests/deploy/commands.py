"""Whether a command line that stands in a unit, a manifest, a compose file or a Dockerfile is one of ours."""

import argparse
import contextlib
import importlib
import io
import itertools

from broker.cli.verbs import BUILT_IN

MAKERS = {
    ("broker",): "broker.cli.broker",
    ("gateway",): "gateway.cli.gateway",
    ("health",): "broker.cli.health",
    ("nfp", "broker"): "broker.cli.nfp.broker",
    ("nfp", "worker"): "broker.cli.nfp.worker",
    ("oslo", "proxy"): "broker.cli.oslo.proxy",
}
"""Verbs that run as services or probes, and where their options are made."""


def parsed(words: list[str]) -> argparse.Namespace:
    """The options of a command line without its first word, `headgate`.

    Raises:
        ValueError: no such verb, or options that it does not have; the text is what a person would read.
    """
    for verb, module in MAKERS.items():
        if tuple(words[: len(verb)]) == verb:
            return _parsed(importlib.import_module(module).arguments(), words[len(verb) :])
    raise ValueError(f"no verb of {sorted(' '.join(verb) for verb in MAKERS)}: {words}")


def _parsed(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parser.parse_args(words)
    except SystemExit as error:
        raise ValueError(said.getvalue().strip()) from error


VERBS = frozenset(BUILT_IN)
"""All verbs of this package."""


def option(words: list[str], name: str) -> str:
    """The value of an option written as ``--name=value`` or ``--name value``.

    Raises:
        KeyError: it is not there.
    """
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == f"--{name}":
            return after
        if word.startswith(f"--{name}="):
            return word.partition("=")[2]
    raise KeyError(name)


def settings_of(words: list[str]) -> dict[str, str]:
    """What each ``--set`` says."""
    given = [word.partition("=")[2] for word in words if word.startswith("--set=")]
    given += [after for word, after in itertools.pairwise(words) if word == "--set"]
    return {name: value for name, _, value in (each.partition("=") for each in given)}
