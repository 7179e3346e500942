"""A hook of MkDocs: pages that live beside their code join the site, and so do those that are made of the code.

A link of a page means what it means in the repository. Where it leads to a page of the site it becomes a link within
the site; anywhere else, a link to the repository.
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from broker.cli import completion, main, options, verbs
from broker.identity import Role
from broker.node.attributes import configuration
from broker.routing.topology import Topology
from broker.services.dispatch import BuiltIn
from broker.services.service import Services, built_in
from broker.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mkdocs.structure.files import Files

    from broker.serving.runner import Method

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "CHANGELOG.md": "project/changelog.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "broker/PROTOCOL.md": "reference/flux-protocol.md",
    "broker/nfp/MANAGEMENT.md": "reference/nfp-management.md",
    "broker/nfp/MIGRATING.md": "guides/migrate-norfab.md",
    "broker/nfp/PROTOCOL.md": "reference/nfp-protocol.md",
    "broker/oslo/README.md": "explanation/oslo.md",
    "broker/transport/README.md": "guides/write-a-transport.md",
    "deploy/OPERATIONS.md": "guides/operate.md",
    "deploy/SECURITY.md": "guides/secure.md",
    "deploy/kubernetes/README.md": "guides/kubernetes.md",
    "deploy/oslo/MIGRATING-ZMQ.md": "guides/migrate-zmq.md",
    "deploy/oslo/MIGRATING.md": "guides/migrate-rabbitmq.md",
    "deploy/oslo/README.md": "guides/deploy-oslo.md",
    "deploy/systemd/README.md": "guides/systemd.md",
    "gateway/PROTOCOL.md": "reference/gateway-protocol.md",
    "gateway/dashboard/README.md": "reference/client-js.md",
    "gateway/pipeline/README.md": "guides/pipeline.md",
}
"""Path in the repository -> path in the site."""
PICTURES = "deploy/pictures"
SETTINGS = {"broker": "broker.toml", "gateway": "gateway.toml"}
COMMAND_LINE = "reference/command-line.md"
SERVICES = "reference/services.md"
LINK = re.compile(r"(\]\()(?![a-z]+:)([^)#\s]*)(#[^)\s]*)?\)")
WORDS = re.compile(r"^(```\w+) .+$", re.MULTILINE)
"""What a fence says beside its language, for the tests."""
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """See MkDocs: add the pages that are not below ``docs``."""
    from mkdocs.structure.files import File  # late: the rest of this file needs no MkDocs

    for path, place in PAGES.items():
        files.append(File.generated(config, place, content=(ROOT / path).read_text(encoding="utf-8")))
    for picture in sorted((ROOT / PICTURES).iterdir()):
        files.append(File.generated(config, f"pictures/{picture.name}", abs_src_path=str(picture)))
    for kind, name in SETTINGS.items():
        files.append(File.generated(config, f"reference/settings-{kind}.md", content=settings(kind, name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """See MkDocs: links as the site has them, and what is made of the code: verbs, services."""
    place = page.file.src_uri
    if place == COMMAND_LINE:
        markdown += commands()
    elif place == SERVICES:
        markdown = services()
    source = next((path for path, other in PAGES.items() if other == place), f"docs/{place}")
    parts = FENCED.split(WORDS.sub(r"\1", markdown))
    parts[::2] = [linked(text, source, place, config["repo_url"]) for text in parts[::2]]
    return "".join(parts)


def on_page_content(html: str, **_: Any) -> str:
    """See MkDocs: a docstring's mark of a block that follows is no paragraph."""
    return html.replace("<p>::</p>", "").replace("::</p>", ":</p>")


def linked(text: str, source: str, place: str, repository: str) -> str:
    """``text`` of the repository's file ``source`` with the links of the site's page ``place``.

    >>> linked("[a](../SECURITY.md#b), [c](../x.py)", "docs/index.md", "index.md", "https://host/it")
    '[a](project/security.md#b), [c](https://host/it/blob/main/x.py)'
    """

    def replaced(found: re.Match[str]) -> str:
        target, anchor = found[2], found[3] or ""
        if not target:
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        inside = _place_of(path)
        if inside is None:
            return f"{found[1]}{repository}/blob/main/{path}{anchor})"
        return f"{found[1]}{posixpath.relpath(inside, posixpath.dirname(place) or '.')}{anchor})"

    return LINK.sub(replaced, text)


