"""How far an answer must equal the captured one.

Type, errnum, topic, flags, matchtag, credentials and payload: text to the byte, a JSON object in its keys at every
depth and in all values but those that belong to one instance or one moment.
"""

import json
import os
from typing import Any

from broker.wire.message import TYPE_NAMES, Message
from tests.replay.other_side import Heard

VOLATILE = {
    "child-rpc", "connects", "duration", "enable", "hostlist", "names", "pid", "rxbacklog", "rxcount", "seq",
    "start", "time.tv_nsec", "time.tv_sec", "txcount", "uuid",
}  # fmt: skip
"""JSON keys whose values differ from run to run."""
COUNTED = {"request", "response", "event", "control"}
TEXT_BYTES = 63
"""Where deployed brokers cut the text of an ENOSYS off."""
GUEST_UID = 65533
OPEN_ENDED = {"config.get", "job-manager.queue-status", "resource.status"}
"""Topics whose answer may hold more than what was captured: a client looks for one table in it."""


def check(seen: Message, expected: dict[str, Any]) -> None:
    """AssertionError unless ``seen`` answers as ``expected`` (the ``decoded`` of a record) did."""
    assert TYPE_NAMES[seen.type] == expected["type"]
    assert seen.topic == expected["topic"]
    if seen.type == 2:
        assert seen.errnum == expected["errnum"], f"errnum {seen.errnum}: {seen.payload!r}"
        assert seen.matchtag == expected["matchtag"]
        assert len(seen.routes) == len(expected["routes"])
    if seen.type == 4:
        assert seen.sequence > 0
        assert seen.aux2 == expected["unused"]
    assert hex(seen.flags) == hex(expected["flags"])
    assert (seen.userid, seen.rolemask) in credentials(expected)
    payload(seen.payload, expected)


def credentials(expected: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    """Deployed connectors answer for themselves as nobody with the owner's role; in ours the broker answers."""
    captured = (of_owner(expected["userid"]), expected["rolemask"])
    return (captured, (os.getuid(), 5)) if captured == (0xFFFFFFFF, 1) else (captured,)


def of_owner(userid: int) -> int:
    """The captured instance belonged to uid 0, ours to whoever runs the tests; its guest nobody, whom ours refuse."""
    return {0: os.getuid(), 65534: GUEST_UID}.get(userid, userid)


def payload(seen: bytes | None, expected: dict[str, Any]) -> None:
    if "payload_json" in expected:
        assert seen is not None
        assert seen.endswith(b"\0")
        shape(json.loads(seen[:-1]), expected["payload_json"], more=expected["topic"] in OPEN_ENDED)
    elif "payload_hex" in expected:
        wanted = bytes.fromhex(expected["payload_hex"])
        if wanted[:1] == b"<" and expected["topic"] == "log.dmesg":
            assert seen is not None
            assert seen[:1] == b"<"
            assert seen[-1:] == b"\0"
        else:
            assert seen in (wanted, wanted[:TEXT_BYTES] + b"\0")
    else:
        assert len(seen or b"") == expected.get("payload_len", 0)


def shape(seen: Any, expected: Any, key: str = "", *, more: bool = False) -> None:
    """Same keys everywhere, same values unless VOLATILE."""
    if isinstance(expected, dict):
        assert isinstance(seen, dict)
        differ = expected.keys() - seen.keys() if more else expected.keys() ^ seen.keys()
        assert not differ, f"{key}: keys differ: {sorted(differ)}"
        for name in expected:
            shape(seen[name], expected[name], name, more=more)
    elif key in VOLATILE or key in COUNTED:
        assert isinstance(seen, type(expected)) or {type(seen), type(expected)} <= {int, float}
    elif key == "route":
        assert all(len(hop) == 8 or hop.startswith(("a", "b")) for hop in seen.split("!"))
    elif isinstance(expected, list):
        assert isinstance(seen, list)
        if expected and isinstance(expected[0], dict):
            assert seen
            for one, two in zip(seen, expected, strict=False):
                shape(one, two, key)
        else:
            assert seen == expected
    elif key == "userid":
        assert seen == of_owner(expected)
    elif isinstance(expected, str) and expected == "":
        assert isinstance(seen, str)
    else:
        assert seen == expected, f"{key}: {seen!r}, captured {expected!r}"


def heard(topic: str, matchtag: int, flags: int, answer: Heard) -> dict[str, Any]:
    """A ``decoded`` for a response that the capture left out."""
    out: dict[str, Any] = {
        "type": "response",
        "topic": topic,
        "errnum": answer.errnum,
        "matchtag": matchtag,
        "flags": (flags & ~2) | 8 | (2 if answer.payload is not None else 0),
        "userid": answer.userid,
        "rolemask": answer.rolemask,
        "routes": [],
    }
    if isinstance(answer.payload, dict):
        out["payload_json"] = answer.payload
    elif isinstance(answer.payload, str):
        out["payload_hex"] = (answer.payload + "\0").encode().hex()
    return out
