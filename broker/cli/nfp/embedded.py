"""An NFP broker inside rank 0's process, as a service of that broker: what ``headgate broker``, ``start`` and ``up``
add when the configuration has ``[nfp]``.

Management (MMI) may restart or shut down the NFP broker: the broker around it goes on.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from broker.endpoints import parse
from broker.journal.options import JournalOptions
from broker.settings import NfpSection, Settings

if TYPE_CHECKING:
    from broker.exposition import Sample
    from broker.name_stats import NameStats
    from broker.nfp.server.broker import NfpBroker
    from broker.nfp.service import FluxService
    from broker.node.assembly import Node

log = logging.getLogger("headgate")
WRITER: Final = "nfp"
"""Name of its journal."""


class Wing:
    """An NFP broker and its service on the Flux broker.

    Args:
        section: ``[nfp]``.
        uri: the Flux broker, whose owner we are.
        journal: record what passes; None: nothing.

    Attributes:
        broker: the NFP broker, None before ``start`` and after its end.
    """

    def __init__(self, section: NfpSection, uri: str, journal: JournalOptions | None = None) -> None:
        self.broker: NfpBroker | None = None
        self._service: FluxService | None = None
        self._section = section
        self._uri = uri
        self._journal = journal
        self._keeping: asyncio.Task[None] | None = None

    async def start(self, node: Node) -> None:
        """Listen for workers and clients, and register at ``node``, the Flux broker; its figures have ours from now on.

        Raises:
            ConfigError: a setting cannot be followed; HeadgateError: the Flux broker does not let us register.
        """
        node.metrics.more.append(self.samples)
        await self._begin()
        self._keeping = asyncio.get_running_loop().create_task(self._keep(), name="nfp")

    async def stop(self) -> None:
        """Leave; harmless twice."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
            self._keeping = None
        await self._end("the broker stops")

    def where(self) -> list[str]:
        """Lines that say how workers and clients find it."""
        if self.broker is None:
            return where(self._section)
        return where(self._section, self.broker.endpoints, self.broker.server_key)

    def variables(self) -> dict[str, str]:
        """What the environment of another terminal has to say, so that ``headgate nfp`` and programs find it."""
        return variables(self._section, self.broker.endpoints if self.broker is not None else ())

    def samples(self) -> list[Sample]:
        """What it adds to the figures of rank 0; nothing while it is not there."""
        if self.broker is None:
            return []
        from broker.journal.samples import samples
        from broker.nfp.outcome import END_STATES

        counts, services = self.broker.dispatcher.counts.as_dict(), self.broker.dispatcher.services()
        found: list[Sample] = [
            ("nfp_submitted_jobs_total", "counter", "Jobs accepted.", [({}, float(counts["submitted"]))]),
            (
                "nfp_ended_jobs_total",
                "counter",
                "Jobs that ended, by how they ended.",
                [({"state": state}, float(counts[state])) for state in END_STATES],
            ),
        ]
        for name, text, number in (
            ("workers", "Workers that are there.", sum(each.alive for each in services)),
            ("queued_requests", "Requests that wait for any worker.", sum(each.queued for each in services)),
            ("running_requests", "Requests that workers have.", sum(each.running for each in services)),
        ):
            found.append((f"nfp_{name}", "gauge", text, [({}, float(number))]))
        found += task_samples(self.broker.dispatcher.tasks.by_name)
        recording = self.broker.recording
        if recording is not None:
            found += samples(recording.recorder, "nfp_journal")
        return found

    async def _begin(self) -> None:
        from broker.nfp.server.broker import NfpBroker
        from broker.nfp.service import FluxService

        self.broker = NfpBroker(self._section, journal=self._journal)
        try:
            await self.broker.start()
            self._service = FluxService(self.broker, self._uri, announce=self._section.announce)
            await self._service.start()
        except BaseException:
            await self._end("it could not start")
            raise

    async def _end(self, reason: str) -> None:
        service, self._service = self._service, None
        broker, self.broker = self.broker, None
        if service is not None:
            await service.stop()
        if broker is not None:
            await broker.stop(reason)

    async def _keep(self) -> None:
        """Do what management asks for: stop, or start anew."""
        while self.broker is not None:
            outcome = await self.broker.left()
            await self._end(f"management asked to {outcome}")
            if outcome != "restart":
                return
            try:
                await self._begin()
            except Exception:
                log.exception("NFP could not start again")
                return


def task_samples(tasks: Mapping[str, NameStats]) -> list[Sample]:
    """Rate, errors and duration of jobs, by service and task."""
    from broker.node.metrics import counted, failed, still_open, took

    return [
        counted("nfp_task_jobs_total", "Jobs posted, by service and task.", "task", tasks),
        failed(
            "nfp_task_job_errors_total", "Of those, what ended with an error, by errno, too.", "task", tasks
        ),
        still_open("nfp_task_open_jobs", "Of those, what has not ended yet.", "task", tasks),
        took("nfp_task_job_seconds", "Time from post to result.", "task", tasks),
    ]


def wing_of(section: NfpSection, settings: Settings) -> Wing:
    """The wing that ``section`` asks for beside rank 0, whose settings are ``settings``."""
    options = settings.journal
    journal = JournalOptions(writer=WRITER, **options.options()) if options.enabled else None
    return Wing(section, settings.broker.local_uri or "", journal)


def where(section: NfpSection, endpoints: Sequence[str] = (), key: str = "") -> list[str]:
    """Lines that say how workers and clients find a broker; the commands in them work when they are pasted.

    Args:
        section: its settings.
        endpoints: where it listens, the one for workers last; () is what ``section`` says.
        key: its public key; "" is read from its folder.
    """
    from broker.listening import contact
    from broker.nfp.peer.keys import default_base_dir, found_broker_key

    if not endpoints:
        asked = (section.endpoint, section.worker_endpoint or section.endpoint)
        endpoints = [contact(parse(each), parse(each)) for each in asked]
    if not key and section.curve:
        key = found_broker_key(section.base_dir) or ""
    usual = section.base_dir == str(default_base_dir())
    words = [] if section.curve else ["--no-curve"]
    if section.curve and not usual:
        words.append(f"--base-dir {shlex.quote(section.base_dir)}")
    found = [f"NFP broker at {endpoints[0]}" + (f", key {key}" if key else ", in plaintext")]
    for command, endpoint in (("worker FILE.py", endpoints[-1]), ("run SERVICE TASK", endpoints[0])):
        options = [*_there(endpoint, section.curve), *words]
        found.append(" ".join([f"  headgate nfp {command}", *options]))
    return found


def variables(section: NfpSection, endpoints: Sequence[str] = ()) -> dict[str, str]:
    """What the environment of another terminal has to say, so that ``headgate nfp`` and programs find a broker.

    Args:
        section: its settings.
        endpoints: where it listens; () is what ``section`` says, without the address where that leaves the port open.
    """
    from broker.listening import contact
    from broker.nfp.peer.brokers import VARIABLE
    from broker.nfp.peer.keys import DIR_VARIABLE

    endpoint = endpoints[0] if endpoints else section.endpoint
    place = parse(endpoint)
    found = {DIR_VARIABLE: section.base_dir}
    return found if endpoint.endswith(":*") else {VARIABLE: contact(place, place), **found}


def _there(endpoint: str, curve: bool) -> list[str]:
    """The options that lead to ``endpoint``."""
    words = [] if endpoint == NfpSection().endpoint else [f"--broker {shlex.quote(endpoint)}"]
    if not curve and not parse(endpoint).is_local:
        words.append("--insecure")
    return words
