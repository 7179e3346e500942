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
from dataclasses import replace
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


class Reload:
    """Reads the settings of a running proxy again, one time after the other.

    Args:
        reactor: whose thread applies them.
        config: in force.
        reread: where from; None: nothing is ever read again.
        acl: of all pipelines.
        pipelines: by name, those that run. directory: None where there is none. They are open: what they have read is
            in force.

    Attributes:
        settings: for STATUS: ``read_at``, seconds since 1970; ``fingerprint`` of keys, rules and certificate;
            ``public_key``, "" in plaintext; how often it went well (``done``), and how often nothing was changed
            because of an error (``refused``).

    Raises:
        ConfigError: the certificate cannot be read.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: NodeConfig,
        reread: Reread | None,
        acl: AccessControl,
        pipelines: Mapping[str, PipelineRoom],
        directory: DirectoryServer | None,
    ) -> None:
        self.settings = acl.settings
        self._reactor = reactor
        self._reread = reread
        self._acl = acl
        self._pipelines = pipelines
        self._directory = directory
        self._wishes = 0
        """How often it was asked since the reading under way began, that one counted in."""
        self._config = config
        self._certificate = _certificate(config)
        self.settings.update(done=0, refused=0)
        self._note()

    def request(self) -> None:
        """Read again, after the reading under way if there is one; for a signal handler."""
        self._reactor.call_threadsafe(self._start)

    def _start(self) -> None:
        if self._reread is not None:
            self._wishes += 1
            if self._wishes == 1:
                threading.Thread(target=self._read, args=(self._reread,), name="reload", daemon=True).start()

    def _read(self, reread: Reread) -> None:
        """In a thread."""
        try:
            config = reread()
            certificate = _certificate(config)
            if (certificate is None) != (self._certificate is None):
                raise ConfigError(
                    "oslo.curve_cert: CURVE is not switched on or off while the proxy runs: restart it"
                )
        except Exception as error:
            self._reactor.call_threadsafe(self._finish, self._refuse, error)
        else:
            self._reactor.call_threadsafe(self._finish, self._apply, config, certificate)

    def _finish(self, do: Callable[..., None], *what: Any) -> None:
        again, self._wishes = self._wishes > 1, 0
        try:
            do(*what)
        finally:
            if again:
                self._start()

    def _refuse(self, error: Exception) -> None:
        self.settings["refused"] += 1
        if isinstance(error, ConfigError):
            said = "; ".join(str(error).splitlines())
            self._reactor.say(logging.ERROR, "reload refused, nothing has changed: %s", (said,))
        else:
            self._reactor.report(error)

    # ------------------------------------------------------------ apply

    def _apply(self, config: NodeConfig, certificate: Certificate | None) -> None:
        changes = [f"oslo.{name}" for name in LATE if getattr(self._config, name) != getattr(config, name)]
        if certificate is not None and certificate != self._certificate:
            changes.append(f"our certificate (public key {certificate.public_key})")
        self._config = replace(self._config, **{name: getattr(config, name) for name in LATE})
        self._certificate = certificate
        self._acl.change(self._config)
        if self._directory is not None:
            self._told(self._directory.renew_from, self._config, certificate)
        dropped = sum(self._told(room.renew, certificate) or 0 for room in self._pipelines.values())
        self.settings["done"] += 1
        self._note()
        left = f"; {dropped} listener{'s' * (dropped != 1)} dropped" if dropped else ""
        said = ", ".join(changes) or "nothing has changed"
        self._reactor.say(logging.INFO, "reloaded: %s%s", (said, left))

    def _told(self, renew: Callable[..., int | None], *what: Any) -> int | None:
        """What ``renew`` returns; None when its port cannot be listened at with the new key."""
        try:
            return renew(*what)
        except ConfigError as error:
            text = "%s; the former certificate is shown there until the proxy is restarted"
            self._reactor.say(logging.ERROR, text, (str(error),))
        return None

    def _note(self) -> None:
        key = "" if self._certificate is None else self._certificate.public_key
        self.settings.update(
            read_at=round(time.time(), 3), fingerprint=fingerprint(self._config, key), public_key=key
        )


def _certificate(config: NodeConfig) -> Certificate | None:
    """Ours. Raises ConfigError."""
    return load(config.curve_cert) if config.curve_cert else None


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
