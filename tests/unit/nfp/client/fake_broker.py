"""A broker made by hand: a ROUTER and a few pretended workers, in a thread of its own.

`push=True` behaves as ours does to a client whose OPEN asks for push; `push=False` as deployed NorFab's: OPEN is not
answered, a finished job is told by result_ready and its result sent when it is asked for.
"""

import hashlib
import queue
import threading
import time

import msgspec
import zmq

from broker.nfp.frames import Packet, decode, encode
from broker.nfp.names import Command, Sender

END_S = 10.0


def body(**said):
    return msgspec.json.encode(said)


def result(value, failed=False, errors=()):
    return {"result": value, "failed": failed, "errors": list(errors), "task": "t", "status": "completed"}


class FakeBroker:
    """See the module.

    Attributes:
        workers: service -> names. files: url -> bytes, at every worker of filesharing.
        seen: (command, uuid, target names, body) of every packet of a client.
        tells: what else is in its OPEN.
        ignore: how many POSTs to pass over in silence.
    """

    def __init__(self, push=True, epoch="e1", endpoint="tcp://127.0.0.1:*"):
        self.push = push
        self.epoch = epoch
        self.tells = {}
        self.workers = {"dummy": ["w1", "w2"], "filesharing": ["f1", "f2"]}
        self.files = {}
        self.seen = []
        self.ignore = 0
        self.jobs = {}
        self.total = 0
        self.listed = {}
        self.events = []
        self.subscriptions = []
        self.inputs = {}
        self.chunks_left = {}
        self.corrupt = 0
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.bind(endpoint)
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._actions = queue.SimpleQueue()
        self._leave = threading.Event()
        self._problem = None
        self._thread = threading.Thread(target=self._main)
        self._changed = threading.Condition()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._leave.set()
        self._thread.join(END_S)
        if self._problem is not None:
            raise self._problem

    def do(self, action):
        """Run `action()` in the broker's thread and return what it returns."""
        done = queue.SimpleQueue()
        self._actions.put(lambda: done.put(action()))
        return done.get(timeout=END_S)

    def wait_for(self, condition):
        """Wait until `condition(self)` is true."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), END_S), self.seen[-20:]

    def count(self, command):
        return sum(seen[0] == command for seen in self.seen)

    # -- the thread --------------------------------------------------------------------------------

    def _main(self):
        try:
            while not self._leave.is_set():
                if self._socket.poll(5):
                    frames = self._socket.recv_multipart()
                    self._received(frames[0], decode(frames[1:]))
                while not self._actions.empty():
                    self._actions.get()()
                with self._changed:
                    self._changed.notify_all()
        except Exception as error:
            self._problem = error
        finally:
            self._socket.close()
            self._context.term()

    def send(self, client, command, uuid, status, said=b"", service="dummy", sequence=None):
        data = said if isinstance(said, bytes) else msgspec.json.encode(said)
        packet = Packet(Sender.BROKER, command, service=service, uuid=uuid, status=status, body=data)
        packet.sequence = sequence
        self._socket.send_multipart([client, *encode(packet)])

    def _received(self, client, packet):
        names = packet.target.names if packet.target else ()
        self.seen.append(
            (packet.command.name, packet.uuid, names or (packet.target and packet.target.kind), packet.data)
        )
        handle = getattr(self, f"_{packet.command.name.lower()}", None)
        assert handle is not None, packet
        handle(client, packet)

    def _open(self, client, packet):
        if self.push:
            said = {"broker": "headgate", "features": ["push"], "epoch": self.epoch, **self.tells}
            answer = Packet(Sender.BROKER, Command.OPEN, body=msgspec.json.encode(said))
            self._socket.send_multipart([client, *encode(answer)])

    def _chosen(self, packet):
        everybody = self.workers.get(packet.service, [])
        if packet.target.kind == "any":
            return everybody[:1]
        if packet.target.kind == "all":
            return list(everybody)
        return [name for name in packet.target.names if name in everybody]

    def _post(self, client, packet):
        if self.ignore:
            self.ignore -= 1
            return
        uuid, known = packet.uuid, self.jobs.get(packet.uuid)
        if known is not None:  # a broker of NorFab passes it on, and the workers know it
            known["client"] = client
            self.send(client, Command.RESPONSE, uuid, 202, {"workers": known["workers"]}, packet.service)
            for worker in known["results"] if self.push else ():
                self._told(uuid, worker)
            return
        asked = msgspec.json.decode(packet.data)
        workers = self._chosen(packet)
        self.jobs[uuid] = {
            "client": client,
            "workers": workers,
            "results": {},
            "service": packet.service,
            **asked,
            "runs": 1,
        }
        if not workers:
            status = 300 if self.push else 400
            said = {"workers": None, "uuid": uuid, "status": "PENDING" if self.push else "FAILED"}
            said["errors"] = [] if self.push else [f"{packet.service} service failed to target workers"]
            self.send(client, Command.RESPONSE, uuid, status, said, packet.service)
            return
        late = self.push and packet.target.kind == "any"
        first = {"workers": [] if late else workers, "uuid": uuid, "status": "DISPATCHED"}
        self.send(client, Command.RESPONSE, uuid, 202, first, packet.service)
        for worker in workers:
            self.send(
                client, Command.RESPONSE, uuid, 201, {"worker": worker, "status": "ACCEPTED"}, packet.service
            )
        if late:
            self.send(client, Command.RESPONSE, uuid, 202, {"workers": workers}, packet.service)
        for worker in workers:
            self._run(uuid, worker)

    def _run(self, uuid, worker):
        job = self.jobs[uuid]
        task, kwargs = job["task"], job["kwargs"]
        if task == "ping":
            self.event(uuid, worker, "progress", "starting")
            self.finish(uuid, worker, kwargs.get("n", "pong"))
        elif task == "fail":
            self.finish(uuid, worker, None, failed=True, errors=["Traceback ...\nValueError: no"])
        elif task == "ask":
            asked = {"id": f"q-{worker}", "question": "really?"}
            self.event(uuid, worker, "input_request", "really?", extras={"input_request": asked})
        elif task == "stream":
            for number in range(kwargs["chunks"]):
                self.send(job["client"], Command.STREAM, uuid, 200, bytes([number]) * 10, job["service"])
            self.finish(uuid, worker, kwargs["chunks"])
        elif task in ("file_details", "list_files", "fetch_file"):
            self._file_task(uuid, worker, task, kwargs)

    def event(self, uuid, worker, kind, message, **more):
        job = self.jobs[uuid]
        said = {"event_type": kind, "worker": worker, "message": message, "uuid": uuid, **more}
        self.send(job["client"], Command.EVENT, uuid, 200, said, job["service"])

    def finish(self, uuid, worker, value, failed=False, errors=()):
        job = self.jobs[uuid]
        job["results"][worker] = {worker: result(value, failed, errors)}
        if self.push:
            self._told(uuid, worker)
        else:
            self.event(uuid, worker, "result_ready", "completed")

    def _told(self, uuid, worker):
        job = self.jobs[uuid]
        self.send(job["client"], Command.RESPONSE, uuid, 200, job["results"][worker], job["service"])

    def _get(self, client, packet):
        job = self.jobs.get(packet.uuid)
        if job is None:
            text = {"error": "unknown job", "status": "FAILED"}
            self.send(client, Command.RESPONSE, packet.uuid, 400, text, packet.service)
            return
        job["client"] = client
        names = packet.target.names or job["workers"]
        if not self.push:
            self.send(client, Command.RESPONSE, packet.uuid, 202, {"workers": list(names)}, packet.service)
        for name in names:
            if name in job["results"]:
                self._told(packet.uuid, name)
            else:
                said = {"worker": name, "status": "STARTED"}
                self.send(client, Command.RESPONSE, packet.uuid, 300, said, packet.service)

    def _delete(self, client, packet):
        if not self.push:
            return
        self.jobs.pop(packet.uuid, None)
        said = {"workers": [], "uuid": packet.uuid, "status": "CANCELLED"}
        self.send(client, Command.RESPONSE, packet.uuid, 202, said, packet.service)

    def _put(self, client, packet):
        job = self.jobs[packet.uuid]
        said = msgspec.json.decode(packet.data)
        for worker in packet.target.names or job["workers"]:
            if "offset" in said:
                self._chunk(packet.uuid, worker, said["offset"])
            else:
                self.inputs[worker] = said
                self.finish(packet.uuid, worker, said.get("value"))

    # -- files -------------------------------------------------------------------------------------

    def _file_task(self, uuid, worker, task, kwargs):
        data = self.files.get(kwargs["url"])
        if task == "list_files":
            self.finish(uuid, worker, sorted(url.removeprefix("nf://") for url in self.files))
        elif data is None:
            absent = {"exists": False, "md5hash": None, "size_bytes": None}
            self.finish(uuid, worker, absent, failed=True, errors=["file not found"])
        elif task == "file_details":
            found = {"exists": True, "size_bytes": len(data), "md5hash": hashlib.md5(data).hexdigest()}
            if self.push:
                found["sha256"] = hashlib.sha256(data).hexdigest()
            self.finish(uuid, worker, found)
        else:
            self._chunk(uuid, worker, kwargs["offset"])

    def _chunk(self, uuid, worker, offset):
        job = self.jobs[uuid]
        if job["results"]:
            return
        left = self.chunks_left.get(worker)
        if left == 0:
            del self.chunks_left[worker]
            self.finish(uuid, worker, None, failed=True, errors=["chunk timeout reached"])
            return
        if left is not None:
            self.chunks_left[worker] = left - 1
        data = self.files[job["kwargs"]["url"]]
        size = job["kwargs"]["chunk_size"]
        chunk = data[offset : offset + size]
        if self.corrupt and chunk:
            self.corrupt -= 1
            chunk = bytes([chunk[0] ^ 1]) + chunk[1:]
        if chunk:
            self.send(job["client"], Command.STREAM, uuid, 200, chunk, job["service"])
        if offset + size >= len(data):
            self.finish(uuid, worker, True)

    # -- questions ---------------------------------------------------------------------------------

    def _mmi(self, client, packet):
        asked = msgspec.json.decode(packet.data)
        status, said = self._answer(client, packet, asked["task"], asked["kwargs"])
        for command in (Command.RESPONSE, Command.MMI):
            self.send(client, command, packet.uuid, status, said, packet.service)

    def _answer(self, client, packet, task, kwargs):
        if packet.service == "events.service.broker":
            if not self.push:
                return 400, {"workers": None, "status": "FAILED", "errors": ["no such service"]}
            return 200, self._event_task(client, packet.uuid, task, kwargs)
        if packet.service == "sid.service.broker":
            return 200, {"hosts": [kwargs["name"]]}
        if packet.service == "jobs.service.broker":
            return self._job_task(task, kwargs)
        if task == "show_workers":
            found = [(name, service) for service, names in self.workers.items() for name in names]
            return 200, [{"name": name, "service": service, "status": "alive"} for name, service in found]
        if task == "show_services" and self.push:
            return 200, [
                {"name": name, "workers": names, "alive": len(names), "idle": 1, "queued": 0, "running": 0}
                for name, names in self.workers.items()
            ]
        return (400, {"error": f"no task {task!r}"}) if self.push else (200, f"Unsupported task '{task}'")

    def _job_task(self, task, kwargs):
        if task == "list":
            self.listed = kwargs
            jobs = [self._shown(uuid) for uuid in self.jobs]
            return 200, {"jobs": jobs, "total": self.total or len(jobs), "more": False}
        if kwargs["uuid"] not in self.jobs:
            return 400, {"error": f"job {kwargs['uuid']!r} is not known"}
        return 200, self._shown(kwargs["uuid"])

    def _shown(self, uuid):
        job = self.jobs[uuid]
        failed = [worker for worker, said in job["results"].items() if said[worker]["failed"]]
        return {
            "uuid": uuid,
            "service": job["service"],
            "task": job["task"],
            "target": "all",
            "client": "c",
            "holder": "peer:c",
            "state": "failed" if failed else "done" if job["results"] else "open",
            "age_s": 1.0,
            "remaining_s": 60.0,
            "workers": job["workers"],
            "failed": failed,
            "attempts": 1,
            "asked": [],
            "userid": 0,
            "took_s": 0.5,
            "arguments": {"args": job.get("args", []), "kwargs": job.get("kwargs", {})},
            "result": "" if failed else "1",
            "error": "ValueError: no such device" if failed else "",
            "parts": [
                {
                    "name": worker,
                    "worker": worker,
                    "attempt": 1,
                    "state": "final",
                    "status": 200,
                    "size": 7,
                    "ended": "failed" if worker in failed else "done",
                    "result": None,
                    "error": "ValueError: no such device" if worker in failed else "",
                    "traceback": "Traceback (most recent call last):" if worker in failed else "",
                }
                for worker in job["results"]
            ],
        }

    def publish(self, kind, uuid="u", service="dummy", worker="w1"):
        """Something happened, for subscribers."""
        said = {
            "kind": kind,
            "uuid": uuid,
            "service": service,
            "worker": worker,
            "sequence": len(self.events) + 1,
            "epoch": self.epoch,
            "event": {"message": f"{kind} of {uuid}"},
        }
        self.events.append(said)
        for client, _ident, wish in self.subscriptions:
            self._deliver(client, wish, said)

    def _deliver(self, client, wish, said):
        if all(not wish.get(key) or wish[key] == said[key] for key in ("uuid", "service")):
            self.send(client, Command.EVENT, said["uuid"], 200, said, said["service"], said["sequence"])

    def _event_task(self, client, ident, task, kwargs):
        if task == "unsubscribe":
            ended = kwargs["subscription"]  # "": all of the client's
            self.subscriptions = [
                one for one in self.subscriptions if (one[1] != ended if ended else one[0] != client)
            ]
            return {"ended": 1}
        if task == "read":
            gap, since = None, kwargs["since"]
            if kwargs["epoch"] != self.epoch:
                gap, since = {"reason": "the broker was started anew", "first": 0, "last": 0}, 0
            events = [said for said in self.events if said["sequence"] > since][: kwargs["limit"]]
            at = events[-1]["sequence"] if events else since
            return {"events": events, "next": at, "epoch": self.epoch, "gap": gap}
        self.subscriptions.append((client, ident, kwargs))
        return {"subscription": ident, "epoch": self.epoch, "sequence": len(self.events)}


def until(condition, seconds=END_S):
    """Wait in a plain thread until `condition()` is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)
