"""Every table of the warehouse: its columns, their types and meaning, its version (``columns``)."""

from __future__ import annotations

from typing import Final

from gateway.pipeline.columns import Column, Table, table_of
from gateway.pipeline.errors import PipelineError

ERRNO_MAX: Final = (1 << 31) - 1
"""What an answer says may be more, any 32 bits; as an errno it is this then."""
LONG_MAX: Final = (1 << 63) - 1
"""A sum of times that is more is this: a clock was set, from 1970 to now, while calls were open."""

MESSAGES: Final = table_of(
    "messages",
    "Bronze: one row for each record of the journal.",
    """
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
    """,
    oldest=3,
)

PAYLOAD: Final = Column("payload", "binary", "only where it was asked for; null where it was not captured")
"""What ``messages`` may have besides: read with the source's option ``payload``, written by ``ingest --payload``."""

TRAFFIC: Final = table_of(
    "traffic",
    "Messages by windows of 10 s, each once: where it entered the tree (in) or was refused at the door (denied), and "
    "where it left (out). A stream adds rows, so add up.",
    """
    window        timestamp begin of 10 s
    rank          long      rank that recorded
    writer        string    name of the writer
    transport     string    as in messages
    direction     string    in, out, denied
    kind          string    flux, nfp, oslo, state
    service       string    topic up to the first dot
    topic         string    whole topic
    type          string    request, response, event; null unless flux
    userid        long      stamped
    n             long      messages
    payload_bytes long      their payloads
    wire_bytes    long      all their parts
    dt            date      partition
    """,
    oldest=2,
)

DELIVERIES: Final = table_of(
    "deliveries",
    "Events by receiver, by windows of 10 s (capture = both): an event that went to three clients is three deliveries. "
    "A stream adds rows, so add up.",
    """
    window          timestamp begin of 10 s
    rank            long      rank that delivered
    service         string    topic up to the first dot
    topic           string    whole topic
    userid          long      who published
    events          long      events that were handed out, also where nobody wanted them
    n               long      deliveries to clients
    payload_bytes   long      their payloads
    wire_bytes      long      all their parts
    tree_n          long      deliveries to brokers of the tree
    tree_wire_bytes long      all their parts
    dt              date      partition
    """,
)

TREE_TRAFFIC: Final = table_of(
    "tree_traffic",
    "Messages between the brokers of the tree by windows of 10 s; a stream adds rows, so add up.",
    """
    window        timestamp begin of 10 s
    rank          long      rank that recorded
    peer          string    its neighbour
    role          string    child, parent
    direction     string    in, out
    type          string    request, response, event
    service       string    topic up to the first dot
    n             long      messages
    payload_bytes long      their payloads
    wire_bytes    long      all their parts
    dt            date      partition
    """,
)

RPC: Final = table_of(
    "rpc",
    "Calls, each once, where it entered the tree, with the responses that were found for it; also those that the "
    "broker there refused, which answers them at once.",
    """
    req_ts        timestamp when the request passed
    ts_ns         long      the same, ns
    rank          long      rank where it entered
    origin        string    who asked; null of a refused one where the broker did not know it yet
    matchtag      long      of the request
    topic         string    whole topic
    service       string    topic up to the first dot
    userid        long      who asked
    lat_ns        long      until the first response
    last_ns       long      until the last one
    errnum        long      of the last response, or of the refusal
    n_responses   long      how many responses
    streaming     boolean   the request asked for many
    outcome       string    answered; unanswered; reused: its tag was taken; not captured: see rpc_latency
    dt            date      partition, of the request
    """,
    oldest=3,
)

RPC_LATENCY: Final = table_of(
    "rpc_latency",
    "Latency of calls where they entered the tree, as a histogram by minute, rank and topic, and what could not be "
    "matched, by cause. Rows add up: the p-th percentile of any of them together is the smallest le_ns up to which n "
    "sums up to p % of all. A stream adds rows.",
    """
    window                timestamp begin of 60 s
    rank                  long rank where they entered
    topic                 string whole topic
    service               string topic up to the first dot
    le_ns                 long until the first response, at most: the end of a bucket; null: there was none
    n                     long calls with a response
    sum_ns                long of their latencies
    max_ns                long the longest
    unmatched_no_response long requests without a response
    not_captured          long requests of built-in services, whose answers capture = in does not see
    unmatched_no_request  long responses without a request
    unmatched_noresponse  long requests that asked for none
    unmatched_untagged    long with matchtag 0 or without an origin
    reused_tags           long requests whose tag was still open
    dt                    date partition
    """,
    oldest=3,
)

TREE_LATENCY: Final = table_of(
    "tree_latency",
    "Where in the tree the time goes: answered calls at every broker that they passed, by minute and by the links that "
    "they came and went by. Of a step to the next broker that is sum_ns of this one less sum_ns of the next. A stream "
    "adds rows, so add up.",
    """
    window        timestamp begin of 60 s
    rank          long      rank that recorded
    source        string    whence they came: a neighbour in the tree, or the role of who asked
    target        string    where they went: a neighbour in the tree; client: who serves it; own: a built-in service
    topic         string    whole topic
    service       string    topic up to the first dot
    n             long      calls with a response
    sum_ns        long      of the times until the first one came to this broker
    max_ns        long      the longest
    dt            date      partition
    """,
)

DENIED: Final = table_of(
    "denied",
    "What was refused for want of rights (EPERM, EACCES).",
    """
    ts            timestamp when
    rank          long      rank that refused
    transport     string    as in messages
    peer          string    who
    claimed       long      userid it claimed; null of an answer
    userid        long      userid it was given; of an answer: whose call it answers, null where that is not known
    rolemask      long      roles it was given; null of an answer
    topic         string    of the request; null of a link
    errno         int       POSIX number
    kind          string    request, link, web; answer: a client's service said so
    dt            date      partition
    """,
    oldest=3,
)

