"""Settings -> a running gateway: the composition root of one process.

Order of the start: who may come in, sessions and what they share, then the upstream (which may be away: clients are
told), then the doors.
Of the end: doors first, then a word to every client, their closes spread over ``drain_s`` while exchanges under way
finish, the upstream last.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import resource
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

from aiohttp import web
from msgspec.structs import replace

from broker.client.dialing import default_uri
from broker.errors import ConfigError
from broker.identity import Role
from broker.rates import Buckets
from broker.secret import SecretUrl
from broker.tasks import Tasks
from broker.transport.budget import Budget
from broker.transport.link import Flusher, Options
from broker.transport.outbox import OutboxLimits
from gateway.access import Access
from gateway.administration.service import Administration
from gateway.fleet.member import Fleet, gateway_of
from gateway.fleet.peers import Peers
from gateway.fleet.siblings import Siblings
from gateway.history.reader import History
from gateway.identity.authenticate import Authenticator
from gateway.identity.hook import AuthorizationHook
from gateway.identity.login import link_url
from gateway.identity.store import Store
from gateway.sessions.delivery import Delivery
from gateway.sessions.sessions import Sessions
from gateway.settings.reading import renewed, unrenewed
from gateway.settings.schema import GatewaySettings, ListenEntry
from gateway.tls import TlsContext
from gateway.trends.trends import Trends
from gateway.upstream.upstream import Upstream, keys_of, options_for
from gateway.web import app as pages
from gateway.web.admission import Admission, fitted
from gateway.web.app_context import AppContext
from gateway.web.listener import Listener
from gateway.web.metrics import Snapshot, samples
from gateway.web.static import Dashboard
from gateway.web.worker_counts import WorkerCounts, encoded
from gateway.websocket.endpoint import Endpoint

log = logging.getLogger("headgate")

Reread = Callable[[], GatewaySettings]
"""The settings as their file and the command line have them now; raises ConfigError."""
JOIN_S: Final = 2.0
"""How long a start waits for the upstream before it opens the doors without it."""
STEP_S: Final = 0.02
"""How often a drain looks whether the last call over HTTP has finished."""


def options_of(settings: GatewaySettings) -> Options:
    """What all links of one process share, and what a client may let wait."""
    limits = settings.limits
    return Options(
        flusher=Flusher(),
        budget=Budget(limits.budget_bytes),
        limits=OutboxLimits(
            high_bytes=limits.outbox_bytes,
            event_bytes=limits.outbox_bytes,
            cap_bytes=limits.response_bytes,
            event_policy=limits.slow_policy,
        ),
    )


class Gateway:
    """One process of a gateway.

    Args:
        settings: what to do.
        upstream: address of the broker; None takes ``gateway.upstream``, else ``$HEADGATE_URI``, ``$FLUX_URI``.
        sockets: bound already, one per ``[[listen]]`` and the one of ``metrics_listen`` last; None binds here.
        worker: name of this worker process, and the directory it shares with the other workers.
        reread: reads the settings again, for ``reload``; None: they stay.
        reload_all: makes the supervisor and all its workers reload, too; for ``gateway.reload``.
        leave: ends this gateway, and its workers; for ``gateway.drain``. None: it cannot be ended from outside.

    Attributes:
        settings: as given, but no more connections than file descriptors allow.
        identity: credentials. upstream: the broker. admission: connections.
        sessions: who is connected. delivery: what is carried. administration: what owners do and see.
        urls: where it listens, as bound; in the order of the settings.

    Raises:
        ConfigError: what the settings ask for cannot be done here.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        upstream: str | None = None,
        sockets: Sequence[socket.socket] | None = None,
        worker: tuple[str, str] | None = None,
        reread: Reread | None = None,
        reload_all: Callable[[], None] | None = None,
        leave: Callable[[str], None] | None = None,
    ) -> None:
        self._reread = reread
        self._reload_all = reload_all
        self._asked = settings.limits
        limits = fitted(settings.limits, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self.settings = settings = replace(settings, limits=limits)
        self.admission = Admission(limits)
        self.store = Store(settings.gateway.statedir, login_s=settings.access.cookie_s)
        try:
            self._set_up(upstream, sockets, worker, leave)
        except BaseException:
            self.store.close()
            raise
        self._tasks = Tasks()
        self._stopped = False

    def _set_up(
        self,
        upstream: str | None,
        sockets: Sequence[socket.socket] | None,
        worker: tuple[str, str] | None,
        leave: Callable[[str], None] | None,
    ) -> None:
        settings = self.settings
        gateway = gateway_of(self.store) if settings.gateway.redis is not None else ""
        self.peers = Peers(worker[0] if worker else "", gateway, self._answer)
        self._siblings = Siblings(worker[1], self.peers) if worker else None
        self._worker_counts = (
            WorkerCounts(worker[1], worker[0], self._own_samples, self._ask_counts) if worker else None
        )
        self.fleet = self._in_fleet(settings.gateway.redis) if settings.gateway.redis is not None else None
        self.identity = Authenticator(settings, self.store, None if self.fleet is None else self.fleet.logins)
        hooked = settings.access.hook_url is not None
        self.hook = AuthorizationHook(settings.access, asyncio.get_running_loop().time) if hooked else None
        self.sessions = Sessions(
            settings,
            self.identity,
            key=self.store.key("resume"),
            options=options_of(settings),
            peers=self.peers,
            hook=self.hook,
            wall=self.store.wall,
        )
        uri = upstream or settings.gateway.upstream or default_uri()
        self.upstream = Upstream(
            uri,
            dataclasses.replace(self.sessions.options, settings=options_for(settings.gateway, uri)),
            rejoin_max_s=settings.gateway.rejoin_max_s,
            keys=keys_of(settings.gateway, uri),
        )
        self.delivery = Delivery(self.sessions, self.upstream)
        self.trends = Trends(
            self.upstream,
            settings,
            self.sessions,
            self.delivery.fanout,
            self.sessions.clock,
            self.store.wall,
            keeps=not worker or worker[0].startswith("0-"),
        )
        self.administration = Administration(
            self.sessions,
            self.delivery,
            self.trends,
            reload=self._reload_called,
            leave=leave,
        )
        self.endpoint = Endpoint(
            self.sessions, self.delivery, self.administration, self.identity, self.admission
        )
        warehouse = settings.history.warehouse
        self.history = History(None if warehouse is None else warehouse.reveal(), settings.history.max_days)
        self.front = AppContext(
            settings,
            self.sessions,
            self.delivery,
            self.administration,
            self.identity,
            Buckets(settings.limits.msgs_per_s, settings.limits.msgs_burst),
            self.endpoint.handle,
            self._snapshots,
            self.history,
            self.store.wall,
        )
        self._tls: list[TlsContext] = []
        self._listeners = self._make_listeners(list(sockets) if sockets is not None else None)

    # -- up ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read credentials, join the upstream (waiting ``JOIN_S`` at most), open the doors.

        Raises:
            ConfigError: an address cannot be used, or a file is bad.
        """
        if self.settings.limits != self._asked:
            log.warning(
                "file descriptors allow %d connections, not limits.connections = %d: raise LimitNOFILE",
                self.settings.limits.connections,
                self._asked.connections,
            )
        try:
            await self.join()
            for listener in self._listeners:
                sockname = await listener.start()
                self.identity.listeners.opened(listener.entry, sockname)
                log.info("gateway listens at %s", listener.url)
            self.identity.announce(self.urls)
        except BaseException:
            await self._end()
            raise

    async def join(self) -> None:
        """The part of a start before the doors: credentials, other workers, upstream; `apps` can answer then."""
        await self.identity.start()
        self._tasks.spawn("identity", self.identity.run(self.sessions.revoked))
        if self._siblings is not None and self._worker_counts is not None:
            await self._siblings.start()
            self._worker_counts.start()
        if self.fleet is not None:
            self.fleet.start()
            await self.fleet.reached()
        await self.upstream.start(
            self.delivery,
            self.administration.handlers(),
            {"trace": (self.delivery.event_traces.follow, int(Role.OWNER))},
        )
        await self.upstream.wait_joined(JOIN_S)
        self._tasks.spawn("charts", self.trends.run())

    @property
    def apps(self) -> list[web.Application]:
        """The pages of each listener, in the order of the settings; those of ``metrics_listen`` are the last."""
        return [listener.app for listener in self._listeners]

    @property
    def urls(self) -> list[str]:
        """Where clients connect."""
        return [listener.url for listener in self._listeners[: len(self.settings.listen)]]

    def login_link(self) -> str:
        """A one-time login link, by a listener that only this machine reaches where there is one.

        Raises:
            Denied: login links are off, or the store cannot be written.
        """
        places = [listener.place for listener in self._listeners if not listener.place.is_unix]
        best = next((place for place in places if place.is_local), places[0] if places else None)
        if best is None:
            raise ConfigError("a login link needs an http or https listener")
        return link_url(f"{best.text}{self.settings.gateway.prefix}", self.identity.logins.make_link())

    def _make_listeners(self, sockets: list[socket.socket] | None) -> list[Listener]:
        settings = self.settings
        dashboard = Dashboard() if settings.gateway.dashboard else None
        listeners = []
        for index, entry in enumerate(settings.listen):
            tls = TlsContext(entry) if entry.url.startswith("https:") else None
            if tls is not None:
                self._tls.append(tls)
            app = pages.build(self.front, dashboard)
            listeners.append(self._listener(entry, app, sockets[index] if sockets else None, tls))
        if settings.gateway.metrics_listen is not None:
            inner = ListenEntry(url=settings.gateway.metrics_listen)
            listeners.append(
                self._listener(inner, pages.build_inner(self.front), sockets[-1] if sockets else None)
            )
        return listeners

    def _listener(
        self,
        entry: ListenEntry,
        app: web.Application,
        sock: socket.socket | None,
        tls: TlsContext | None = None,
    ) -> Listener:
        head_s = self.settings.limits.handshake_s
        return Listener(entry, app, self.admission, sock=sock, tls=tls, head_s=head_s)

    # -- while it runs -------------------------------------------------------------------------

    async def reload(self) -> list[str]:
        """Read users, rules, certificates, tokens and keys again; returns what could not be read and so stays."""
        problems = self._reload_settings()
        for context in self._tls:
            try:
                context.reload()
            except ConfigError as error:
                problems.append(str(error))
        problems += await self.identity.reload()
        for problem in problems:
            log.error("reload: %s; what was there stays", problem)
        self.trends.rings.mark(self.store.wall(), "users, rules, certificates and keys were read again")
        log.info(
            "reloaded users, rules, certificates, tokens and keys%s",
            " as far as possible" if problems else "",
        )
        return problems

    def _reload_settings(self) -> list[str]:
        """Take up users and rules, and ask again what open sessions may; what else has changed needs a restart."""
        if self._reread is None:
            return []
        try:
            read = self._reread()
            settings = renewed(self.settings, read)
            self.identity.set_users(settings)
        except ConfigError as error:
            return ["; ".join(str(error).splitlines())]
        self.settings = settings
        self.administration.set_access(Access(settings.rules))
        stuck = unrenewed(settings, read)
        return [f"{', '.join(stuck)}: cannot change while the gateway runs: restart it"] if stuck else []

    async def _reload_called(self) -> dict[str, Any]:
        """What ``gateway.reload`` answers: the problems of this worker, for all of them read the same files."""
        problems = await self.reload()
        if self._reload_all is not None:
            self._reload_all()
        return {"problems": problems}

    def _in_fleet(self, redis: SecretUrl) -> Fleet:
        settings = self.settings.gateway
        clock = asyncio.get_running_loop().time
        password_file = settings.redis_password_file
        return Fleet(redis, settings.redis_channel, self.store, self.peers, clock, password_file)

    def _answer(self, question: bytes) -> bytes:
        """What this process answers another one; no question asks for its counts."""
        return self.administration.answered(question) if question else encoded(self._own_samples())

    async def _ask_counts(self) -> dict[str, bytes]:
        return await self.peers.ask(b"", self._siblings)

    async def _snapshots(self) -> list[Snapshot]:
        return [self._own_samples()] if self._worker_counts is None else await self._worker_counts.snapshots()

    def _own_samples(self) -> Snapshot:
        return samples(
            self.sessions,
            self.delivery,
            self.identity,
            self.admission,
            self.fleet,
            [context.expires for context in self._tls],
            {} if self.hook is None else self.hook.outcomes,
        )

    # -- down ----------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Accept no more, tell every client, and close them one after the other within ``gateway.drain_s``."""
        if self.front.draining:
            return
        self.front.draining = True
        for listener in self._listeners[: len(self.settings.listen)]:
            listener.refuse()
        seconds = self.settings.gateway.drain_s
        until = self.sessions.clock() + seconds
        await self.sessions.drain(seconds)
        for _ in range(int((until - self.sessions.clock()) / STEP_S)):
            if not self.sessions:
                break
            await asyncio.sleep(STEP_S)  # calls over HTTP finish; each ends its session itself

    async def stop(self) -> None:
        """Drain, then end; safe to call twice."""
        await self.drain()
        await self._end()

    async def abandon(self) -> None:
        """End at once, whatever is under way; after a ``stop`` that was cancelled."""
        self.front.draining = True
        self._stopped = False
        await self._end()

    async def _end(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self.delivery.stop()
        await self.sessions.stop()
        self.sessions.options.flusher.flush()
        await self.endpoint.close()
        for listener in self._listeners:
            await listener.stop()
        self.history.close()
        await self.upstream.stop()
        if self.fleet is not None:
            await self.fleet.close()
        await self._tasks.stop()
        self.trends.save()
        if self._siblings is not None and self._worker_counts is not None:
            await self._worker_counts.stop()
            await self._siblings.stop()
        if self.hook is not None:
            self.hook.close()
        self.identity.close()
        counters = self.sessions.counters
        log.info(
            "gateway has left after %.0f s: %d sessions, %d calls, %d events published, %d refused, %d denied",
            self.store.wall() - self.sessions.started_at,
            sum(counters.opened.values()),
            counters.requests,
            counters.published,
            counters.refused + counters.limited,
            counters.denied,
        )
        self.store.close()
