"""JSON bodies: what the broker writes in deployed NorFab's shape, and reading what peers send (pure).

Nothing that a peer sent makes a reader here raise: a body is opaque to the protocol, so what cannot be understood
counts as not said.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, Final, NamedTuple

import msgspec

from broker.nesting import decoder, read_json
from broker.nfp.frames import Body
from broker.nfp.opening import read_object
from broker.safe_text import text

UNREADABLE: Final = "(unreadable)"
"""The task of a body that looks like a JSON object and cannot be read as one. A worker's reader may be more lenient
than ours, so such a body could carry a task that the rules deny: access refuses it to everyone but owners."""

_BLANK: Final = b" \t\r\n\0\xef\xbb\xbf\xfe\xff"
"""What may stand in front of an object for some reader: white space, byte order marks, UTF-16's and UTF-32's zeros."""
_LOOKED_AT_BYTES: Final = 256
"""How far an opening brace is looked for; more blanks than that in front of it are suspicious themselves."""
_UNSAID: Final = (msgspec.MsgspecError, UnicodeError)

PLAIN_DEPTH: Final = 16
"""How deep ``write`` looks into what JSON cannot say; what lies below is one text."""


# -- writing --------------------------------------------------------------------------------------


def _unusual(value: Any) -> Any:
    """What people return as well: paths, and pydantic's models as the JSON that these stand for."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(type(value), "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"a {type(value).__name__} is in it")


encode: Final = msgspec.json.Encoder(enc_hook=_unusual, order=None).encode
"""JSON; raises what there is to be raised where JSON cannot say it, also by what a value does itself."""


def write(value: Any) -> bytes:
    r"""JSON of ``value``, whatever it is: what JSON cannot say is a text in it. Never raises.

    >>> write({"name": "caf\udce9", "why": ValueError("no"), "n": 1})
    b'{"name":"caf\\\\udce9","why":"no","n":1}'
    """
    try:
        return encode(value)
    except BaseException:  # what a value does when it is looked at is not ours
        return encode(_plain(value, ()))


def _plain(value: Any, within: tuple[int, ...]) -> Any:
    """``value`` as JSON can say it; ``within`` are those that hold it."""
    try:
        return msgspec.Raw(encode(value))
    except BaseException:
        if id(value) in within or len(within) >= PLAIN_DEPTH:
            return text(value)
    inner = (*within, id(value))
    try:
        if isinstance(value, Mapping):
            return {text(key): _plain(each, inner) for key, each in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [_plain(each, inner) for each in value]
    except BaseException:  # of a mapping that cannot be gone through its text is left
        return text(value)
    return text(value)


# -- requests -------------------------------------------------------------------------------------


class Head(NamedTuple):
    """What dispatching needs of a job's body."""

    task: str
    """"" when the body names none, or is no JSON; ``UNREADABLE``, see there."""
    timeout_s: float | None
    """None when not said, or not a positive finite number."""


class Request(NamedTuple):
    """A job's body, read for a service that runs in this process."""

    task: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}  # noqa: RUF012 (a default that nobody writes to)
    timeout_s: float | None = None


class _Head(msgspec.Struct, gc=False):
    task: Any = None
    timeout: Any = None


class _Request(_Head, gc=False):
    args: Any = None
    kwargs: Any = None


_read_head: Final = decoder(_Head)
_read_request: Final = decoder(_Request)


def read_head(body: Body) -> Head:
    """Task and timeout of a POST or GET body.

    >>> read_head(b'{"task":"ping","timeout":15}'), read_head(b"plain text").task, read_head(b'{"task":').task
    (Head(task='ping', timeout_s=15.0), '', '(unreadable)')
    """
    try:
        found = _read_head(body)
    except _UNSAID:
        return Head(_not_read(body), None)
    return Head(_task(found.task), _seconds(found.timeout))


def read_request(body: Body) -> Request:
    """The whole body; ``args`` that are no list and ``kwargs`` that are no object count as empty."""
    try:
        found = _read_request(body)
    except _UNSAID:
        return Request(_not_read(body))
    args = tuple(found.args) if isinstance(found.args, list) else ()
    kwargs = found.kwargs if isinstance(found.kwargs, dict) else {}
    return Request(_task(found.task), args, kwargs, _seconds(found.timeout))


def request(task: str, args: Iterable[Any], kwargs: Mapping[str, Any], timeout_s: float | None) -> bytes:
    """The body of a POST (``timeout_s`` None: of a GET, which repeats the rest)."""
    said: dict[str, Any] = {"task": task, "kwargs": dict(kwargs), "args": list(args)}
    if timeout_s is not None:
        said["timeout"] = timeout_s
    return write(said)


