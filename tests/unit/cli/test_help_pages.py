"""Every help page says what its source says: nothing in it is taken for markup or cut off."""

import contextlib
import re
from importlib import import_module

import pytest
import typer

from broker.cli import exits, options
from broker.cli.main import main
from broker.cli.verbs import BUILT_IN
from tests.tables import for_each

pytestmark = pytest.mark.interpreter

FAMILIES = {
    "journal": "broker.cli.journal",
    "nfp": "broker.cli.nfp",
    "oslo": "broker.cli.oslo",
    "pipeline": "gateway.cli.pipeline",
}


def pages():
    """The words of each page: a verb, or a verb of a family."""
    for verb in BUILT_IN:
        yield (verb,)
    for family, module in FAMILIES.items():
        for verb in import_module(module).VERBS:
            yield family, verb


def plain(text):
    """Without line breaks, and without the sign for a paragraph that is not to be wrapped."""
    return " ".join(text.replace("\b", " ").split())


def commands(command, *words):
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, *words, name)


def page_of(capsys, *words):
    with contextlib.suppress(SystemExit):  # argparse leaves with it
        assert main([*words, "--help"]) == exits.OK
    return capsys.readouterr().out


@for_each("page", pages)
def test_a_help_page_says_what_its_source_says(page, capsys):
    shown = []

    def spy(verb, app, examples, argv, **more):
        shown.append((app, examples))
        return run_app(verb, app, examples, argv, **more)

    run_app = options.run_app
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(options, "run_app", spy)
        text = page_of(capsys, *page)
    assert len(text.splitlines()) > 5
    assert "deploy/" not in text, "an installed package has no such folder"
    assert not re.search(r"[A-Z][a-z+]*://", text), "a scheme is written small"
    for app, examples in shown:
        assert all(plain(example) in plain(text) for example in examples), "wrapped at most"
        for words, command in commands(typer.main.get_command(app)):
            said = plain(page_of(capsys, *page, *words))
            assert plain(re.sub(r"\f.*", "", command.help or "", flags=re.DOTALL)) in said
            for parameter in command.params:
                assert plain(getattr(parameter, "help", None) or "") in said, parameter.name
