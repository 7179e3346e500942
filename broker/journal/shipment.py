"""The process that ships a writer's segments to a store, seen from the broker whose traffic they hold.

It ends by itself: a pipe to it is all that holds it, and once that is closed it ships what the writer left.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import threading
from collections.abc import Sequence
from typing import Final

import msgspec

from broker import interpreter
from broker.endings import in_words
from broker.journal.options import JournalOptions
from broker.secret import revealed

log = logging.getLogger("headgate")

SHIPPER: Final = interpreter.command("broker.journal.shipping")
"""The command; its options, with the URL that may have a key in it, are the first line of its input."""
RETRY_S: Final = 60.0
"""How long after its end another one is started."""


class Shipment:
    """One shipper, for as long as its journal is recorded.

    Args:
        options: of the writer; ``ship_to`` says where to.
        command: what is started instead of ``SHIPPER``.
    """

    def __init__(self, options: JournalOptions, command: Sequence[str] = SHIPPER) -> None:
        self._command = command
        self._told = msgspec.json.encode(options, enc_hook=revealed) + b"\n"
        self._leaving = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="journal shipment", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._leaving.is_set():
            try:
                with self._lock:
                    self._process = self._spawn()
                    self._tell(self._process)
                how = f"with {in_words(self._process.wait())}"
                self._hang_up()
            except OSError as error:
                how = f"({error.strerror})"
            if not self._leaving.is_set():
                log.error("journal: the process that ships ended %s; another one in %g s", how, RETRY_S)
                self._leaving.wait(RETRY_S)

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is not for it: what is left is shipped then
        )

    def _tell(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended at once: its code is told
            process.stdin.write(self._told)
            process.stdin.flush()

    def close(self) -> None:
        """Let it ship what is left and end; does not wait for that."""
        self._leaving.set()
        self._hang_up()

    def _hang_up(self) -> None:
        with self._lock:
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join()
