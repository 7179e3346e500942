"""The broker's tables, and the one statement that writes a group of operations into them (see ``intake``).

A row that holds a body is written once and never updated (SQLite would rewrite the whole body): what changes lives in
``slots`` and ``closed``. ``slots.earlier`` is a JSON array of the [worker, attempt] pairs that a slot was given to
before the present one, ``slots.owner`` who a client was told has it. ``workers.gone`` is when a worker left, NULL while
it is there.
"""

from __future__ import annotations

from typing import Final

from broker.nfp.store import clock
from broker.nfp.store.database import Schema
from broker.nfp.store.intake import body, insert, item, items

ADDED, GIVEN, TAKEN, ENDED, BACK, TAKEN_ONCE = range(6)
"""Steps of a slot; ``slots.state`` is the last one taken. TAKEN_ONCE: by a worker that alone may run it."""
STATES: Final = ("waiting", "dispatched", "accepted", "final", "waiting", "accepted")
"""What each step leaves a slot in."""

_TABLES: Final = f"""
{clock.TABLE}
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, service TEXT NOT NULL, task TEXT NOT NULL, target TEXT NOT NULL,
    client TEXT NOT NULL, dialect TEXT NOT NULL, holder TEXT NOT NULL, userid INTEGER NOT NULL, ttl_s REAL NOT NULL,
    submitted_s REAL NOT NULL, at REAL NOT NULL, body BLOB NOT NULL);
CREATE TABLE slots (
    id INTEGER PRIMARY KEY, job INTEGER NOT NULL, slot TEXT NOT NULL, worker TEXT NOT NULL, attempt INTEGER NOT NULL,
    state INTEGER NOT NULL, earlier TEXT NOT NULL DEFAULT '[]', owner TEXT NOT NULL DEFAULT '', UNIQUE (job, slot));
CREATE TABLE results (
    slot INTEGER PRIMARY KEY, worker TEXT NOT NULL, attempt INTEGER NOT NULL, status INTEGER NOT NULL,
    body BLOB NOT NULL);
CREATE TABLE closed (job INTEGER PRIMARY KEY, state TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE workers (
    name TEXT PRIMARY KEY, service TEXT NOT NULL, dialect TEXT NOT NULL, key TEXT NOT NULL, gone REAL) WITHOUT ROWID;
CREATE TABLE pins (name TEXT PRIMARY KEY, key TEXT NOT NULL, at REAL NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE TABLE usage (
    holder TEXT NOT NULL, key TEXT NOT NULL, service TEXT NOT NULL, jobs INTEGER NOT NULL, failed INTEGER NOT NULL,
    bytes_in INTEGER NOT NULL, bytes_out INTEGER NOT NULL, busy_s REAL NOT NULL,
    PRIMARY KEY (holder, key, service)) WITHOUT ROWID
"""

_MIGRATIONS: Final = {
    1: """
ALTER TABLE slots ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE workers ADD COLUMN gone REAL;
ALTER TABLE pins ADD COLUMN at REAL NOT NULL DEFAULT 0
""",
    2: "ALTER TABLE results DROP COLUMN status_text",
}

SCHEMA: Final = Schema("broker store", int.from_bytes(b"NFPb"), 3, _TABLES, _MIGRATIONS)


_JOB_OF: Final = f"CROSS JOIN jobs j ON j.uuid = {item(0)}"

_FORGOTTEN: Final = "json_each(NEW.forgotten) o CROSS JOIN jobs j ON j.uuid = o.value"