def next_offset(body: Body, got: int) -> bytes:
    """The PUT that asks a file worker for the chunk behind ``got`` bytes of what the job's ``body`` asks for."""
    begin = read_request(body).kwargs.get("offset")
    return write({"offset": got + (begin if isinstance(begin, int) else 0)})


def _not_read(body: Body) -> str:
    start = bytes(memoryview(body)[:_LOOKED_AT_BYTES]).lstrip(_BLANK)
    hidden = not start and len(body) > _LOOKED_AT_BYTES
    return UNREADABLE if hidden or start.startswith(b"{") else ""


def _task(said: Any) -> str:
    return said if isinstance(said, str) else ""


def _seconds(said: Any) -> float | None:
    if isinstance(said, bool) or not isinstance(said, (int, float)):
        return None
    try:
        seconds = float(said)
    except OverflowError:
        return None
    return seconds if isfinite(seconds) and seconds > 0 else None


# -- responses ------------------------------------------------------------------------------------


def _of_job(
    status: str, uuid: str, service: str, target: str, workers: Iterable[str] | None
) -> dict[str, Any]:
    return {
        "workers": None if workers is None else list(workers),
        "uuid": uuid,
        "target": target,
        "status": status,
        "service": service,
    }


def submitted(
    uuid: str, service: str, target: str, workers: Iterable[str] | None, missing: Iterable[str] = ()
) -> bytes:
    """202: the job goes to ``workers`` (none yet: late binding). 300 to a POST where that is None: no worker at
    present, the job waits.

    ``missing`` are workers that are not there: names that nobody ever registered, and of all workers those that are
    lost at the moment.
    """
    status = "PENDING" if workers is None else "DISPATCHED"
    said = _of_job(status, uuid, service, target, workers or ())
    if absent := list(missing):
        said["missing"] = absent
    return write(said)


def progress(uuid: str, service: str, worker: str, status: str = "PENDING") -> bytes:
    """300 to a GET; ``status`` is PENDING or STARTED. ``worker`` is left out when "": nobody was chosen."""
    said = {"uuid": uuid, "service": service, "status": status}
    return write({"worker": worker, **said} if worker else said)


def accepted(uuid: str, service: str, worker: str) -> bytes:
    """201: ``worker`` has stored the job."""
    return write({"worker": worker, "uuid": uuid, "status": "ACCEPTED", "service": service})


FAILED: Final = {400: "FAILED", 404: "JOB NOT FOUND", 408: "EXPIRED", 417: "CANCELLED", 500: "FAILED"}


def failed(
    code: int, uuid: str, service: str, target: str, error: str, worker: str = "", *, word: str = ""
) -> bytes:
    """400, 404, 408, 417 or 500. Deployed clients show ``error``; ``errors`` is where NorFab's broker writes it.

    ``worker`` is whose part of the job failed; left out when "". ``word`` is the status of the body; "": that of
    ``code``.
    """
    said = _of_job(word or FAILED.get(code, "FAILED"), uuid, service, target, None)
    said |= {"errors": [error], "error": error}
    return write({"worker": worker, **said} if worker else said)


def cancelled(
    uuid: str, service: str, target: str, workers: Iterable[str] = (), status: str = "CANCELLED"
) -> bytes:
    """202 to a DELETE: cancelled, and ``workers`` that ran it are told. Another ``status``: how it had ended before."""
    return write(_of_job(status, uuid, service, target, workers))


def event(
    kind: str,
    *,
    worker: str,
    service: str,
    uuid: str,
    task: str,
    message: str,
    status: str,
    timestamp: str,
    resource: Iterable[str] = (),
    severity: str = "INFO",
    extras: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
) -> bytes:
    """An EVENT's body with NorFab's fields.

    ``kind`` is progress, result_ready, input_request or input_response; ``timestamp`` is local time as
    ``dd-Mon-YYYY HH:MM:SS.mmm``; ``extras`` and ``timeout_s`` are left out when None.
    """
    said: dict[str, Any] = {
        "worker": worker,
        "service": service,
        "uuid": uuid,
        "event_type": kind,
        "message": message,
        "task": task,
        "status": status,
        "resource": list(resource),
        "severity": severity,
        "timestamp": timestamp,
    }
    if extras is not None:
        said["extras"] = dict(extras)
    if timeout_s is not None:
        said["timeout"] = timeout_s
    return write(said)


class _Event(msgspec.Struct, gc=False):
    event_type: Any = None


_read_event: Final = decoder(_Event)
_read_uuids: Final = decoder(list[str])


