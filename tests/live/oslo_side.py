"""Runs inside the environment of an application of oslo.messaging: servers, listeners, clients driven by JSON lines.

::

    python oslo_side.py server   JSON   {"url", "topic", "server", "exchange", "log", "count", "pause"}
    python oslo_side.py listener JSON   {"url", "topic", "exchange", "pool", "log", "priorities", "requeue",
                                            "pause", "threads"}
    python oslo_side.py client   JSON   {"url"}
    python oslo_side.py forking  JSON   as server, with "workers" and "manager": processes that fork after their setup

``green`` patches everything with eventlet first. Each prints a line of JSON when it is ready. Endpoints append a line
to ``log`` each time they run: what really ran can be read after a SIGKILL, too. Only public interfaces are used.
"""

import json
import os
import signal
import sys
import threading
import time

WORDS = json.loads(sys.argv[2])
if WORDS.get("green"):
    import eventlet

    eventlet.monkey_patch()

import oslo_messaging  # noqa: E402
from oslo_config import cfg  # noqa: E402

EXECUTOR = "eventlet" if WORDS.get("green") else "threading"
CONF = cfg.CONF
CONF([], project="side")


def say(**fields):
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def rpc_transport():
    return oslo_messaging.get_rpc_transport(CONF, url=WORDS["url"])


