"""``headgate nfp shell``: have tasks run line by line, completed from what workers announce."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.cli import options
from broker.cli.content import value_of
from broker.cli.exits import FAILED, OK, UsageError
from broker.cli.nfp.jobs import show_jobs
from broker.cli.nfp.run import until_done
from broker.cli.nfp.services import look
from broker.cli.nfp.session import NfpSession, with_session
from broker.cli.screen import Screen
from broker.errors import ConfigError, HeadgateError, print_error
from broker.extras import lacking
from broker.nfp.client import NfpClient
from broker.nfp.client.limits import JOB_TIMEOUT_S

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.document import Document

EXAMPLES = (
    "headgate nfp shell                         Tab completes services, tasks, arguments",
    "echo 'lab ping n=3' | headgate nfp shell   lines of a file or a pipe; the first failure ends it",
)
USAGE = "SERVICE TASK [ARGUMENT]... [NAME=VALUE]... [--target all|any|NAME[,NAME]...] [--timeout SECONDS]"
DESCRIBE_S = 3.0
"""How long workers may take to describe their tasks: completion goes without what has not come."""
COMMANDS: Final = {
    "help": "how a line is written",
    "services": "services and workers",
    "jobs": "the newest jobs",
    "refresh": "ask again what there is",
    "exit": "leave; Ctrl-D does, too",
}
"""Word -> what it does."""
OPTIONS: Final = {"--target": "all, any or names of workers", "--timeout": "seconds"}


class TaskLine(NamedTuple):
    """A line that has a task run."""

    service: str
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    target: str = "all"
    timeout_s: float = JOB_TIMEOUT_S


def read(line: str) -> TaskLine:
    """What ``line`` asks for; values are JSON where they are some, else text.

    Raises:
        UsageError: it is not written as ``USAGE`` says.

    >>> read("lab ping 1 who=me --target w1")
    TaskLine(service='lab', task='ping', args=[1], kwargs={'who': 'me'}, target='w1', timeout_s=600.0)
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{line!r:.80}: {error}") from error
    given: dict[str, str] = {}
    rest: list[str] = []
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if name in OPTIONS:
            given[name] = value if equals else next(left, "")
        elif word.startswith("--"):
            raise UsageError(f"no option {name!r:.80}, expected {' or '.join(OPTIONS)}")
        else:
            rest.append(word)
    if len(rest) < 2:
        raise UsageError(f"{line!r:.80}: expected {USAGE}")
    args, kwargs = _arguments(rest[2:])
    return TaskLine(
        rest[0], rest[1], args, kwargs, given.get("--target", "all"), _seconds(given.get("--timeout"))
    )


def _arguments(words: list[str]) -> tuple[list[Any], dict[str, Any]]:
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if equals and name.isidentifier():
            kwargs[name] = value_of(text)
        else:
            args.append(value_of(word))
    return args, kwargs


def _seconds(text: str | None) -> float:
    if text is None:
        return JOB_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds < float("inf"):
        raise UsageError(f"--timeout {text!r}, expected seconds from 0.1 on")
    return seconds


class Shell:
    """Runs lines over one connection."""

    def __init__(self, client: NfpClient, screen: Screen) -> None:
        self.catalog = Catalog()
        self._client = client
        self._screen = screen

    async def refresh(self) -> None:
        """Ask what there is: services and workers, and of each service how its tasks are called."""
        self.catalog.take(await self._client.workers())
        await asyncio.gather(*(self._describe(service) for service in self.catalog.services))

    async def _describe(self, service: str) -> None:
        try:
            told = await self._client.run(service, "list_tasks", target="any", timeout_s=DESCRIBE_S)
        except HeadgateError:
            return  # nobody there, or not one of NorFab's kind: names are all there is
        for result in told.values():
            schemas = result.get("result") if isinstance(result, dict) else None
            self.catalog.describe(service, schemas if isinstance(schemas, list) else ())

    async def run(self, line: str) -> int | None:
        """Do what ``line`` says; returns its exit code, None to leave.

        Raises:
            HeadgateError: it could not be done.
        """
        words = line.split()
        if not words or words[0].startswith("#"):
            return OK
        if words in (["exit"], ["quit"]):
            return None
        if words == ["help"]:
            self._screen.line("\n".join([USAGE, *(f"{word:9} {what}" for word, what in COMMANDS.items())]))
        elif words == ["services"]:
            (await look(self._client, "", False)).show(self._screen)
        elif words == ["jobs"]:
            show_jobs(self._screen, await self._client.jobs(limit=20))
        elif words == ["refresh"]:
            await self.refresh()
        else:
            return await self._task(read(line))
        return OK

    async def _task(self, asked: TaskLine) -> int:
        job = await self._client.submit(
            asked.service,
            asked.task,
            args=asked.args,
            kwargs=asked.kwargs,
            target=asked.target,
            timeout_s=asked.timeout_s,
        )
        return await until_done(job, self._screen, shown=sys.stderr.isatty())


# -- what a line is completed with ----------------------------------------------------------------


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
        return _remaining(tasks.get(words[1]), words[2:])


def _remaining(task: Announced | None, given: list[str]) -> list[Candidate]:
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


async def _piped() -> AsyncIterator[str]:
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield line


def completer(catalog: Catalog) -> Completer:
    """Completes a line from what is announced."""
    from prompt_toolkit.completion import Completer, Completion

    class Words(Completer):  # type: ignore[misc]  # an extra, which may be missing
        def get_completions(self, document: Document, _event: object) -> Iterator[Completion]:
            begun, found = catalog.candidates(document.text_before_cursor)
            for each in found:
                yield Completion(each.word, -len(begun), display_meta=each.what)

    return Words()


async def typed_lines(catalog: Catalog) -> AsyncIterator[str]:
    """Lines of a person, until Ctrl-D."""
    from prompt_toolkit import PromptSession

    prompt: PromptSession[str] = PromptSession(completer=completer(catalog), complete_while_typing=False)
    while True:
        try:
            yield await prompt.prompt_async("nfp> ")
        except KeyboardInterrupt:
            continue  # the line is given up, not the shell
        except EOFError:
            return


def _check_prompt() -> None:
    try:
        import prompt_toolkit  # noqa: F401 - is it there?
    except ImportError as error:
        text = f"{lacking('prompt_toolkit')}; `headgate nfp run` and lines from a pipe work without it"
        raise ConfigError(text) from error


@with_session("shell", submits=True)
def shell(session: NfpSession) -> int:
    """Have tasks run line by line: SERVICE TASK [ARGUMENT]... [NAME=VALUE]... [--target T] [--timeout S].

    On a terminal Tab completes services, tasks and arguments as workers announce them, and an error does not end the
    shell. Lines from a pipe are run in order; the first one that fails ends it, with its exit code.
    """
    typed = sys.stdin.isatty()
    if typed:
        _check_prompt()

    async def work(client: NfpClient) -> int:
        mine = Shell(client, session.screen)
        if typed:
            await mine.refresh()
        async for line in typed_lines(mine.catalog) if typed else _piped():
            code = await _one(mine, line, typed)
            if code is None:
                break
            if code != OK and not typed:
                return code
        return OK

    return session.run(work)


async def _one(mine: Shell, line: str, typed: bool) -> int | None:
    """Run one line; a person is told what is wrong with it, a script ends with it."""
    try:
        return await mine.run(line)
    except (HeadgateError, TimeoutError) as error:
        if not typed:
            raise
        print_error(f"headgate nfp shell: {error}")
        return FAILED


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("nfp shell", shell, EXAMPLES, argv)
