"""What types cannot say about `[nfp]`: addresses, plaintext, keys, limits that exceed each other, where secrets lie."""

import os
from collections.abc import Iterator

from broker.schemes import beyond_loopback
from broker.settings.faults import Problem, check_key, check_uri, saw
from broker.settings.nfp import NfpSection


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
    seen: set[str] = set()
    for index, entry in enumerate(section.keys):
        path = ("nfp", "keys", index, "key")
        yield from check_key(path, entry.key)
        if entry.key in seen:
            yield saw(path, entry.key, "each key once")
        seen.add(entry.key)
        if entry.standing == "none" and entry.services:
            yield saw(("nfp", "keys", index, "services"), list(entry.services), "no services with none")
    if section.curve:
        return
    if section.keys:
        yield Problem(("nfp", "keys"), "saw keys without nfp.curve, expected it: only CURVE checks keys")
    if section.unlisted == "deny":
        yield saw(("nfp", "unlisted"), section.unlisted, "a standing: without nfp.curve nobody is listed")


def _limits(section: NfpSection) -> Iterator[Problem]:
    for smaller, larger in (
        ("credits", "credits_max"),
        ("queue_ttl_s", "job_ttl_s"),
        ("queue_per_client", "queue_max"),
        ("message_bytes_max", "peer_queue_bytes"),
    ):
        low, high = getattr(section, smaller), getattr(section, larger)
        if low > high:
            yield saw(("nfp", smaller), low, f"at most {larger}, {high}")
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