def event_kind(body: Body) -> str:
    """``event_type`` of an EVENT's body; "" when it says none."""
    try:
        said = _read_event(body).event_type
    except _UNSAID:
        return ""
    return said if isinstance(said, str) else ""


RECORDED: Final = "RECORDED"
"""Text of a RESPONSE 200 from the broker to a worker: the results of these jobs are safe."""
CONFIRMED: Final = "CONFIRMED"
"""The same: these jobs are the worker's, and those that have not begun may begin."""


UNBEGUN: Final = b'{"unless":"begun"}'
"""The body of a DELETE that takes a job back only when its task has not begun."""


def unless_begun(body: Body) -> bool:
    """Whether a DELETE is such a one."""
    return read_object(body).get("unless") == "begun"


def uuids(of_jobs: Iterable[str]) -> bytes:
    """The body of "200 RECORDED" and "200 CONFIRMED"."""
    return write(list(of_jobs))


def read_uuids(body: Body) -> list[str]:
    """The uuids in it; [] when it is something else."""
    try:
        return _read_uuids(body)
    except _UNSAID:
        return []


class _Verdict(msgspec.Struct, gc=False):
    failed: Any = None


_read_verdicts: Final = decoder(dict[str, _Verdict])
_MAY_SAY_FAILED: Final = re.compile(rb'"failed"\s*:\s*true').search


def says_failed(body: Body) -> bool:
    """Whether a worker's result, ``{worker: {"failed": true, ...}}``, says that its task failed.

    For the protocol that is a result like any other (200); for people it is the news.

    >>> says_failed(b'{"w1":{"result":null,"failed":true}}'), says_failed(b'{"w1":{"result":1}}'), says_failed(b"true")
    (True, False, False)
    """
    if body is None or _MAY_SAY_FAILED(body) is None:  # most results: a tenth of what reading them costs
        return False
    try:
        return any(said.failed is True for said in _read_verdicts(body).values())
    except _UNSAID:
        return False


# -- several results in one answer ----------------------------------------------------------------

_read_members: Final = decoder(dict[str, msgspec.Raw])


def aggregate(results: Mapping[str, Body]) -> bytes:
    """One JSON object of every worker's result, for the text's single answer to a GET.

    A body of the form ``{worker: X}`` gives X; other JSON stands as it came; anything else as ``{"base64": ...}``.

    >>> aggregate({"w1": b'{"w1":{"result":1}}', "w2": b"[2]", "w3": bytes([255])})
    b'{"w1":{"result":1},"w2":[2],"w3":{"base64":"/w=="}}'
    """
    return write({worker: _embedded(worker, bytes(body)) for worker, body in results.items()})


def _embedded(worker: str, body: bytes) -> msgspec.Raw | dict[str, str]:
    try:
        body.decode()
        whole = read_json(body)
        if isinstance(whole, dict) and whole.keys() == {worker}:
            return _read_members(body)[worker]
    except _UNSAID:
        return {"base64": b64encode(body).decode()}
    return msgspec.Raw(body)


# -- the address a worker echoes ------------------------------------------------------------------

TOKEN_NAME_CHARS: Final = 64
"""Of the client's name in a token: enough for people to recognise it in a worker's log."""


def make_token(client: bytes, attempt: int) -> bytes:
    """The address written to a worker: ``<client>#<attempt>``.

    Names that are not printable ASCII, or longer than 64 bytes, are written as hexadecimal digits of their first 32.

    >>> make_token(b"cli-1", 2), make_token(bytes([0, 255]), 1)
    (b'cli-1#2', b'00ff#1')
    """
    plain = len(client) <= TOKEN_NAME_CHARS and client.isascii() and client.decode().isprintable()
    return b"%s#%d" % (client if plain else client[: TOKEN_NAME_CHARS // 2].hex().encode(), attempt)


def read_token(address: bytes) -> int:
    """The attempt in an address that a worker echoed; 0 when it is no token.

    >>> read_token(b"a#b#12"), read_token(b"cli-1"), read_token(b"c#1x")
    (12, 0, 0)
    """
    _, mark, digits = address.rpartition(b"#")
    return int(digits) if mark and digits.isdigit() and len(digits) <= 9 else 0


def token_client(address: bytes | None) -> str:
    """The client in an address, as people read it; "" without address.

    >>> token_client(b"cli-1#2"), token_client(b"a#b"), token_client(None)
    ('cli-1', 'a#b', '')
    """
    text = (address or b"").decode("utf-8", "replace")
    return text.rpartition("#")[0] if address and read_token(address) else text
