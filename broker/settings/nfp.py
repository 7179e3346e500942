"""`[nfp]`: the broker of the NORFAB protocol, alone (`headgate nfp broker`) or inside rank 0.

Documented as in `schema`. Without the section there is no such broker. All times that end in `_s` are seconds.
"""

import os
from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from broker.home import state_folder
from broker.schemes import beyond_loopback
from broker.settings.values import (
    Bytes,
    Count,
    Problem,
    Seconds,
    Text,
    Userid,
    check_keys,
    check_order,
    check_uri,
    saw,
)

StandingName = Literal["owner", "user", "guest"]
Globs = Annotated[tuple[Text, ...], Meta(min_length=1)]


def default_base_dir() -> str:
    """Choose the folder of keys and state: `$XDG_STATE_HOME/headgate/nfp`, else `~/.local/state/headgate/nfp`."""
    return state_folder("nfp")


class KeyEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[nfp.keys]]`: a CURVE key of a worker or client, and who that is."""

    key: Text
    """Its public key, 40 characters of Z85; each key once."""

    name: Text | None = None
    """What lists and logs call it, and what `nfp.rules` may name. A peer that connects as NAME or NAME-NFPClient (a
    worker's own client) has to have a key of this name. Default: the beginning of the key."""

    standing: Literal["owner", "user", "guest", "none"] = "user"
    """What it may do in general. Default user: jobs of its own. none: it is refused at the gate."""

    userid: Userid | None = None
    """Whose jobs its jobs are: those of this userid on the broker, too. Default: jobs belong to the key."""

    services: tuple[Text, ...] = ()
    """Services it may offer as a worker, with * and ?. Default none: it is a client's key."""


class RuleEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[nfp.rules]]`: who may have which task run. The first that fits decides; owners need none. Without a fitting
    one, users may call every service, and guests none.
    """

    services: Globs = ("*",)
    """Services it is about, with * and ?. Default: all."""

    tasks: Globs = ("*",)
    """Tasks it is about, with * and ?; a request whose body names no task fits "*" only. Default: all."""

    standings: Annotated[tuple[StandingName, ...], Meta(min_length=1)] = ("user", "guest")
    """Standings it is about. Default: users and guests."""

    names: tuple[Text, ...] = ()
    """Only those whose name in `nfp.keys` or whose holder (`uid:1000`, `key:...`, `peer:NAME`) is one of these, with *
    and ?. Default: everybody of the standings."""

    allow: bool = True
    """Whether they may. Default true; false refuses with a text."""


class TaskEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[nfp.tasks]]`: what is known of tasks. The first that fits decides; then what the worker says; then true."""

    service: Text = "*"
    """The services it is about, with * and ?. Default: all."""

    task: Text = "*"
    """The tasks it is about, with * and ?. Default: all."""

    idempotent: bool
    """Whether it may run twice: true gives it to another worker when one is lost in the middle of it, false ends
    such a job with 408."""


class NfpSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[nfp]`: a broker of NFP."""

    endpoint: Text = "tcp://127.0.0.1:5555"
    """Where workers and clients connect: `tcp://HOST:PORT` (port `*`: any) or `ipc://PATH`. A number or the name of an
    interface listens there alone, any other name but `localhost` on all interfaces. Default: the port of deployed
    NorFab, on this machine only."""

    worker_endpoint: Text | None = None
    """A second address, for workers and what they ask for themselves; `endpoint` then takes requests only. Default
    none: one address for both."""

    curve: bool = True
    """Speak CURVE: peers know this broker by its key, it knows them by theirs. Default true. false is plaintext, in
    which everybody is who they say."""

    insecure: bool = False
    """Allow plaintext off loopback. Default false: results could be read, workers impersonated."""

    base_dir: Text = field(default_factory=default_base_dir)
    """Folder of keys, state and files, made with mode 0700. Default: `$XDG_STATE_HOME/headgate/nfp`, or
    `~/.local/state/headgate/nfp`: it has to survive restarts."""

    key_secret: Text | None = None
    """This broker's CURVE certificate. Default: `broker.key_secret` in base_dir, made at the first start."""

    inventory: Text | None = None
    """YAML file with what each worker is given (service `sid.service.broker`). Default none: workers get null."""

    store: bool = True
    """Keep jobs, results and names in `nfp.db` in base_dir. Default true: no job is lost when the broker is. false
    answers sooner and forgets at the end."""

    sync: Literal["normal", "full"] = "normal"
    """What a commit waits for: normal survives the end of this process, full that of the machine. Default normal: the
    disk need not turn for each batch."""

    keepalive_ms: Annotated[int, Meta(ge=50, le=3_600_000)] = 2500
    """Milliseconds of silence after which a peer is sent KEEPALIVE. Default 2500, as in NorFab. Cannot be off."""

    multiplier: Annotated[int, Meta(ge=2, le=1000)] = 6
    """Intervals of silence after which a worker is dead. Default 6, as in NorFab: 15 s."""

    grace_s: Seconds = 2.0
    """How long a worker whose connection broke may take to come back before it is dead. Default 2: longer than a
    reconnect. 0: none."""

    credits: Count = 5
    """Jobs that a worker of deployed NorFab is given at a time; twice as many while no other worker of its service is
    there, since nobody else could run them. Default 5: so many it runs at once. Our workers say how many they run;
    workers of the text get one."""

    credits_max: Count = 64
    """The most that a worker may ask for in its OPEN. Default 64: what a worker of coroutines keeps busy with."""

    queue_ttl_s: Seconds = 60.0
    """How long a job may wait for a worker of its service before it ends with 408. Default 60: longer than workers
    take to restart. 0: such a job ends at once."""

    job_ttl_s: Annotated[float, Meta(ge=1, le=86400 * 365)] = 3600.0
    """The most that a job may take from POST to its last result. Default an hour. A longer timeout is refused."""

    result_ttl_s: Seconds = 3600.0
    """How long results can be asked for after a job's end. Default an hour: a client may restart in between. 0: they
    are sent, not kept."""

    results_max_bytes: Bytes = 256 * 2**20
    """Bytes that ended jobs may take in the store, their results and 2 KiB more each; beyond it the oldest are
    forgotten first. Without a store they take them in memory; with one, memory has the latest of them, up to 16 MiB.
    Default 256 MiB."""

    results_max_jobs: Count = 50_000
    """Ended jobs kept; beyond it the oldest are forgotten first. Default 50000: some 25 MiB of memory, and a restart
    knows all of them within a second."""

    queue_max: Count = 10_000
    """Jobs waiting for one service, or for one worker by name; beyond it 500. Default 10000, as the queues of NorFab's
    peers."""

    queue_per_client: Count = 1000
    """Jobs of one client that may wait for a worker; beyond it 500. Default 1000: one client leaves room for nine."""

    parts_per_client: Count = 20_000
    """Workers that the waiting jobs of one client may be for, together; beyond it 500, except that one job for more is
    taken while none waits. Default 20000: a job for all of the largest services, and more behind it."""

    jobs_max: Count = 100_000
    """Unfinished jobs in all; beyond it 500. Default 100000: names of services are free to invent, memory is not."""

    parts_max: Count = 200_000
    """Workers that unfinished jobs may be for in all; beyond it 500. Default 200000, some hundred MiB."""

    open_max_bytes: Bytes = 512 * 2**20
    """Bytes that unfinished jobs may take in memory, counted as of results_max_bytes; beyond it 500. Default 512
    MiB."""

    attempts_max: Count = 3
    """Workers that may be lost over one job before it ends with 500. Default 3: a job that kills workers does not go
    through all of them, and ends before a supervisor leaves one that ends again and again."""

    invalid_max: Count = 16
    """Invalid messages after which a peer is cut. Default 16: a peer of another version is seen, not served."""

    message_bytes_max: Bytes = 64 * 2**20
    """Largest frame of a peer, refused before anything is allocated. Default 64 MiB: results of whole device
    configurations fit; files go in chunks."""

    peer_queue_bytes: Bytes = 128 * 2**20
    """Bytes queued for a peer that does not read; beyond it events are dropped and counted, results wait until it
    reads, and it is cut when it takes nothing for keepalive_ms * multiplier. Default 128 MiB: two of the largest
    messages."""

    peer_queue_msgs: Count = 10_000
    """Messages queued for such a peer. Default 10000, as in NorFab."""

    events_ring: Annotated[int, Meta(ge=0, le=2**20)] = 8192
    """Job events kept to be read by their number. Default 8192: some MiB. 0 keeps the latest alone."""

    unlisted: Literal["owner", "user", "guest", "deny"] = "user"
    """The standing of keys that `nfp.keys` does not list, and of everybody in plaintext. Default user: NorFab's peers
    make their own keys. deny refuses them at the gate; the owner's key in base_dir gets in."""

    results: Literal["holder", "user", "anyone"] = "holder"
    """Who may fetch a job's results by its id. Default holder: whose job it is, and owners. user: users, too. anyone:
    guests, too. Only holder and owners see the job in lists, follow its events, or cancel it."""

    offer_unlisted: bool = True
    """Let unlisted peers offer services as workers. Default true, for the same reason. false: listed ones only."""

    files: str | None = None
    """Folder whose files `nf://` serves. Default: `files` in base_dir. "" serves none."""

    files_deny: tuple[Text, ...] = ("*.key", "*.key_secret", "*.db", "*.db-wal", "*.db-shm", ".*")
    """Names of files and folders in it that are not served, with * and ?. Default: keys, stores and hidden ones."""

    announce: bool = True
    """Publish what happens to jobs as events `nfp.job.UUID.*` on the broker this one is attached to, private to owners
    and to who submitted. Default true: dashboards show it. false: answers and streams only."""

    inventory_unlisted: bool = True
    """Give workers whose key `nfp.keys` does not list what the inventory has for their name. Default true, for the same
    reason; a name belongs to the first key that used it. false: owners and listed keys only."""

    keys: tuple[KeyEntry, ...] = ()
    """`[[nfp.keys]]`: who is who. Default none: everybody is unlisted."""

    rules: tuple[RuleEntry, ...] = ()
    """`[[nfp.rules]]`: who may have which task run. Default none: users everything but what owners keep to
    themselves, guests nothing."""

    tasks: tuple[TaskEntry, ...] = ()
    """`[[nfp.tasks]]`: which tasks may run twice. Default none: what their workers say, else all."""

    @property
    def secret_file(self) -> str:
        """The file of this broker's certificate."""
        return self.key_secret or os.path.join(self.base_dir, "broker.key_secret")

    @property
    def store_file(self) -> str:
        """The file of its store; "" when nothing is stored."""
        return os.path.join(self.base_dir, "nfp.db") if self.store else ""

    @property
    def files_dir(self) -> str:
        """The folder that is served; "" when none is."""
        return os.path.join(self.base_dir, "files") if self.files is None else self.files


