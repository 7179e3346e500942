"""Every decoder of the product under one name each, for whatever drives a fuzzer.

``TARGETS[NAME].entry(data)`` takes any bytes and returns whether they were read; it raises only for a fault of ours.
Seeds are made from captured messages and from the text of each format; what fuzzing found on top of them is kept in
``corpus/NAME/``: inputs that reached code which no other reached, and inputs (``found-...``) that once were a finding.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.entries import disk, flux, web, wings

CORPUS = Path(__file__).parent / "corpus"
CORPUS_BYTES_MAX = 200 << 10
"""Of all files together."""
FOUND = "found-"
"""How the name of an input begins that was a finding."""
INPUT_BYTES_MAX = 4096
"""Longest input that is tried: what a decoder does it does within that."""

Entry = Callable[[bytes], bool]


def _as_it_is(data: bytes) -> bytes:
    return data


class Target(NamedTuple):
    """One decoder, or a few that take the same bytes."""

    name: str
    entry: Entry
    seeds: Callable[[], list[bytes]]
    finish: Callable[[bytes], bytes] = _as_it_is
    """The last step of a mutation: makes check sums right, where without it hardly an input was looked at."""
    close: Callable[[], None] = flux.close
    """Gives back what the entry keeps between inputs. Harmless twice."""

    def corpus(self) -> list[bytes]:
        """Seeds and what is kept, shortest first."""
        kept = [path.read_bytes() for path in sorted((CORPUS / self.name).glob("*"))]
        return sorted({*self.seeds(), *kept}, key=lambda data: (len(data), data))


def file_name(data: bytes, prefix: str = "") -> str:
    """What an input is called in the corpus."""
    return prefix + hashlib.sha256(data).hexdigest()[:12]


_ALL = (
    Target("framing", flux.framing, flux.framing_seeds),
    Target("message", flux.message, flux.bodies_seeds),
    Target("dialects", flux.dialects, flux.dialects_seeds),
    Target("batch", flux.batch, flux.batch_seeds),
    Target("zmtp", flux.zmtp, flux.zmtp_seeds),
    Target("hello", flux.greeting, flux.greeting_seeds),
    Target("overlay", flux.overlay, flux.overlay_seeds),
    Target("payload", flux.payloads, flux.payloads_seeds),
    Target("texts", flux.texts, flux.texts_seeds),
    Target("services", flux.services, flux.services_seeds),
    Target("tls", web.tls, web.tls_seeds),
    Target("websocket", web.websocket, web.websocket_seeds),
    Target("websocket-dialer", web.websocket_dialer, web.websocket_dialer_seeds),
    Target("flux-v1", web.flux_v1, web.flux_v1_seeds),
    Target("json-view", web.json_view, web.json_view_seeds),
    Target("control", web.control_objects, web.control_objects_seeds),
    Target("zws", web.zws_both, web.zws_seeds),
    Target("credentials", web.credentials, web.credentials_seeds, close=web.close),
    Target("keys", web.key_documents, web.key_documents_seeds),
    Target("certificate", web.certificate, web.certificate_seeds),
    Target("proxy-header", web.proxy_header, web.proxy_header_seeds),
    Target("origins", web.origins, web.origins_seeds),
    Target("nfp-frames", wings.nfp_frames, wings.nfp_frames_seeds),
    Target("nfp-texts", wings.nfp_texts, wings.nfp_texts_seeds),
    Target("nfp-topics", wings.nfp_topics_and_bodies, wings.nfp_topics_and_bodies_seeds),
    Target("oslo-frames", wings.oslo_frames, wings.oslo_frames_seeds),
    Target("directory", wings.directory, wings.directory_seeds),
    Target("oslo-topics", wings.oslo_topics, wings.oslo_topics_seeds),
    Target("oslo-bodies", wings.oslo_bodies, wings.oslo_bodies_seeds),
    Target("journal", disk.journal, disk.journal_seeds, disk.resealed, disk.close),
    Target("broker-toml", disk.broker_settings, disk.broker_settings_seeds),
    Target("gateway-toml", disk.gateway_file, disk.gateway_file_seeds),
    Target("curve", disk.zpl_certificate, disk.zpl_certificate_seeds),
)
TARGETS = {target.name: target for target in _ALL}
"""Name -> target, in the order of a message's way."""
