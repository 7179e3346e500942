"""``headgate doctor``: find out why a connection fails."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Final

import typer

from broker import __version__
from broker.cli import address, diagnosis, options, tree
from broker.cli.build import build
from broker.cli.diagnosis import WAIT_S, Finding, ok
from broker.cli.exits import CONFIG, NO_CONNECTION, OK
from broker.cli.screen import Screen
from broker.client import Handle, connect
from broker.endpoints import parse
from broker.errors import ConfigError, HeadgateError, LinkRefused, RpcError
from broker.schemes import scheme_of
from broker.secret import masked
from broker.settings import Settings, load
from broker.transport.link import Options
from broker.transport.registry import dial, transport_for

UNSTEADY: Final = 4
"""A rank that joined so often within a minute does not only restart."""
EXAMPLES = (
    "headgate doctor                                     the broker that the other verbs would use",
    "headgate doctor local:///run/headgate/local-0",
    "headgate doctor --config /etc/headgate/broker.toml  this host's broker and the way to its parent",
)
_MARKS = {"ok": ("ok  ", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "bold red")}


class Report:
    """Prints findings as they come and remembers whether one was bad."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self.failed: bool = False

    def add(self, finding: Finding) -> None:
        """Print one finding."""
        self.failed = self.failed or finding.level == "fail"
        mark, style = _MARKS[finding.level]
        self._screen.record(finding._asdict(), f"{mark}  {finding.text}", style)
        if finding.advice and not self._screen.as_json:
            self._screen.line(f"      -> {finding.advice}", "bold")

    def walk(self, findings: Iterator[Finding]) -> bool:
        """Print findings until one is bad; returns whether none was."""
        for finding in findings:
            self.add(finding)
            if finding.level == "fail":
                return False
        return True


def way_to(uri: str, extra: dict[str, Any]) -> Iterator[Finding]:
    """The steps below the protocol, by the scheme of ``uri``."""
    scheme = scheme_of(uri)
    if scheme == "local":
        return diagnosis.local(uri)
    if scheme in ("tcp", "ipc"):
        return diagnosis.zeromq(uri, curve="curve" in extra)
    try:
        transport_for(uri)
    except ConfigError as error:
        return iter([Finding("fail", str(error), "is the package installed that brings this transport?")])
    return iter([ok(f"{masked(uri)}: nothing is known about the steps of this transport")])


async def conversation(uri: str, extra: dict[str, Any]) -> AsyncIterator[Finding]:
    """Connect as every client does and ask the broker about itself."""
    try:
        options = address.link_options(uri, connect_timeout_s=WAIT_S)
        async with connect(uri, options=options, retries=0) as handle:
            async for finding in _questions(handle):
                yield finding
    except LinkRefused as error:
        yield Finding("fail", str(error), _refused(extra))
    except (HeadgateError, TimeoutError) as error:
        yield Finding(
            "fail", f"{error}", "the connection stands but the broker does not answer: look at its log"
        )


def _build() -> Finding:
    """Compiled or not: the same program, at another speed."""
    found = build()
    if found.startswith("partly"):
        return Finding("warn", f"this is headgate {__version__}, {found}", "install it again, from its wheel")
    return ok(f"this is headgate {__version__}, {found}")


def _refused(extra: dict[str, Any]) -> str:
    if "curve" not in extra:
        return "see the broker's log"
    key = extra["curve"].certificate.public_key
    return f'the broker must know our key: [[clients]] public_key = "{key}"; and its own must be the one we expect'


async def _questions(handle: Handle) -> AsyncIterator[Finding]:
    async with asyncio.timeout(4 * WAIT_S):
        rank, size = await handle.rank(), await handle.size()
        yield ok(f"connected to rank {rank} of {size}")
        yield await _version(handle)
        for each in (_state, _health):
            try:
                yield await each(handle)
            except RpcError as error:
                yield Finding(
                    "warn",
                    f"{error.topic}: {error}",
                    "rank 0 cannot be reached from here, or is another kind of broker",
                )


async def _version(handle: Handle) -> Finding:
    flux = await handle.attr("version")
    try:
        theirs = await handle.attr("headgate.version")
    except RpcError:
        return ok(f"the broker is flux-core {flux}")
    if theirs.split(".")[:2] != __version__.split(".")[:2]:
        return Finding(
            "warn",
            f"the broker is headgate {theirs}, this is {__version__}",
            "use the same version on both sides",
        )
    return ok(f"the broker is headgate {theirs} and speaks as flux-core {flux}")


async def _state(handle: Handle) -> Finding:
    state = str((await handle.rpc("state-machine.get", nodeid=0)).json().get("state"))
    if state == "run":
        return ok("the instance runs")
    advice = (
        "some ranks have not joined yet: headgate status shows which"
        if state in ("join", "quorum", "init")
        else ""
    )
    return Finding("warn", f"the instance is in state {state}", advice)


