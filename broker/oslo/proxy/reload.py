"""Settings read again while a proxy runs (SIGHUP): keys, rules and our own certificate, all of them or nothing.

::

    SIGHUP -> request -> read, in a thread (files) -> apply, in the reactor's thread, in one go

What changes at once, for connections that exist, too: what a key may do (``acl``; one that may not enter any more stays
connected, and whatever it sends is denied), which local listeners may listen (those that may not are dropped), who may
ask and announce at the directory. A new certificate is shown to whoever connects from now on, and the directory is told
its key, so that clients connect anew; connections under the former one go on until their peers have gone.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from broker.errors import ConfigError
from broker.oslo.node import NodeConfig
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.reactor import Reactor
from broker.transport.curve import Certificate, load

if TYPE_CHECKING:
    from broker.oslo.directory.server import DirectoryServer
    from broker.oslo.proxy.pipeline import PipelineRoom

LATE: Final = ("keys", "unlisted", "rules", "curve_cert", "directory_key")
"""Of a node's configuration: what can change while its proxy runs."""
FINGERPRINT_CHARS: Final = 16

Reread = Callable[[], NodeConfig]
"""The configuration as it is now; may block. Raises ConfigError."""


@dataclass(frozen=True, slots=True)
class _Read:
    config: NodeConfig
    certificate: Certificate | None


class Reload:
    """Reads the settings of a running proxy again, one time after the other.

    Args:
        reactor: whose thread applies them.
        config: in force.
        reread: where from; None: nothing is ever read again.
        acl: of all pipelines.
        pipelines: by name, those that run.

    Attributes:
        done, refused: how often it went well, and how often nothing was changed because of an error.
        settings: for STATUS: ``read_at``, seconds since 1970; ``fingerprint`` of keys, rules and certificate;
            ``public_key``, "" in plaintext; ``done``, ``refused``.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: NodeConfig,
        reread: Reread | None,
        acl: AccessControl,
        pipelines: Mapping[str, PipelineRoom],
    ) -> None:
        self.done = self.refused = 0
        self.settings = acl.settings
        self._reactor = reactor
        self._reread = reread
        self._acl = acl
        self._pipelines = pipelines
        self._directory: DirectoryServer | None = None
        self._reading = self._again = False
        self._now = _Read(config, None)

    def begin(self, directory: DirectoryServer | None) -> None:
        """The pipelines, and the directory where there is one, are open: what they have read is in force.

        Raises:
            ConfigError: the certificate cannot be read.
        """
        self._directory = directory
        config = self._now.config
        self._now = _Read(config, load(config.curve_cert) if config.curve_cert else None)
        self._note()

    def request(self) -> None:
        """Read again, after the reading under way if there is one; for a signal handler."""
        self._reactor.call_threadsafe(self._start)

    def _start(self) -> None:
        if self._reread is None:
            return
        if self._reading:
            self._again = True
            return
        self._reading = True
        threading.Thread(target=self._read, args=(self._reread,), name="reload", daemon=True).start()

    def _read(self, reread: Reread) -> None:
        """In a thread."""
        try:
            config = reread()
            certificate = load(config.curve_cert) if config.curve_cert else None
            if (certificate is None) != (self._now.certificate is None):
                raise ConfigError(
                    "oslo.curve_cert: CURVE is not switched on or off while the proxy runs: restart it"
                )
        except Exception as error:
            self._reactor.call_threadsafe(self._refuse, error)
        else:
            self._reactor.call_threadsafe(self._apply, _Read(config, certificate))

    def _refuse(self, error: Exception) -> None:
        self.refused += 1
        self._note(read=False)
        if isinstance(error, ConfigError):
            said = "; ".join(str(error).splitlines())
            self._reactor.say(logging.ERROR, "reload refused, nothing has changed: %s", (said,))
        else:
            self._reactor.report(error)
        self._over()

    def _over(self) -> None:
        self._reading = False
        if self._again:
            self._again = False
            self._start()

    # ------------------------------------------------------------ apply

    def _apply(self, read: _Read) -> None:
        former = self._now
        late = {name: getattr(read.config, name) for name in LATE}
        self._now = replace(read, config=replace(former.config, **late))
        self._acl.change(self._now.config)
        if self._directory is not None:
            self._told(self._directory.renew_from, self._now.config, self._now.certificate)
        dropped = sum(self._told(room.renew, self._now.certificate) or 0 for room in self._pipelines.values())
        self.done += 1
        self._note()
        said = ", ".join(_summary(former, self._now)) or "nothing has changed"
        left = f"; {dropped} listener{'s' * (dropped != 1)} dropped" if dropped else ""
        self._reactor.say(logging.INFO, "reloaded: %s%s", (said, left))
        self._over()

    def _told(self, renew: Callable[..., int | None], *what: Any) -> int | None:
        """What ``renew`` returns; None when its port cannot be listened at with the new key."""
        try:
            return renew(*what)
        except ConfigError as error:
            text = "%s; the former certificate is shown there until the proxy is restarted"
            self._reactor.say(logging.ERROR, text, (str(error),))
        return None

    # ------------------------------------------------------------ status

    def _note(self, *, read: bool = True) -> None:
        if read:
            key = "" if self._now.certificate is None else self._now.certificate.public_key
            self.settings.update(
                read_at=round(time.time(), 3), fingerprint=fingerprint(self._now.config, key), public_key=key
            )
        self.settings.update(done=self.done, refused=self.refused)


def fingerprint(config: NodeConfig, public_key: str) -> str:
    """The same for the same keys, rules and certificate, on whatever node."""
    said = (
        sorted((each.key, each.userid, each.rolemask) for each in config.keys),
        config.unlisted,
        config.rules,
        config.directory_key,
        public_key,
    )
    return hashlib.sha256(repr(said).encode()).hexdigest()[:FINGERPRINT_CHARS]


def _summary(former: _Read, now: _Read) -> list[str]:
    """What has changed, a phrase for each kind."""
    before, after = former.config, now.config
    said = []
    if changed := len(set(before.keys) ^ set(after.keys)):
        said.append(f"{changed} of [[oslo.keys]]")
    if before.rules != after.rules:
        said.append("[[oslo.rules]]")
    said += [
        f"oslo.{name}"
        for name in ("unlisted", "directory_key")
        if getattr(before, name) != getattr(after, name)
    ]
    if now.certificate is not None and now.certificate != former.certificate:
        said.append(f"our certificate (public key {now.certificate.public_key})")
    return said