INTAKE: Final = f"""
CREATE TEMP VIEW intake AS SELECT
    NULL AS at, NULL AS wall, NULL AS boot, NULL AS boot_id, NULL AS bodies,
    NULL AS jobs, NULL AS steps, NULL AS results, NULL AS closed, NULL AS forgotten, NULL AS used,
    NULL AS seen, NULL AS gone, NULL AS pinned, NULL AS unpinned, NULL AS owned;
CREATE TEMP TRIGGER take_in INSTEAD OF INSERT ON intake BEGIN
    UPDATE clock SET at = NEW.at, wall = NEW.wall, boot = NEW.boot, boot_id = NEW.boot_id;

    INSERT INTO jobs
        (uuid, service, task, target, client, dialect, holder, userid, ttl_s, submitted_s, at, body)
        SELECT {items(0, 1, 2, 3, 4, 5, 6, 7, 8)}, NEW.wall, NEW.at, {body("bodies", 9, 10)}
        FROM json_each(NEW.jobs) o WHERE true ON CONFLICT (uuid) DO NOTHING;

    INSERT INTO slots (job, slot, worker, attempt, state)
        SELECT j.id, {item(1, 1)}, coalesce({item(1, 2)}, ''), coalesce({item(1, 3)}, 0), {item(0)}
        FROM json_each(NEW.steps) o CROSS JOIN jobs j ON j.uuid = {item(1, 0)} WHERE true
        ON CONFLICT (job, slot) DO UPDATE SET
            earlier = CASE WHEN excluded.state = {GIVEN} AND attempt > 0
                THEN json_insert(earlier, '$[#]', json_array(worker, attempt)) ELSE earlier END,
            worker = CASE excluded.state WHEN {GIVEN} THEN excluded.worker ELSE worker END,
            attempt = CASE excluded.state WHEN {GIVEN} THEN excluded.attempt ELSE attempt END,
            state = excluded.state
        WHERE state <> {ENDED} AND excluded.state <> {ADDED}
            AND (excluded.state NOT IN ({TAKEN}, {TAKEN_ONCE}) OR (state = {GIVEN} AND excluded.attempt = attempt));

    INSERT INTO slots (job, slot, worker, attempt, state, owner)
        SELECT j.id, '', '', 0, {ADDED}, {item(1)} FROM json_each(NEW.owned) o {_JOB_OF} WHERE true
        ON CONFLICT (job, slot) DO UPDATE SET owner = excluded.owner WHERE owner = '';

    INSERT INTO results (slot, worker, attempt, status, body)
        SELECT s.id, {items(2, 3, 4)}, {body("bodies", 5, 6)}
        FROM json_each(NEW.results) o {_JOB_OF} CROSS JOIN slots s ON s.job = j.id AND s.slot = {item(1)}
        WHERE true ON CONFLICT (slot) DO NOTHING;

    INSERT INTO closed (job, state, at)
        SELECT j.id, {item(1)}, NEW.at FROM json_each(NEW.closed) o {_JOB_OF}
        WHERE true ON CONFLICT (job) DO NOTHING;

    DELETE FROM results WHERE slot IN (
        SELECT s.id FROM {_FORGOTTEN} CROSS JOIN slots s ON s.job = j.id);
    DELETE FROM slots WHERE job IN (SELECT j.id FROM {_FORGOTTEN});
    DELETE FROM closed WHERE job IN (SELECT j.id FROM {_FORGOTTEN});
    DELETE FROM jobs WHERE uuid IN (SELECT o.value FROM json_each(NEW.forgotten) o);

    INSERT INTO usage SELECT {items(*range(8))} FROM json_each(NEW.used) o WHERE true
        ON CONFLICT (holder, key, service) DO UPDATE SET
            jobs = jobs + excluded.jobs, failed = failed + excluded.failed, bytes_in = bytes_in + excluded.bytes_in,
            bytes_out = bytes_out + excluded.bytes_out, busy_s = busy_s + excluded.busy_s;
    INSERT OR REPLACE INTO workers SELECT {items(*range(4))}, NULL FROM json_each(NEW.seen) o;
    UPDATE workers SET gone = NEW.at WHERE gone IS NULL AND name IN (SELECT o.value FROM json_each(NEW.gone) o);
    INSERT OR REPLACE INTO pins SELECT {items(*range(2))}, NEW.at FROM json_each(NEW.pinned) o;
    DELETE FROM pins WHERE name IN (SELECT o.value FROM json_each(NEW.unpinned) o);
END;
"""  # noqa: S608 - our own words only
"""Steps are applied in the order put. A slot that is final stays as it is; an acceptance counts for the attempt that is
under way; the first owner and the first result of a slot and the first end of a job are the ones recorded."""

TAKE_IN: Final = insert(16)
