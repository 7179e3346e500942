"""The tables of the broker's store.

A row that holds a body is written once and never updated (SQLite would rewrite the whole body): what changes lives in
``parts``, and ``closed`` says that a job has ended. A part is final when it has a row in ``results``; one that was
never given to anybody stands in ``jobs.parts`` alone, a JSON array of names. ``parts.earlier`` is a JSON array of the
[worker, attempt] pairs that it was given to before the present one, ``parts.owner`` who a client was told has it.
``workers.gone`` is when a worker left, NULL while it is there, ``LOST`` while its connection is broken. Times are of
the store's clock (see ``clock``), but for ``jobs.submitted_s``.
"""

from __future__ import annotations

from typing import Final

from broker.nfp.store import clock
from broker.nfp.store.database import Schema

WAITING, DISPATCHED, ACCEPTED = range(3)
"""``parts.state``; what a final part was in before stays there."""
STATES: Final = ("waiting", "dispatched", "accepted")

LOST: Final = -1.0
"""``workers.gone``; the store's clock has no such time."""

_TABLES: Final = f"""
{clock.TABLE}
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, service TEXT NOT NULL, task TEXT NOT NULL, target TEXT NOT NULL,
    client TEXT NOT NULL, dialect TEXT NOT NULL, holder TEXT NOT NULL, userid INTEGER NOT NULL, ttl_s REAL NOT NULL,
    submitted_s REAL NOT NULL, at REAL NOT NULL, body BLOB NOT NULL, parts TEXT NOT NULL);
CREATE TABLE parts (
    id INTEGER PRIMARY KEY, job INTEGER NOT NULL, part TEXT NOT NULL, worker TEXT NOT NULL, attempt INTEGER NOT NULL,
    state INTEGER NOT NULL, earlier TEXT NOT NULL DEFAULT '[]', owner TEXT NOT NULL DEFAULT '', UNIQUE (job, part));
CREATE TABLE results (
    part INTEGER PRIMARY KEY, worker TEXT NOT NULL, attempt INTEGER NOT NULL, status INTEGER NOT NULL,
    body BLOB NOT NULL);
CREATE TABLE closed (job INTEGER PRIMARY KEY, state TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE workers (
    name TEXT PRIMARY KEY, service TEXT NOT NULL, dialect TEXT NOT NULL, key TEXT NOT NULL, gone REAL) WITHOUT ROWID;
CREATE TABLE pins (name TEXT PRIMARY KEY, key TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE usage (
    holder TEXT NOT NULL, key TEXT NOT NULL, service TEXT NOT NULL, jobs INTEGER NOT NULL, failed INTEGER NOT NULL,
    bytes_in INTEGER NOT NULL, bytes_out INTEGER NOT NULL, busy_s REAL NOT NULL,
    expired INTEGER NOT NULL, cancelled INTEGER NOT NULL,
    PRIMARY KEY (holder, key, service)) WITHOUT ROWID
"""

SCHEMA: Final = Schema("broker store", int.from_bytes(b"NFPb"), 5, _TABLES)
