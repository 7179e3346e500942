"""Every table of the warehouse: its columns with types and meanings, and a version.

Evolution is add-only: a column is never renamed, retyped or removed; one that is added later stands at the end with
the version that brought it (``@3``), and files written before give null there. A table's version is the highest of
its columns. Where that could not be held, the table begins anew: ``oldest`` is the first version that is still read,
and tables before it are refused with what to do about them. Tables, and files, carry ``headgate.table`` and
``headgate.v``; the partition column ``dt`` is in the path (``dt=2026-01-31``), not in the files.

pyarrow is imported where it is asked for; the names and types are plain Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gateway.delta import PARTITION
from gateway.pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_KEY: Final = "headgate.table"
VERSION_KEY: Final = "headgate.v"
TYPES: Final = {
    "long": "int64", "int": "int32", "double": "float64", "boolean": "bool", "string": "string", "binary": "binary",
    "timestamp": "timestamp[us]", "date": "date32",
}  # fmt: skip
"""Types of columns, as Arrow names them; Spark's names are ours but for ``bigint``. Times are of UTC."""
ANEW: Final = (
    "make the warehouse anew from its journal: headgate pipeline batch --journal DIR --warehouse NEW"
)
"""What to do with files of a version that is not read any more."""


@dataclass(frozen=True)
class Column:
    """One column; ``type`` is one of ``TYPES``."""

    name: str
    type: str
    doc: str
    since: int = 1

    @property
    def ddl(self) -> str:
        """As Spark's DDL has it."""
        return f"`{self.name}` {'bigint' if self.type == 'long' else self.type}"

    def arrow_type(self) -> pa.DataType:
        """As pyarrow has it."""
        import pyarrow as pa

        return pa.timestamp("us", "UTC") if self.type == "timestamp" else pa.type_for_alias(TYPES[self.type])


@dataclass(frozen=True)
class Table:
    """One table. All columns may be null for Spark and Arrow; ``doc`` of a column says when. ``oldest``: the first
    version that is read.
    """

    name: str
    doc: str
    columns: tuple[Column, ...]
    oldest: int = 1

    @property
    def version(self) -> int:
        """The highest version of a column."""
        return max(self.oldest, *(column.since for column in self.columns))

    @property
    def names(self) -> tuple[str, ...]:
        """All columns in their order, the partition last or where it stands."""
        return tuple(column.name for column in self.columns)

    @property
    def ddl(self) -> str:
        """All columns as one DDL string for ``spark.read.schema``."""
        return ", ".join(column.ddl for column in self.columns)

    @property
    def metadata(self) -> dict[str, str]:
        """What each file of this table carries."""
        return {TABLE_KEY: self.name, VERSION_KEY: str(self.version)}

    def arrow(self, *, partition: bool = False, extra: Iterable[Column] = ()) -> pa.Schema:
        """The Arrow schema of a file; with ``partition`` the column ``dt``, too, as a scan gives it."""
        import pyarrow as pa

        fields = [
            pa.field(column.name, column.arrow_type())
            for column in (*self.columns, *extra)
            if partition or column.name != PARTITION
        ]
        return pa.schema(fields, metadata=self.metadata)

    def refuse_foreign(self, settings: Mapping[str, str], place: str) -> None:
        """Raise where a table's properties say that it is another one, or of a version that is not read here.

        Raises:
            PipelineError: with the place, the version seen and the one known.
        """
        name, version = settings.get(TABLE_KEY, self.name), int(settings.get(VERSION_KEY, self.version))
        if name != self.name:
            raise PipelineError(f"{place}: table {name:.64}; expected {self.name}")
        seen = f"{place}: version {version} of table {self.name}; this program"
        if version > self.version:
            raise PipelineError(f"{seen} knows up to {self.version}")
        if version < self.oldest:
            raise PipelineError(f"{seen} reads from {self.oldest} on: {ANEW}")


def tables_of(text: str) -> dict[str, Table]:
    """Tables by name, each of ``NAME OLDEST WHAT`` and, indented, its columns: ``NAME TYPE[@VERSION] WHAT``, several
    names with commas between, or names alone, which are columns as of the first table. The partition stands last
    where no line has it.
    """
    tables: dict[str, Table] = {}
    known: dict[str, Column] = {}
    for block in text.strip().split("\n\n"):
        lines = block.splitlines()
        head = [line for line in lines if not line.startswith(" ")]
        name, first, doc = " ".join(head).split(None, 2)
        oldest, columns = int(first), []
        for line in lines[len(head) :]:
            words = line.split(None, 2)
            kind, _, since = words[1].partition("@") if len(words) == 3 else ("", "", "")
            if kind in TYPES:
                columns += [
                    Column(each, kind, words[2], int(since or oldest)) for each in words[0].split(",")
                ]
            else:
                columns += [replace(known[each], since=oldest) for each in line.split()]
        if not known:
            known = {column.name: column for column in columns}
        elif all(column.name != PARTITION for column in columns):
            columns.append(replace(known[PARTITION], since=oldest))
        tables[name] = Table(name, doc, tuple(columns), oldest)
    return tables


