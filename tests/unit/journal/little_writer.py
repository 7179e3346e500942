"""A writer of a few lines: ``python little_writer.py FD JSON`` keeps each chunk it gets as a file and says so.

What kind of writer it is stands in the name it was given: ``plain``; ``slow`` reads nothing before the file ``go`` is
there; ``failed_start`` dies at once; ``full`` reports a full disk at its second chunk; ``mute`` stays when all is said.

It is started for almost every test, so it loads nothing of the product: the forms are those of ``journal.marks``.
"""

import errno
import json
import os
import socket
import sys
import time
from pathlib import Path
from struct import Struct

CHUNK_HEAD, REPORT = Struct("<4sIQII"), Struct("<IIQQ")
READY, WRITTEN, OFF = 1, 2, 3


class LittleWriter:
    def __init__(self, sock, options):
        self.sock, self.kind = sock, options["writer"]
        self.folder = Path(options["directory"])
        self.earlier = len(list(self.folder.glob("*.chunk")))
        self.number = self.records = 0
        known = [self.kept(path) for path in sorted(self.folder.glob("*.chunk"))]
        self.next = known[-1] if known else 0

    @staticmethod
    def kept(path):
        """The number behind the last record of a chunk."""
        _magic, _length, first, records, _cause = CHUNK_HEAD.unpack_from(path.read_bytes())
        return first + records

    def run(self):
        if self.kind == "failed_start":
            sys.exit(3)
        while self.kind == "slow" and not (self.folder / "go").exists():
            time.sleep(0.005)
        self.say(READY, 0, self.next, 0)
        with self.sock.makefile("rb") as stream:
            while head := stream.read(CHUNK_HEAD.size):
                length = CHUNK_HEAD.unpack(head)[1]
                body = stream.read(length)
                if len(body) < length:
                    break
                self.take(head, head + body)
        while self.kind == "mute":
            time.sleep(60)

    def take(self, head, chunk):
        if self.kind == "full" and self.number == 1:
            self.say(OFF, errno.ENOSPC, self.records, 0)
            sys.exit(0)
        path = self.folder / f"{self.earlier + self.number:06d}"
        path.write_bytes(chunk)
        path.rename(path.with_suffix(".chunk"))
        self.number += 1
        self.records = CHUNK_HEAD.unpack(head)[2] + CHUNK_HEAD.unpack(head)[3]
        self.say(WRITTEN, 0, self.records, self.number)

    def say(self, *what):
        self.sock.sendall(REPORT.pack(*what))


if __name__ == "__main__":
    ours = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(ours.fileno(), False)
    LittleWriter(ours, json.load(sys.stdin)).run()