async def _health(handle: Handle) -> Finding:
    root = await tree.fetch(handle)
    unsteady = [member for _, member in tree.drawn(root) if member.joins >= UNSTEADY]
    if unsteady:
        return Finding(
            "warn",
            "; ".join(f"rank {member.rank} {member.rejoined()}" for member in unsteady[:5]),
            "two processes of one rank displace each other: end one; from one place alone, see that broker's log",
        )
    gone = [member for _, member in tree.drawn(root) if member.status in tree.GONE]
    if not gone:
        return ok(f"{tree.count(root).get('full', 0)} of {await handle.size()} ranks are full")
    told = "; ".join(f"rank {m.rank} is {m.status}{': ' + m.error if m.error else ''}" for m in gone[:5])
    mismatch = any("version" in member.error for member in gone)
    advice = (
        "brokers of one tree announce versions with the same first two numbers: broker.version_announced"
        if mismatch
        else "on that host: headgate doctor --config FILE"
    )
    return Finding("warn", told, advice)


def doctor(
    place: Annotated[
        str | None, typer.Argument(metavar="[URI]", help="The broker; default as for the other verbs.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="Look at this host's broker and the way to its parent."
        ),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(
            "--rank", "-r", min=0, metavar="N", help="With --config: which rank. Default: this machine's."
        ),
    ] = None,
    uri: options.Uri = None,
    as_json: options.AsJson = False,
) -> int:
    """Try each step of a connection, say what was seen and what to do.

    Exit code 3 when a step fails, 78 when the configuration is the cause; warnings are no failure.
    """
    report = Report(Screen(as_json))
    report.add(diagnosis.packages())
    settings = load(config).at_rank(rank) if config is not None else None
    if settings is not None and not _this_host(report, settings):
        return CONFIG
    local = settings.broker.local_uri if settings is not None else None
    target = address.choose(place or uri or local)
    extra = address.extra() if settings is None else {}
    if report.walk(way_to(target, extra)):
        asyncio.run(_converse(report, target, extra))
    report.add(diagnosis.box_speed())
    report.add(_build())
    return NO_CONNECTION if report.failed else OK


async def _converse(report: Report, uri: str, extra: dict[str, Any]) -> None:
    async for finding in conversation(uri, extra):
        report.add(finding)


def _this_host(report: Report, settings: Settings) -> bool:
    """The configuration, then the way to the parent; returns whether the configuration fits this host."""
    if not (report.walk(diagnosis.configuration(settings)) and report.walk(diagnosis.reach(settings))):
        return False
    parent = _parent(settings)
    if parent is None:
        return True
    number, uri, extra = parent
    if scheme_of(uri) in ("tcp", "ipc") and report.walk(diagnosis.zeromq(uri, curve="curve" in extra)):
        report.add(asyncio.run(_handshake(number, uri, extra)))
        if not report.failed and not _running(settings):
            report.add(asyncio.run(_same_version(number, uri, extra, settings)))
    return True


def _running(settings: Settings) -> bool:
    """Whether this host's broker has its socket: then it has said hello itself, and its own log knows how that went."""
    return os.path.exists(parse(settings.broker.local_uri or "", "local").path)


async def _same_version(number: int, uri: str, extra: dict[str, Any], settings: Settings) -> Finding:
    """Would the parent take a hello of the version that our configuration announces?"""
    try:
        link = await dial(uri, Options(connect_timeout_s=WAIT_S, extra=extra, insecure=True))
        theirs = await diagnosis.announced_version(link, settings.broker.rank or 0)
    except HeadgateError as error:
        return Finding("warn", f"rank {number} did not tell its version: {error}")
    if link.ended is None:
        link.close()
    ours = settings.broker.version_announced
    if theirs is None:
        return Finding(
            "warn", f"rank {number} did not tell its version", "look for refused hellos in its log"
        )
    if theirs.split(".")[:2] == ours.split(".")[:2]:
        return ok(f"rank {number} announces version {theirs}, we {ours}: they agree")
    advice = "brokers of one tree announce the same first two numbers: set broker.version_announced"
    return Finding(
        "fail", f"version mismatch: rank {number} announces {theirs}, we would announce {ours}", advice
    )


def _parent(settings: Settings) -> tuple[int, str, dict[str, Any]] | None:
    from broker.node.assembly import topology_of
    from broker.node.curve_keys import CurveKeys

    number = topology_of(settings).parent(settings.broker.rank or 0)
    host = settings.host(number)
    return None if host is None else (number, host.address, CurveKeys(settings).dial_options(host))


async def _handshake(number: int, uri: str, extra: dict[str, Any]) -> Finding:
    """The CURVE handshake with the parent, and no word after it: it does not count us as a child."""
    try:
        link = await dial(uri, Options(connect_timeout_s=WAIT_S, extra=extra, insecure=True))
    except ConfigError as error:
        return Finding("fail", str(error))
    except HeadgateError as error:
        advice = f"is our public_key in the parent's [[hosts]], and is the one of rank {number} in ours the right one?"
        return Finding("fail", str(error), advice)
    link.close()
    return ok(f"rank {number}, our parent, knows our key")


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("doctor", doctor, EXAMPLES, argv)
