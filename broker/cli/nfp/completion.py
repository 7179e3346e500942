"""What a line of ``headgate nfp shell`` is completed with: services, tasks, arguments that workers announce (pure).

A line is ``SERVICE TASK [ARGUMENT]... [NAME=VALUE]... [--target T] [--timeout S]``, or one of ``COMMANDS``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

COMMANDS: Final = {
    "help": "how a line is written",
    "services": "services and workers",
    "jobs": "the newest jobs",
    "refresh": "ask again what there is",
    "exit": "leave; Ctrl-D does, too",
}
"""Word -> what it does."""
OPTIONS: Final = {"--target": "all, any or names of workers", "--timeout": "seconds"}


class Candidate(NamedTuple):
    """A word that fits, and what it is."""

    word: str
    what: str = ""


class Announced(NamedTuple):
    """A task as a worker announces it; ``arguments``: name -> type and description."""

    name: str
    description: str = ""
    arguments: Mapping[str, str] = {}


class Catalog:
    """Services with their tasks and workers."""

    def __init__(self) -> None:
        self._tasks: dict[str, dict[str, Announced]] = {}
        self._workers: dict[str, list[str]] = {}

    @property
    def services(self) -> list[str]:
        """Their names."""
        return sorted(self._workers)

    def take(self, workers: Iterable[Mapping[str, Any]]) -> None:
        """Learn what ``show_workers`` tells, in place of what was known."""
        self._tasks.clear()
        self._workers.clear()
        for worker in workers:
            service = str(worker["service"])
            self._workers.setdefault(service, []).append(str(worker["name"]))
            tasks = worker.get("tasks")
            for name in tasks if isinstance(tasks, list) else ():
                self._tasks.setdefault(service, {})[str(name)] = Announced(str(name))

    def describe(self, service: str, schemas: Iterable[Any]) -> None:
        """Learn what ``list_tasks`` of a worker of ``service`` tells."""
        known = self._tasks.setdefault(service, {})
        for schema in schemas:
            if isinstance(schema, dict) and schema.get("name"):
                described = _announced(schema)
                known[described.name] = described

    def candidates(self, line: str) -> tuple[str, list[Candidate]]:
        """The last word of ``line`` as far as it is written, and what it may become.

        >>> catalog = Catalog()
        >>> catalog.take([{"name": "w1", "service": "lab", "tasks": ["ping"]}])
        >>> catalog.candidates("lab p")
        ('p', [Candidate(word='ping', what='')])
        """
        words = line.split()
        begun = words.pop() if words and not line[-1].isspace() else ""
        return begun, [each for each in self._next(words) if each.word.startswith(begun)]

    def _next(self, words: list[str]) -> list[Candidate]:
        if not words:
            named = [
                Candidate(name, f"service, {len(self._workers[name])} workers") for name in self.services
            ]
            return named + [Candidate(word, what) for word, what in COMMANDS.items()]
        tasks = self._tasks.get(words[0], {})
        if len(words) == 1:
            return [
                Candidate(name, tasks[name].description.strip().partition("\n")[0]) for name in sorted(tasks)
            ]
        if words[-1] == "--target":
            return [Candidate(name) for name in ("all", "any", *sorted(self._workers.get(words[0], ())))]
        if words[-1] == "--timeout":
            return []
        return _arguments(tasks.get(words[1]), words[2:])


def _arguments(task: Announced | None, given: list[str]) -> list[Candidate]:
    """What is not given yet."""
    named = {word.partition("=")[0] for word in given}
    arguments = task.arguments if task is not None else {}
    found = [Candidate(f"{name}=", what) for name, what in arguments.items() if name not in named]
    return found + [Candidate(word, what) for word, what in OPTIONS.items() if word not in given]


def _announced(schema: Mapping[str, Any]) -> Announced:
    wanted = schema.get("inputSchema")
    properties = wanted.get("properties") if isinstance(wanted, dict) else None
    arguments = {}
    for name, about in properties.items() if isinstance(properties, dict) else ():
        about = about if isinstance(about, dict) else {}
        words = (str(about.get(key) or "") for key in ("type", "description"))
        arguments[str(name)] = " ".join(word for word in words if word)
    return Announced(str(schema["name"]), str(schema.get("description") or ""), arguments)
