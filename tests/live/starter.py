"""Processes of this code that cost milliseconds: forked from one that has already imported what they run.

What a gateway imports takes it a second of CPU, a broker a quarter of it, and tests start hundreds of them. The first
process of a kind pays for the imports, in a helper without threads, sockets or event loops; every other one is a copy.
A copy has the words, the environment, the folder and the three streams of a start of its own, and is a child of the
process that asked: ``wait``, signals and ``/proc`` are what they always are.

    started([sys.executable, "-m", "broker.cli.main", "gateway", ...], loads=GATEWAY, stdout=..., stderr=...)
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
BROKER = ("broker.node.bootstrap", "broker.transport.unix", "broker.transport.zeromq")
START = (*BROKER, "broker.cli.start")
GATEWAY = (*BROKER, "gateway.cli.gateway", "gateway.serve")
NFP_BROKER = ("broker.cli.nfp.broker", "broker.nfp.server.process")
NFP = (*NFP_BROKER, "broker.cli.nfp.worker", "broker.nfp.worker")
NFP_SERVICES = ("broker.cli.nfp.services", "broker.nfp.client")
OSLO_PROXY = ("broker.cli.oslo.proxy",)
OSLO_NODE = ("broker.oslo.proxy.process",)
OSLO_SERVER = ("broker.oslo.client",)
CLUSTER = (*GATEWAY, "gateway.cli.cluster", "broker.cli.ping")
UP = (*START, *GATEWAY, "gateway.cli.up")
Stream = IO[bytes] | int | None
_REQUEST_MAX = 1 << 18
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: orphans below this process become its children."""
_one_at_a_time = threading.Lock()
_helper: list[tuple[subprocess.Popen[bytes], socket.socket]] = []


class Started:
    """Of ``subprocess.Popen`` what tests of processes use."""

    def __init__(self, pid: int, stdout: IO[bytes] | None, stderr: IO[bytes] | None) -> None:
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self._reap(os.WNOHANG)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None and timeout is not None:
            watched = os.pidfd_open(self.pid)
            try:
                waiting = select.poll()  # select() knows descriptors up to 1023
                waiting.register(watched, select.POLLIN)
                if not waiting.poll(timeout * 1000):
                    raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            finally:
                os.close(watched)
        if self.returncode is None:
            self._reap(0)
        assert self.returncode is not None
        return self.returncode

    def _reap(self, options: int) -> None:
        pid, status = os.waitpid(self.pid, options)
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def started(
    argv: Sequence[str],
    *,
    loads: Sequence[str],
    stdout: Stream = None,
    stderr: Stream = None,
    env: dict[str, str] | None = None,
    **popen: Any,
) -> subprocess.Popen[bytes] | Started:
    """Run ``python -c CODE ...`` or ``python -m MODULE ...``; ``loads`` is what that will import.

    Where it is to begin with other words, or differently (``popen``), it is started as usual.
    """
    measured = "COVERAGE_PROCESS_CONFIG" in os.environ  # what is forked has no measurement of its own
    if argv[0] != sys.executable or popen or measured:
        return subprocess.Popen(argv, bufsize=0, stdout=stdout, stderr=stderr, env=env, **popen)
    with contextlib.ExitStack() as stack:
        ours: list[IO[bytes] | None] = []
        theirs = [0]
        for number, given in ((1, stdout), (2, stderr)):
            if isinstance(given, int):
                read, write = os.pipe()
                stack.callback(os.close, write)
                ours.append(os.fdopen(read, "rb", 0))
                theirs.append(write)
            else:
                ours.append(None)
                theirs.append(number if given is None else given.fileno())
        pid = _asked(
            {
                "argv": argv[1:],
                "loads": loads,
                "env": dict(os.environ) if env is None else env,
                "cwd": os.getcwd(),
            },
            theirs,
        )
    return Started(pid, *ours)


def ran(
    argv: Sequence[str], *, loads: Sequence[str], env: dict[str, str] | None = None, timeout: float = 30.0
) -> subprocess.CompletedProcess[str]:
    """The same to its end; what it said is kept."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = started(argv, loads=loads, stdout=out, stderr=err, env=env)
        try:
            process.wait(timeout)
        finally:
            process.kill()
            code = process.wait()
        said, complained = (os.pread(each.fileno(), 1 << 24, 0).decode() for each in (out, err))
    return subprocess.CompletedProcess(argv, code, said, complained)


def _asked(request: dict[str, object], streams: Sequence[int]) -> int:
    """The pid of the copy, whose parent leaves it to this process."""
    control = ctypes.CDLL(None).prctl
    with _one_at_a_time:
        if not _helper:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                words = [sys.executable, "-m", __name__, str(theirs.fileno())]
                _helper.append((subprocess.Popen(words, cwd=ROOT, pass_fds=[theirs.fileno()]), ours))
        ((_process, helper),) = _helper
        control(_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(helper, [json.dumps(request).encode()], streams)
            answer = helper.recv(16)
        finally:
            control(_SUBREAPER, 0, 0, 0, 0)
    if not answer:
        _helper.clear()  # the next start has another helper
        raise AssertionError("the helper that starts processes has ended")
    return int(answer)


# ---------------------------------------------------------------- in the helper


def serve(asking: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Start what is asked for until nobody is left to ask; in each copy, return what it is to be, with its streams."""
    while True:
        data, streams, _flags, _address = socket.recv_fds(asking, _REQUEST_MAX, 3)
        if not data:
            return None
        request = json.loads(data)
        if not sys.modules.keys() >= set(request["loads"]):
            for name in request["loads"]:
                importlib.import_module(name)
            gc.collect()
            gc.freeze()  # pages of what exists now stay shared: no collection touches them
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid == 0:
                for each in (asking.detach(), read, write):
                    os.close(each)
                return request, streams
            os.write(write, str(pid).encode())
            os._exit(0)
        os.waitpid(between, 0)  # now the copy is an orphan, and whose child it is has been decided
        asking.send(os.read(read, 16))
        for each in (read, write, *streams):
            os.close(each)


def become(request: dict[str, Any], streams: Sequence[int]) -> None:
    """Be the process that was asked for."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    how, what, *words = request["argv"]
    sys.orig_argv = [sys.executable, *request["argv"]]  # what starts itself anew starts this
    sys.argv = [what if how == "-m" else how, *words]
    if how == "-m":
        sys.exit(importlib.import_module(what).main())
    exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    order = None
    with contextlib.suppress(KeyboardInterrupt):
        order = serve(socket.socket(fileno=int(sys.argv[1])))
    if order is not None:
        become(*order)