class Endpoint:
    """What servers offer; every run is a line in the log."""

    def __init__(self, name):
        self.name = name
        self.file = (
            os.open(WORDS["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644) if WORDS.get("log") else -1
        )

    def _ran(self, what):
        if self.file >= 0:
            os.write(self.file, f"{self.name} {os.getpid()} {what}\n".encode())

    def echo(self, ctxt, value=None):
        self._ran("echo")
        return value

    def note(self, ctxt, n):
        if WORDS.get("pause"):
            time.sleep(WORDS["pause"])
        self._ran(n)
        return [self.name, n]

    def who(self, ctxt):
        return [self.name, os.getpid()]

    def slow(self, ctxt, seconds, n=0):
        self._ran(f"begin-{n}")
        time.sleep(seconds)
        self._ran(f"end-{n}")
        return n

    def fail(self, ctxt, text="asked to"):
        raise ValueError(text)

    def context(self, ctxt):
        return ctxt


def make_server(transport, server, endpoint=None):
    target = oslo_messaging.Target(topic=WORDS["topic"], server=server, exchange=WORDS.get("exchange"))
    return oslo_messaging.get_rpc_server(transport, target, [endpoint or Endpoint(server)], executor=EXECUTOR)


def wait_for_signal():
    """Until SIGTERM."""
    told = []  # no Event: a handler that sets one waits for a lock that the interrupted thread may hold
    signal.signal(signal.SIGTERM, lambda *_: told.append(True))
    while not told:
        time.sleep(0.05)


def server():
    transport = rpc_transport()
    names = WORDS.get("servers") or [WORDS["server"]]
    started = [make_server(transport, name) for name in names]
    for each in started:
        each.start()
    say(pid=os.getpid(), servers=names)
    wait_for_signal()
    for each in started:
        each.stop()
    for each in started:
        each.wait()
    transport.cleanup()


class Notified:
    """An endpoint for all priorities, or for those that ``priorities`` lists."""

    def __init__(self, name):
        self.name = name
        self.file = os.open(WORDS.get("log") or os.devnull, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.requeue = WORDS.get("requeue", 0)
        for priority in WORDS.get("priorities") or (
            "audit",
            "debug",
            "info",
            "warn",
            "error",
            "critical",
            "sample",
        ):
            setattr(self, priority, self._take(priority))

    def _take(self, priority):
        def take(ctxt, publisher, event_type, payload, metadata):
            if WORDS.get("pause"):
                time.sleep(WORDS["pause"])
            os.write(
                self.file,
                f"{self.name} {os.getpid()} {priority} {event_type} {json.dumps(payload)}\n".encode(),
            )
            if self.requeue:
                self.requeue -= 1
                return oslo_messaging.NotificationResult.REQUEUE
            return oslo_messaging.NotificationResult.HANDLED

        return take


def listener():
    transport = oslo_messaging.get_notification_transport(CONF, url=WORDS["url"])
    topics = WORDS.get("topics") or [WORDS["topic"]]
    targets = [oslo_messaging.Target(topic=topic, exchange=WORDS.get("exchange")) for topic in topics]
    started = []
    for number in range(WORDS.get("count", 1)):
        made = oslo_messaging.get_notification_listener(
            transport,
            targets,
            [Notified(f"{WORDS.get('name', 'listener')}{number}")],
            executor=EXECUTOR,
            allow_requeue=bool(WORDS.get("requeue")),
            pool=WORDS.get("pool"),
        )
        made.start(override_pool_size=WORDS.get("threads"))
        started.append(made)
    say(pid=os.getpid())
    wait_for_signal()
    for each in started:
        each.stop()
    for each in started:
        each.wait()
    transport.cleanup()


class Heard:
    """An endpoint that keeps the numbers of what came."""

    def __init__(self, numbers):
        self.numbers = numbers

    def info(self, ctxt, publisher, event_type, payload, metadata):
        self.numbers.append(payload["n"])


# -- a client ----------------------------------------------------------------------------------------


class Client:
    """Does what lines of JSON ask for."""

    def __init__(self):
        self.transport = rpc_transport()
        self.numbers = []
        self.notify_transport = oslo_messaging.get_notification_transport(
            CONF, url=WORDS.get("notify_url", WORDS["url"])
        )

    def prepared(self, words):
        target = oslo_messaging.Target(
            topic=words["topic"],
            server=words.get("server"),
            exchange=words.get("exchange"),
            fanout=words.get("fanout"),
        )
        options = oslo_messaging.TransportOptions(at_least_once=True) if words.get("at_least_once") else None
        return oslo_messaging.get_rpc_client(
            self.transport,
            target,
            timeout=words.get("timeout", 10),
            retry=words.get("retry"),
            call_monitor_timeout=words.get("monitor"),
            transport_options=options,
        )

    def call(self, words):
        return self.prepared(words).call(words.get("ctxt", {}), words["method"], **words.get("args", {}))

    def cast(self, words):
        client = self.prepared(words)
        for n in words.get("numbers", [None]):
            args = dict(words.get("args", {}), **({} if n is None else {"n": n}))
            client.cast(words.get("ctxt", {}), words["method"], **args)
        return True

    def notify(self, words):
        notifier = oslo_messaging.Notifier(
            self.notify_transport,
            words.get("publisher", "side"),
            driver=words.get("driver", "messagingv2"),
            topics=[words["topic"]],
            retry=words.get("retry"),
        )
        for n in words.get("numbers", [None]):
            getattr(notifier, words.get("priority", "info"))(
                {}, words.get("event", "event"), words.get("payload", {"n": n})
            )
        return True

    def listen(self, words):
        """Listen in this process, by the transport that notifies; ``heard`` says which numbers came."""
        target = oslo_messaging.Target(topic=words["topic"], exchange=words.get("exchange"))
        made = oslo_messaging.get_notification_listener(
            self.notify_transport, [target], [Heard(self.numbers)], executor=EXECUTOR
        )
        made.start()
        return True

    def heard(self, words):
        return self.numbers

    def load(self, words):
        """Call, or cast, numbers from ``first`` on in some threads for ``during`` seconds; what became of each."""
        client = self.prepared(words)
        done = {"ok": [], "timeout": [], "error": []}
        lock = threading.Lock()
        numbers = iter(range(words.get("first", 0), 1 << 30))
        end = time.monotonic() + words["during"]
        sending = client.cast if words.get("cast") else client.call

        def run():
            while time.monotonic() < end:
                with lock:
                    n = next(numbers)
                try:
                    sending({}, "note", n=n)
                    kind = "ok"
                except oslo_messaging.MessagingTimeout:
                    kind = "timeout"
                except Exception as error:
                    kind = "error"
                    done.setdefault("texts", []).append(f"{type(error).__name__}: {error}")
                with lock:
                    done[kind].append(n)
                if words.get("pause"):
                    time.sleep(words["pause"])

        threads = [threading.Thread(target=run) for _ in range(words.get("threads", 1))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return done

    def cleanup(self, words):
        began = time.monotonic()
        self.transport.cleanup()
        self.notify_transport.cleanup()
        return time.monotonic() - began

    def answer(self, words):
        began = time.monotonic()
        try:
            return {"result": getattr(self, words["do"])(words), "took": time.monotonic() - began}
        except Exception as error:
            return {"error": type(error).__name__, "text": str(error), "took": time.monotonic() - began}


def client():
    made = Client()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    say(pid=os.getpid())
    for line in sys.stdin:
        say(**made.answer(json.loads(line)))


# -- processes that fork --------------------------------------------------------------------------------


class Work:
    """A server in each worker process, made from a transport that the parent made and used before it forked."""

    def __init__(self, transport):
        self.transport = transport
        self.server = None

    def start(self):
        name = f"{WORDS['server']}-{os.getpid()}"
        self.server = make_server(self.transport, name)
        self.server.start()
        endpoint = Endpoint(name)
        endpoint._ran("started")

    def stop(self):
        if self.server is not None:
            self.server.stop()
            self.server.wait()


def used_transport():
    """What services do: a transport that is in use before the workers are forked."""
    transport = rpc_transport()
    target = oslo_messaging.Target(topic=WORDS["topic"], exchange=WORDS.get("exchange"))
    oslo_messaging.get_rpc_client(transport, target).cast({}, "note", n="from-the-parent")
    return transport


def forking():
    transport = used_transport()
    (cotyledon_service if WORDS.get("manager") == "cotyledon" else oslo_service)(transport)


def cotyledon_service(transport):
    import cotyledon

    class Service(cotyledon.Service):
        def __init__(self, worker_id):
            super().__init__(worker_id)
            self.work = Work(transport)

        def run(self):
            self.work.start()

        def terminate(self):
            self.work.stop()

    manager = cotyledon.ServiceManager()
    manager.add(Service, workers=WORDS.get("workers", 2))
    say(pid=os.getpid())
    manager.run()


def oslo_service(transport):
    from oslo_service import service

    class Service(service.ServiceBase):
        def __init__(self):
            self.work = Work(transport)

        def start(self):
            self.work.start()

        def stop(self):
            self.work.stop()

        def wait(self):
            pass

        def reset(self):
            pass

    launcher = service.ProcessLauncher(CONF)
    launcher.launch_service(Service(), workers=WORDS.get("workers", 2))
    say(pid=os.getpid())
    launcher.wait()


if __name__ == "__main__":
    {"server": server, "listener": listener, "client": client, "forking": forking}[sys.argv[1]]()