PAYLOAD: Final = Column("payload", "binary", "only where it was asked for; null where it was not captured")
"""What ``messages`` may have besides: read with the source's option ``payload``, written by ``ingest --payload``."""

TABLES: Final = tables_of("""
messages 3 Bronze: one row for each record of the journal.
    seq           long      number of the record, of this writer
    ts            timestamp when it passed
    ts_ns         long      the same, ns since 1970
    rank          long      rank that recorded it
    writer        string    name of the writer
    run           string    uuid of the writer's run, 32 hex digits
    capture       string    in, both: what the writer was told to record
    peer          string    who sent it (in, denied) or whom it is for (out)
    peer_id       long      number of that peer in this run
    role          string    of that peer: client, web, worker, server; child, parent: brokers of the tree; own: this one
    via           string    the other end; empty where there is none
    via_id        long      its number; 0 where there is none
    via_role      string    its role
    transport     string    curve, unix, websocket, plain, inproc, none
    direction     string    in, out, denied
    reason        int       errno of a denied one, else 0
    kind          string    flux, nfp, oslo, state
    type          string    request, response, event; null unless flux
    flags         int       of PROTO; null unless flux
    userid        long      stamped; of nfp, oslo and state what detail says
    claimed       long      userid before stamping; 4294967295: none; of an event that went out: how many brokers got it
    rolemask      long      stamped; null unless flux
    nodeid        long      rank that a request asks for; null of all else
    errnum        long      of a response, 0: none; null of all else
    event_seq     long      number of an event, 0: not numbered yet; null of all else
    matchtag      long      null unless flux
    topic         string    empty of a message without one
    service       string    topic up to the first dot
    origin        string    route next to the delimiter; null where there is none
    routes        int       how many routes
    payload_len   long      bytes, also where it was not captured
    wire_len      long      bytes of all parts as RFC 3 frames them
    delivered     long      to how many an event went out; else null
    detail        string    JSON of nfp, oslo and state; else null
    dt            date      partition

traffic 2 Messages by windows of 10 s, each once: where it entered the tree (in) or was refused at the door (denied),
and where it left (out). A stream adds rows, so add up.
    window        timestamp begin of 10 s
    rank writer transport direction kind service topic type userid
    n             long      messages
    payload_bytes long      their payloads
    wire_bytes    long      all their parts

deliveries 1 Events by receiver, by windows of 10 s (capture = both): an event that went to three clients is three
deliveries. A stream adds rows, so add up.
    window        timestamp begin of 10 s
    rank service topic
    userid        long      who published
    events        long      events that were handed out, also where nobody wanted them
    n             long      deliveries to clients
    payload_bytes long      their payloads
    wire_bytes    long      all their parts
    tree_n        long      deliveries to brokers of the tree
    tree_wire_bytes long      all their parts

tree_traffic 1 Messages between the brokers of the tree by windows of 10 s; a stream adds rows, so add up.
    window        timestamp begin of 10 s
    rank
    peer          string    its neighbour
    role          string    child, parent
    direction     string    in, out
    type service
    n             long      messages
    payload_bytes long      their payloads
    wire_bytes    long      all their parts

rpc 3 Calls, each once, where it entered the tree, with the responses that were found for it; also those that the broker
there refused, which answers them at once.
    req_ts        timestamp when the request passed
    ts_ns rank
    origin        string    who asked; null of a refused one where the broker did not know it yet
    matchtag topic service
    userid        long      who asked
    lat_ns        long      until the first response
    last_ns       long      until the last one
    errnum        long      of the last response, or of the refusal
    n_responses   long      how many responses
    streaming     boolean   the request asked for many
    outcome       string    answered; unanswered; reused: its tag was taken; not captured: see rpc_latency
    dt            date      partition, of the request

rpc_latency 3 Latency of calls where they entered the tree, as a histogram by minute, rank and topic, and what could not
be matched, by cause. Rows add up: the p-th percentile of any of them together is the smallest le_ns up to which n sums
up to p % of all. A stream adds rows.
    window        timestamp begin of 60 s
    rank topic service
    le_ns         long      until the first response, at most: the end of a bucket; null: there was none
    n             long      calls with a response
    sum_ns        long      of their latencies
    max_ns        long      the longest
    unmatched_no_response long      requests without a response
    not_captured  long      requests of built-in services, whose answers capture = in does not see
    unmatched_no_request long      responses without a request
    unmatched_noresponse long      requests that asked for none
    unmatched_untagged long      with matchtag 0 or without an origin
    reused_tags   long      requests whose tag was still open

tree_latency 1 Where in the tree the time goes: answered calls at every broker that they passed, by minute and by the
links that they came and went by. Of a step to the next broker that is sum_ns of this one less sum_ns of the next. A
stream adds rows, so add up.
    window        timestamp begin of 60 s
    rank
    source        string    whence they came: a neighbour in the tree, or the role of who asked
    target        string    where they went: a neighbour in the tree; client: who serves it; own: a built-in service
    topic service
    n             long      calls with a response
    sum_ns        long      of the times until the first one came to this broker
    max_ns        long      the longest

denied 3 What was refused for want of rights (EPERM, EACCES).
    ts rank transport peer
    claimed       long      userid it claimed; null of an answer
    userid        long      userid it was given; of an answer: whose call it answers, null where that is not known
    rolemask      long      roles it was given; null of an answer
    topic         string    of the request; null of a link
    errno         int       POSIX number
    kind          string    request, link, web; answer: a client's service said so

errors 1 What failed otherwise, by errno: calls where they entered the tree, each once, requests that were no call, and
links. A stream adds rows, so add up.
    window        timestamp begin of 60 s; of a call: when it was made
    rank          long      rank where it entered, or that refused
    topic         string    whole topic; null of a link
    service
    errno         int       POSIX number
    kind          string    answer; refused before it was a call: request, link, web
    userid        long      who asked
    n             long      how many

event_gaps 1 Event sequences that do not follow each other.
    rank writer run
    peer          string    whence the events came
    prev_seq      long      sequence before
    next_seq      long      sequence that followed
    missing       long      how many lie between
    kind          string    gap, duplicate, reorder
    ts            timestamp of the one that followed

order_check 1 Order between two endpoints: as it came in against as it went out (capture = both).
    rank run
    origin        string    who sent
    peer          string    who received
    type
    n             long      messages
    out_of_order  long      delivered before one that came earlier
    missing       long      came in, did not go out
    first_ts      timestamp of the first
    last_ts       timestamp of the last

user_usage 3 What each user did in a day, counted where it entered the tree; a stream adds rows, so add up.
    dt
    userid        long      who
    requests,responses,events long      that came in
    denied        long      refused for want of rights, by a broker, a gateway or a service: rows of denied
    errors        long      failed otherwise
    payload_bytes,wire_bytes long      of what came in
    rpc_ns        long      sum of the latencies of the calls

job_outcomes 1 Jobs of NFP.
    uuid          string    of the job
    service       string    whose workers did it
    task          string    what was asked
    client        string    who asked
    status        string    the last one seen: COMPLETED; FAILED when a worker's part of it did; EXPIRED, CANCELLED
    attempts      long      the highest attempt seen
    workers       int       how many took part
    t_submit      timestamp when it was posted
    t_done        timestamp when its final status passed; null: not yet
    duration_ns   long      between the two
    dt            date      partition, of the submission

notifications 1 Notifications of oslo.messaging.
    ts
    exchange      string    where it was sent to
    topic         string    the same
    event_type,priority,publisher_id string    of the envelope
    payload_len

slow 1 What was not delivered because somebody was slow.
    ts rank
    peer          string    who was slow
    what          string    drop, discarded, shed
    events        long      how many
    bytes         long      null where not known
    reason        string    in words

_open 1 What the gold of a stream waits for: calls without their last response, the last event of each sequence, jobs
that go on, the hops of peers (in origin, with when they were last seen). Replaced by each step.
    kind          string    call, event, job, hop
    rank run writer peer peer_id origin routes matchtag event_seq seq ts_ns topic userid
    streaming     boolean   the request asked for many
    entered       boolean   the call entered the tree here
    source,target string    as in tree_latency
    unseen        boolean   the answer of a built-in service is not captured
    n_in          long      responses that came in until now
    n_out         long      responses that went out until now
    first_ns      long      when the first one passed
    last_in_ns    long      when the last one came in
    last_out_ns   long      when the last one went out
    detail
    dt            date      partition, of ts_ns

_runs 1 One row for each run of a job, for each batch of a stream.
    job           string    ingest, batch, stream, gold (behind a stream), compact
    batch_id      long      of a stream its batch, of gold the last addition to bronze; else ms since 1970 at the begin
    feed          string    ingest, stream
    started_at    timestamp begin
    finished_at   timestamp end
    rows_in       long      records read
    rows_out      long      rows written
    bad_blocks    long      damaged stretches that were passed over
    lost_records  long      records known to be lost in them, or in segments that were deleted
    offsets       string    JSON: how far each writer was read, and the losses by name
    duration_s    double    end less begin
    dt            date      partition, of the end
""")
"""Every table by name."""
MESSAGES: Final = TABLES["messages"]
OPEN: Final = TABLES["_open"]
RUNS: Final = TABLES["_runs"]
GOLD: Final = tuple(table for table in TABLES.values() if table not in (MESSAGES, OPEN, RUNS))


def table_named(name: str) -> Table:
    """The table of that name.

    Raises:
        PipelineError: there is none; the text lists them.
    """
    if name not in TABLES:
        raise PipelineError(f"no table {name!r:.64}; there are {', '.join(TABLES)}")
    return TABLES[name]
