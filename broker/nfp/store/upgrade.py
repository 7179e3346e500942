"""Files of versions before this one: what ``database.upgrade`` runs on them.

Version 0.1.0 had tables of a broker, and cards with bodies of workers and clients; of these are made events, one table
beside that of jobs. ``_IN_ONE`` puts the two together.
"""

from __future__ import annotations

from typing import Final

from broker.nfp.store.events import EVENTS, KEY_BITS

_APART: Final = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, at REAL NOT NULL, wall REAL NOT NULL,
    data BLOB NOT NULL, body BLOB NOT NULL);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, job INTEGER NOT NULL, at REAL NOT NULL, kind TEXT NOT NULL,
    data BLOB NOT NULL, body BLOB NOT NULL);
CREATE INDEX events_of_job ON events (job);
CREATE TABLE names (
    kind TEXT NOT NULL, name TEXT NOT NULL, at REAL NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (kind, name)) WITHOUT ROWID;
"""
_IN_ONE: Final = f"""
ALTER TABLE jobs RENAME TO old_jobs; ALTER TABLE events RENAME TO old_events;
{EVENTS};
INSERT INTO events SELECT number << {KEY_BITS}, uuid, at, '', pack('.m', wall, data), body FROM old_jobs;
INSERT INTO events SELECT (job << {KEY_BITS}) + k, NULL, at, kind, data, body
    FROM (SELECT seq, row_number() OVER (PARTITION BY job ORDER BY seq) AS k FROM old_events) n
    CROSS JOIN old_events USING (seq);
DROP TABLE old_jobs; DROP TABLE old_events
"""  # noqa: S608 - our own words only, in all of these

_EVENT: Final = "INSERT INTO events (job, at, kind, data, body) SELECT"
_PARTS: Final = "FROM parts p CROSS JOIN old_jobs j ON j.id = p.job"
_BROKER: Final = f"""
ALTER TABLE jobs RENAME TO old_jobs;
{_APART}
INSERT INTO jobs SELECT id, uuid, at, submitted_s,
    pack('..jx....j', service, task, target, client, dialect, holder, userid, ttl_s, parts), body FROM old_jobs;
{_EVENT} job, at, 'PartAdded', pack('.', part), x'' {_PARTS} WHERE attempt = 0 ORDER BY p.id;
{_EVENT} job, at, 'Dispatched', pack('...', part, json_extract(e.value, '$[0]'), json_extract(e.value, '$[1]')), x''
    {_PARTS} CROSS JOIN json_each(p.earlier) e ORDER BY p.id, e.key;
{_EVENT} job, at, 'Dispatched', pack('...', part, worker, attempt), x'' {_PARTS} WHERE attempt > 0 ORDER BY p.id;
{_EVENT} job, at, 'Accepted', pack('..', part, attempt), x'' {_PARTS} WHERE state = 2 ORDER BY p.id;
{_EVENT} job, at, 'Returned', pack('.', part), x'' {_PARTS} WHERE state = 0 AND attempt > 0 ORDER BY p.id;
{_EVENT} job, at, 'Owned', pack('.', owner), x'' {_PARTS} WHERE owner <> '' ORDER BY p.id;
{_EVENT} p.job, ifnull(c.at, j.at), 'Finished',
    pack('.....', p.part, r.worker, r.attempt, r.status, ifnull(c.state, '')), r.body
    {_PARTS} CROSS JOIN results r ON r.part = p.id LEFT JOIN closed c ON c.job = p.job AND p.id =
    (SELECT max(m.id) FROM parts m CROSS JOIN results q ON q.part = m.id WHERE m.job = p.job) ORDER BY p.id;
INSERT INTO names SELECT 'worker', name, max(ifnull(gone, 0), 0),
    CASE WHEN gone >= 0 THEN pack('') ELSE pack('...b', service, dialect, key, gone IS NOT NULL) END FROM workers;
INSERT INTO names SELECT 'pin', name, at, pack('.', key) FROM pins;
DROP TABLE old_jobs; DROP TABLE parts; DROP TABLE results; DROP TABLE closed;
DROP TABLE workers; DROP TABLE pins; DROP TABLE IF EXISTS usage
"""  # noqa: S608

_BODY: Final = "ifnull((SELECT body FROM bodies b WHERE b.number = c.number AND b.name = 'body'), x'')"
_WORKER: Final = f"""
{_APART}
INSERT INTO jobs SELECT number, uuid, at, submitted_s, fields('client x service . task . idempotent b',
    json_extract(more, '$.client'), service, task, ifnull(json_extract(more, '$.idempotent'), 1)), {_BODY} FROM cards c;
{_EVENT} number, at, 'started', fields('state . started_s .', 'started', json_extract(more, '$.started_s')), x''
    FROM cards WHERE json_extract(more, '$.started_s') > 0;
{_EVENT} number, at, 'events', fields(''), body FROM cards c JOIN bodies b USING (number) WHERE name = 'events';
{_EVENT} number, ended_at, 'result', fields('state . status . failed b ended_s .', 'done',
    ifnull(json_extract(more, '$.status'), 0), json_extract(more, '$.failed'),
    ifnull(json_extract(more, '$.ended_s'), 0)), body
    FROM cards c JOIN bodies b USING (number) WHERE name = 'result' AND state IN ('done', 'recorded');
{_EVENT} number, ended_at, 'recorded', fields('state .', state), x'' FROM cards WHERE state = 'recorded';
{_EVENT} number, ended_at, 'cancelled', fields('state . ended_s .', state,
    ifnull(json_extract(more, '$.ended_s'), 0)), x'' FROM cards WHERE state = 'cancelled';
DROP TABLE cards; DROP TABLE bodies
"""  # noqa: S608
_CLIENT: Final = f"""
{_APART}
INSERT INTO jobs SELECT number, uuid, at, submitted_s, fields('service . task . target j timeout_s .', service, task,
    json_extract(more, '$.target'), json_extract(more, '$.timeout_s')), {_BODY} FROM cards c;
{_EVENT} number, at, 'workers', fields('workers j', body), x'' FROM cards c JOIN bodies b USING (number)
    WHERE name = 'event';
{_EVENT} c.number, c.at, 'result', fields('worker . status .', s.key, s.value), b.body
    FROM cards c, json_each(more, '$.statuses') s JOIN bodies b ON b.number = c.number AND b.name = 'result/' || s.key
    ORDER BY c.number, s.id;
{_EVENT} number, ended_at, 'ended', fields('state . error .', state, ifnull(json_extract(more, '$.error'), '')), x''
    FROM cards WHERE settled;
DROP TABLE cards; DROP TABLE bodies
"""  # noqa: S608

BROKER: Final = (_BROKER, _IN_ONE)
WORKER: Final = (_WORKER, _IN_ONE)
CLIENT: Final = (_CLIENT, _IN_ONE)