def nfp_problems(section: NfpSection) -> Iterator[Problem]:
    """Yield every fault of a section whose types are right."""
    yield from _endpoints(section)
    yield from _keys(section)
    yield from _limits(section)
    yield from _folders(section)


def _endpoints(section: NfpSection) -> Iterator[Problem]:
    for name, uri in (("endpoint", section.endpoint), ("worker_endpoint", section.worker_endpoint)):
        if uri is None:
            continue
        path = ("nfp", name)
        faults = list(check_uri(path, uri, "tcp", "ipc"))
        yield from faults
        if not faults and beyond_loopback(uri) and not (section.curve or section.insecure):
            yield saw(path, uri, "a loopback address, or nfp.curve = true, or nfp.insecure = true")
    if section.worker_endpoint == section.endpoint and not section.endpoint.endswith(":*"):
        yield saw(("nfp", "worker_endpoint"), section.worker_endpoint, "another address than nfp.endpoint")


def _keys(section: NfpSection) -> Iterator[Problem]:
    yield from check_keys(("nfp", "keys"), (entry.key for entry in section.keys))
    for index, entry in enumerate(section.keys):
        if entry.standing == "none" and entry.services:
            yield saw(("nfp", "keys", index, "services"), list(entry.services), "no services with none")
    if section.curve:
        return
    if section.keys:
        yield Problem(("nfp", "keys"), "saw keys without nfp.curve, expected it: only CURVE checks keys")
    if section.unlisted == "deny":
        yield saw(("nfp", "unlisted"), section.unlisted, "a standing: without nfp.curve nobody is listed")


def _limits(section: NfpSection) -> Iterator[Problem]:
    yield from check_order(
        ("nfp",),
        section,
        ("credits", "credits_max"),
        ("queue_ttl_s", "job_ttl_s"),
        ("queue_per_client", "queue_max"),
        ("message_bytes_max", "peer_queue_bytes"),
    )
    hold_s = section.keepalive_ms * section.multiplier / 1000
    if section.grace_s > hold_s:
        yield saw(("nfp", "grace_s"), section.grace_s, f"at most keepalive_ms x multiplier, {hold_s:g} s")


def _folders(section: NfpSection) -> Iterator[Problem]:
    """Files for everybody must not lie around the keys and the store."""
    if not section.files:
        return
    served, *kept = (
        os.path.abspath(each)
        for each in (section.files, section.base_dir, os.path.dirname(section.secret_file))
    )
    for folder in dict.fromkeys(kept):
        if os.path.commonpath((served, folder)) == served:
            yield saw(("nfp", "files"), section.files, f"a folder without the keys in {folder}")
