"""The history as one page: the dashboard's own *History*, its program, its styles and the answers in one file, which
needs no server and no network. Read through pyarrow.

A browser loads no modules from a file, so those of the dashboard are put one behind the other (``bundled``). The page
may run this program and no other, and ask nobody for anything: its policy has the hashes of what stands in it.
"""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
import time
from datetime import UTC, datetime
from html import escape
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Final

import msgspec

from broker import __version__, atomic
from gateway.history.files import Budget
from gateway.history.reader import QUESTIONS, Question, TooWide, answer
from gateway.history.scope import DAY_S, LEAST_S, Scope
from gateway.history.tables import Warehouse
from gateway.pipeline.errors import PipelineError

SECONDS: Final = 120.0
"""How long each question of a report may read: nobody waits for a page."""
DAYS_MAX: Final = 36600
"""The longest report: a century, all there can be."""
NAME_MAX: Final = 300
"""Characters of a name: charts and tables are bounded, and so is the page."""
STYLES: Final = ("tokens", "page", "panels", "history", "report")

Answer = dict[str, Any]


def write(
    warehouse: str, output: str, *, since: float | None = None, until: float | None = None, days: float = 7
) -> Answer:
    """Write the page to ``output`` (in place of what is there); return the summary.

    Args:
        warehouse: directory of the tables.
        output: HTML file.
        since: first second since 1970; None: where the data begins, at most ``days`` before the end.
        until: the end, not included; None: the end of the data.
        days: how much is shown when ``since`` is not said.

    Raises:
        HeadgateError: no pyarrow, no warehouse, or bounds that make no sense.
        OSError: the file cannot be written.
    """
    house = Warehouse(warehouse)
    house.check()
    now = int(time.time()) + 1
    extent = house.extent() or (now - LEAST_S, now)
    if since is None and until is not None:
        since = max(0.0, until - days * DAY_S, min(float(extent[0]), until - 1))
    try:
        scope = Scope.of(since, until, extent, seconds=days * DAY_S)
    except ValueError as wrong:
        raise TooWide(str(wrong)) from None
    answers = {
        name: answer(
            house,
            Question(name, scope.since, scope.until),
            max_days=DAYS_MAX,
            budget=Budget(seconds=SECONDS),
        )
        for name in QUESTIONS
    }
    atomic.write(output, page(answers).encode())  # 0600: it names users, topics and sizes of everybody
    return answers["summary"]


def page(answers: dict[str, Answer]) -> str:
    """The answers of all questions as HTML."""
    folder = resources.files("gateway") / "dashboard"
    style = "".join((folder / "styles" / f"{name}.css").read_text("utf-8") for name in STYLES)
    script = bundled(folder, "report.js")
    # no text of the data ends its element
    data = msgspec.json.encode(_cut(answers)).decode().replace("<", "\\u003c")
    icon = (folder / "favicon.svg").read_text("utf-8").replace("<svg ", '<svg width="22" height="22" ', 1)
    policy = "default-src 'none'; base-uri 'none'; form-action 'none'"
    policy += f"; script-src {_hash(script)}; style-src {_hash(style)}"
    since, until = (datetime.fromtimestamp(answers["summary"][end], UTC) for end in ("since", "until"))
    title = f"Headgate history, {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header class="bar"><h1 class="brand">{icon}Headgate history</h1>
<p class="instance" id="zone"></p>
<p class="bar-end muted">headgate {escape(__version__)}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC</p></header>
<noscript><p class="banner">This page is a program: it needs JavaScript. It asks nobody for anything.</p></noscript>
<main><div class="board" data-view="history"><section class="card workspace" id="workspace"></section></div></main>
<script type="application/json" id="answers">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def _cut(value: Any) -> Any:
    """The same with no name longer than ``NAME_MAX``."""
    if isinstance(value, dict):
        return {key: _cut(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_cut(each) for each in value]
    if isinstance(value, str) and len(value) > NAME_MAX:
        return f"{value[: NAME_MAX - 1]}…"
    return value


def _hash(text: str) -> str:
    """How a policy names a program or a style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# ---------------------------------------------------------------- modules as one program

_IMPORT: Final = re.compile(r"^import (?:\* as (\w+)|(\{[^}]*\})) from '(\.[^']+)';$", re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_LEFT: Final = re.compile(r"^(?:import|export)\b.*|</script|<!--", re.MULTILINE)


def bundled(folder: Traversable, entry: str) -> str:
    """An ES module and all that it imports as one classic script: each is called once, behind those that it imports.

    Raises:
        PipelineError: a module imports or exports in a way that is not known here.
    """
    parts: dict[str, str] = {}

    def add(name: str) -> None:
        def imported(match: re.Match[str]) -> str:
            other = posixpath.normpath(posixpath.join(posixpath.dirname(name), match[3]))
            if other not in parts:
                add(other)
            names = match[1] or match[2].replace(" as ", ": ")
            return f"const {names} = modules['{other}'];"

        text = _IMPORT.sub(imported, folder.joinpath(*name.split("/")).read_text("utf-8"))
        exported = ", ".join(_EXPORT.findall(text))
        text = _EXPORT.sub("", text)
        if left := _LEFT.search(text):
            raise PipelineError(f"{name}: {left[0]}: no page can hold this")
        parts[name] = f"modules['{name}'] = (() => {{\n{text}return {{ {exported} }};\n}})();\n"

    add(entry)
    return f"'use strict';\n{{\nconst modules = {{}};\n{''.join(parts.values())}}}\n"
