"""A server process to be frozen and killed: registers at a control file, pulses, answers calls, tells what it was cast.

    python -m tests.live.oslo_child PIPELINE FOLDER EXCHANGE TOPIC SERVER

Each call is answered with the name of the server; each cast is printed as a line. Both give their credit back.
"""

from __future__ import annotations

import secrets
import sys
import time

import zmq

from broker.oslo.frames import Kind, decode, encode, new_id
from broker.oslo.records import Opening, Record, to_json
from tests.live.oslo_wire import hear

PULSE_S = 0.05
CREDIT = {"call": 1000, "cast": 30}


def main(pipeline: str, folder: str, exchange: str, topic: str, server: str) -> None:
    context = zmq.Context()
    control = context.socket(zmq.DEALER)
    control.connect(f"ipc://{folder}/{pipeline}.ctl")
    listener = secrets.token_hex(12)
    opening = to_json(Opening(listener, (Record(exchange, topic, server, listener),), None, CREDIT[pipeline]))
    control.send_multipart([encode(Kind.OPEN, id=new_id()), opening])
    next_pulse_s = 0.0
    while True:
        if time.monotonic() >= next_pulse_s:
            next_pulse_s = time.monotonic() + PULSE_S
            control.send_multipart([encode(Kind.PULSE), b""])
        if control.poll(5):
            frames = hear(control)
            envelope = decode(frames[0])
            if envelope.kind == Kind.OPENED:
                print("open", flush=True)
            elif envelope.kind == Kind.REFUSED:
                control.send_multipart([encode(Kind.OPEN, id=new_id()), opening])
            elif envelope.kind == Kind.CAST:
                print(frames[1].decode(), flush=True)
            elif envelope.kind == Kind.CALL:
                control.send_multipart([encode(Kind.REPLY, id=envelope.id), frames[1], server.encode()])
            if envelope.kind in (Kind.CALL, Kind.CAST):
                control.send_multipart([encode(Kind.CREDIT, listeners=(listener,), word=1), b""])


if __name__ == "__main__":
    main(*sys.argv[1:])