ERRORS: Final = table_of(
    "errors",
    "What failed otherwise, by errno: calls where they entered the tree, each once, requests that were no call, and "
    "links. A stream adds rows, so add up.",
    """
    window        timestamp begin of 60 s; of a call: when it was made
    rank          long      rank where it entered, or that refused
    topic         string    whole topic; null of a link
    service       string    topic up to the first dot
    errno         int       POSIX number
    kind          string    answer; refused before it was a call: request, link, web
    userid        long      who asked
    n             long      how many
    dt            date      partition
    """,
)

EVENT_GAPS: Final = table_of(
    "event_gaps",
    "Event sequences that do not follow each other.",
    """
    rank          long      rank that recorded
    writer        string    name of the writer
    run           string    uuid of its run
    peer          string    whence the events came
    prev_seq      long      sequence before
    next_seq      long      sequence that followed
    missing       long      how many lie between
    kind          string    gap, duplicate, reorder
    ts            timestamp of the one that followed
    dt            date      partition
    """,
)

ORDER_CHECK: Final = table_of(
    "order_check",
    "Order between two endpoints: as it came in against as it went out (capture = both).",
    """
    rank          long      rank that recorded
    run           string    uuid of the writer's run
    origin        string    who sent
    peer          string    who received
    type          string    request, response, event
    n             long      messages
    out_of_order  long      delivered before one that came earlier
    missing       long      came in, did not go out
    first_ts      timestamp of the first
    last_ts       timestamp of the last
    dt            date      partition
    """,
)

USER_USAGE: Final = table_of(
    "user_usage",
    "What each user did in a day, counted where it entered the tree; a stream adds rows, so add up.",
    """
    dt            date      partition
    userid        long      who
    requests      long      that came in
    responses     long      that came in
    events        long      that came in
    denied        long      refused for want of rights, by a broker, a gateway or a service: rows of denied
    errors        long      failed otherwise
    payload_bytes long      of what came in
    wire_bytes    long      of what came in
    rpc_ns        long      sum of the latencies of the calls
    """,
    oldest=3,
)

JOB_OUTCOMES: Final = table_of(
    "job_outcomes",
    "Jobs of NFP.",
    """
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
    """,
)

NOTIFICATIONS: Final = table_of(
    "notifications",
    "Notifications of oslo.messaging.",
    """
    ts            timestamp when
    exchange      string    where it was sent to
    topic         string    the same
    event_type    string    of the envelope
    priority      string    of the envelope
    publisher_id  string    of the envelope
    payload_len   long      bytes
    dt            date      partition
    """,
)

SLOW: Final = table_of(
    "slow",
    "What was not delivered because somebody was slow.",
    """
    ts            timestamp when
    rank          long      rank that recorded
    peer          string    who was slow
    what          string    drop, discarded, shed
    events        long      how many
    bytes         long      null where not known
    reason        string    in words
    dt            date      partition
    """,
)

RUNS: Final = table_of(
    "_runs",
    "One row for each run of a job, for each batch of a stream.",
    """
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
    """,
)

OPEN: Final = table_of(
    "_open",
    "What the gold of a stream waits for: calls without their last response, the last event of each sequence, jobs "
    "that go on, the hops of peers. Replaced by each step.",
    """
    kind          string    call, event, job, hop
    rank          long      as in messages
    run           string    as in messages
    writer        string    as in messages; of events and jobs
    peer          string    as in messages; of events
    peer_id       long      as in messages; of events and hops
    origin        string    as in messages; of a hop, the hop
    routes        int       as in messages; of hops
    matchtag      long      of the request
    event_seq     long      of the event
    seq           long      number of the record
    ts_ns         long      when it passed; of a hop, when it was last seen
    topic         string    of the request
    userid        long      of the request
    streaming     boolean   the request asked for many
    entered       boolean   the call entered the tree here
    source        string    as in tree_latency
    target        string    as in tree_latency
    unseen        boolean   the answer of a built-in service is not captured
    n_in          long      responses that came in until now
    n_out         long      responses that went out until now
    first_ns      long      when the first one passed
    last_in_ns    long      when the last one came in
    last_out_ns   long      when the last one went out
    detail        string    as in messages; of jobs
    dt            date      partition, of ts_ns
    """,
)

GOLD: Final = (
    TRAFFIC, DELIVERIES, TREE_TRAFFIC, RPC, RPC_LATENCY, TREE_LATENCY, DENIED, ERRORS, EVENT_GAPS, ORDER_CHECK,
    USER_USAGE, JOB_OUTCOMES, NOTIFICATIONS, SLOW,
)  # fmt: skip
TABLES: Final = {table.name: table for table in (MESSAGES, *GOLD, OPEN, RUNS)}
"""Every table by name."""


def table_named(name: str) -> Table:
    """The table of that name.

    Raises:
        PipelineError: there is none; the text lists them.
    """
    if name not in TABLES:
        raise PipelineError(f"no table {name!r:.64}; there are {', '.join(TABLES)}")
    return TABLES[name]


def markdown(tables: tuple[Table, ...] = (MESSAGES, *GOLD, OPEN, RUNS)) -> str:
    """The tables for a document."""
    lines = []
    for table in tables:
        lines += [f"### {table.name}", "", f"{table.doc} Version {table.version}.", ""]
        lines += ["| column | type | meaning |", "|---|---|---|"]
        for column in table.columns:
            later = "" if column.since == table.oldest else f" (since {column.since})"
            lines.append(f"| {column.name} | {column.type} | {column.doc}{later} |")
        lines.append("")
    return "\n".join(lines)
