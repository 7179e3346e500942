"""Runs tests of oslo.messaging's functional suite inside the environment of an application; see ``oslo_suite.py``.

::

    python oslo_suite_side.py JSON    {"mode", "url", "folders", "report", "tests"}; without "tests": their names

The suite's files stay as they are. What is done around them, before they are imported:

- native: the suite patches everything with eventlet when it is imported; here that does nothing, and servers for which
  the suite asks for the executor ``eventlet`` get ``threading``;
- two tests leave when the URL does not begin with ``rabbit://``: they are given a URL that says it does, and is what
  it was otherwise;
- where this node's proxy is, is set as the option's default: the suite reads no configuration file, and takes the query
  of a URL for kafka's;
- with several folders, that is nodes, each transport takes the next one: servers and clients then live apart.
"""

import contextlib
import fcntl
import itertools
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
import unittest

WORDS = json.loads(sys.argv[1])
MODULES = (
    "oslo_messaging.tests.functional.test_functional",
    "oslo_messaging.tests.functional.notify.test_logger",
)
GUARDED = ("test_mandatory_call", "test_monitor_long_call")
ALONE = "MetricsTestCase"
"""Binds a fixed port and a fixed socket: one at a time on this machine."""

METRICS_PORT = 3000

if WORDS["mode"] == "native":
    import eventlet

    eventlet.monkey_patch = lambda *_args, **_words: None


class AsIfRabbit(str):
    """A URL that passes for one of rabbit where a test looks at its beginning."""

    __slots__ = ()

    def startswith(self, *arguments):
        return arguments[0] == "rabbit://" or super().startswith(*arguments)


def lifted(test):
    """``test`` without its guard."""

    def run(self):
        self.rpc_url = AsIfRabbit(self.rpc_url)
        return test(self)

    return run


def threading_instead(init):
    """Servers of the suite with the executor that a process without eventlet has."""

    def made(self, transport, dispatcher, executor=None):
        init(self, transport, dispatcher, "threading" if executor == "eventlet" else executor)

    return made


def taking_turns(get_transport, folders):
    """Transports of the suite on one node after the other."""

    def get(conf, url=None, **words):
        return get_transport(conf, url=f"{url}?rpc_zmq_ipc_dir={next(folders)}", **words)

    return get


def prepare():
    import oslo_messaging
    from oslo_config import cfg
    from oslo_messaging import server
    from oslo_messaging.tests.functional import test_functional

    from broker.oslo.driver import options

    cfg.set_defaults(options.OPTIONS, rpc_zmq_ipc_dir=WORDS["folders"][0])
    for name in GUARDED:
        setattr(test_functional.CallTestCase, name, lifted(getattr(test_functional.CallTestCase, name)))
    if WORDS["mode"] == "native":
        server.MessageHandlingServer.__init__ = threading_instead(server.MessageHandlingServer.__init__)
    if len(WORDS["folders"]) > 1:
        folders = itertools.cycle(WORDS["folders"])
        for name in ("get_rpc_transport", "get_notification_transport"):
            setattr(oslo_messaging, name, taking_turns(getattr(oslo_messaging, name), folders))


def check_mode():
    """The run is what it says: a green one that is not green would prove nothing."""
    from eventlet import patcher

    green = bool(patcher.is_monkey_patched("thread") and patcher.is_monkey_patched("time"))
    assert green is (WORDS["mode"] == "patched"), f"mode {WORDS['mode']}, but patched by eventlet: {green}"


def single(suite):
    """The tests of a suite of suites."""
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from single(each)
        else:
            yield each


class Report(unittest.TestResult):
    """A line of JSON for each test."""

    def __init__(self, file):
        super().__init__()
        self.file = file
        self.began = 0.0

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()
        self.say(test, "started")

    def say(self, test, outcome, text=""):
        seconds = round(time.monotonic() - self.began, 2)
        line = {"test": test.id(), "outcome": outcome, "seconds": seconds, "text": text}
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def addSuccess(self, test):
        super().addSuccess(test)
        self.say(test, "passed")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.say(test, "failed", self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self.say(test, "failed", self.errors[-1][1])

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.say(test, "skipped", reason)


class OneAtATime:
    """Holds a lock of this machine, until the program that the test starts has freed its port and its socket.

    The test gives that program a second to begin, and does not wait for its end: neither holds on a busy machine.
    """

    def __enter__(self):
        self.processes = []
        self.file = open(os.path.join(tempfile.gettempdir(), "headgate-oslo-metrics.lock"), "a")
        while True:
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.2)
            else:
                break
        self.popen = subprocess.Popen
        subprocess.Popen = self.started

    def started(self, *arguments, **words):
        """What the test calls as ``Popen``: returns when the program's port is open, or the program has ended."""
        process = self.popen(*arguments, **words)
        self.processes.append(process)
        while process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("localhost", METRICS_PORT), 5):
                break
            time.sleep(0.1)
        return process

    def __exit__(self, *_):
        subprocess.Popen = self.popen
        for process in self.processes:
            process.terminate()
            process.wait()
        self.file.close()


def main():
    found = list(single(unittest.defaultTestLoader.loadTestsFromNames(MODULES)))
    if "tests" not in WORDS:
        print(json.dumps([test.id() for test in found]))
        return
    logging.basicConfig(level=logging.INFO)
    prepare()
    check_mode()
    wanted = set(WORDS["tests"])
    with open(WORDS["report"], "w", encoding="utf-8") as file:
        report = Report(file)
        for test in found:
            if test.id() not in wanted:
                continue
            if ALONE in test.id():
                with OneAtATime():
                    test.run(report)
            else:
                test.run(report)


if __name__ == "__main__":
    main()