def _place_of(path: str) -> str | None:
    """Where the site has a file of the repository; None: it has not."""
    if path.startswith(f"{PICTURES}/"):
        return f"pictures/{posixpath.basename(path)}"
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/") and not path.startswith("docs/examples"):
        return path.removeprefix("docs/")
    return None


def settings(kind: str, name: str) -> str:
    """The page of one configuration file: it is its own reference."""
    text = (ROOT / "deploy" / name).read_text(encoding="utf-8")
    about = "Each stands with its default and the reason. `headgate config check FILE` says what is wrong in yours."
    return f"# Settings of {kind}s\n\n{about}\n\n```toml\n{text.rstrip()}\n```\n"


ABOUT_SERVICES = """\
# Built-in services

What every broker answers by itself; clients add services of their own (`service.add`). A method takes a JSON object
with the keys on the left of `->` and answers with those on the right; what stands in square brackets may be left out,
and where nothing stands the payload is empty. *Stream*: a request needs flag STREAMING, and is answered until ENODATA
(RFC 6).
"""
ABOUT_COMMON = "Where a service below has a method of the same name, that one answers."


def services() -> str:
    """The page of the built-in services: who may call each method, and the first paragraph of its docstring."""
    config = configuration(Settings())
    broker: Any = SimpleNamespace(rank=0, size=1, config=config, attributes={}, topology=Topology(1))
    every = sorted(Services(broker, built_in()), key=lambda service: service.name)
    parts = [ABOUT_SERVICES, "## Every service", ABOUT_COMMON]
    parts.append(_table("SERVICE", BuiltIn(every[0], broker, 0).common()))
    for service in every:
        parts += [f"## {service.name}", _first(type(service)), _table(service.name, service.methods())]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(service: str, methods: Mapping[str, Method]) -> str:
    rows = ["| method | who may call | stream | what it takes and answers |", "| --- | --- | --- | --- |"]
    for name, method in sorted(methods.items()):
        stream = "yes" if method.streaming else ""
        rows.append(
            f"| `{service}.{name}` | {_callers(method.allow)} | {stream} | {_first(method.handler)} |"
        )
    return "\n".join(rows) if methods else ""


def _callers(allow: int) -> str:
    """The roles of a mask in words.

    >>> _callers(1), _callers(3), _callers(0xFFFFFFFF)
    ('owner', 'owner, user', 'everybody')
    """
    if allow == Role.ALL:
        return "everybody"
    return ", ".join(role.name.lower() for role in (Role.OWNER, Role.USER, Role.ADMIN) if allow & role)


def _first(documented: Any) -> str:
    """The first paragraph of a docstring, as one line of Markdown."""
    return " ".join((documented.__doc__ or "").partition("\n\n")[0].split()).replace("``", "`")


def commands() -> str:
    """The help of every verb, as a terminal of 100 columns shows it."""
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    every = (page for verb in verbs.BUILT_IN for page in _pages(verb))
    return "".join(
        f"\n## {'headgate ' + ' '.join(words)}\n\n```text\n{text.rstrip()}\n```\n" for words, text in every
    )


def _pages(*words: str) -> Iterator[tuple[Sequence[str], str]]:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):  # argparse leaves with it
        main.main([*words, "--help"])
    yield words, shown.getvalue()
    for word in _inner(*words):
        yield from _pages(*words, word)


def _inner(verb: str, *rest: str) -> list[str]:
    """The verbs of a family, the commands of a verb."""
    module: Any = import_module(verbs.module_of(verb))
    if hasattr(module, "VERBS"):
        if not rest:
            return list(module.VERBS)
        module = import_module(f"{module.__name__}.{rest[0]}")
        rest = rest[1:]
    if hasattr(module, "arguments") or module.main is completion.main:
        return []
    command: Any = options.command_of(module.main)
    for word in rest:
        command = command.commands[word]
    return list(getattr(command, "commands", {}))
