"""From one dialect to another, refusing what cannot be carried (RFC 3, its three texts).

Every message passes through the form of the house (Flux v1 as deployed), so a pair of dialects loses what
either half loses. The rules, by the side that a message is written to (``-`` carried as it is):

=====================  ===========  =============  ====================  ==============================
what                   flux1        flux1 strict   cmb1rev               cmb1
=====================  ===========  =============  ====================  ==============================
NORESPONSE 0x04        -            -              -                     refused: would be answered
UPSTREAM 0x10          -            -              -                     -
PRIVATE 0x20           -            -              -                     refused: would be shown to all
STREAMING 0x40         -            -              -                     refused: would end at the first
USER1 0x80             -            -              refused: undefined    refused: undefined
payload                -            -              -                     JSON marked, its NUL removed
control HEARTBEAT      -            -              keepalive, errnum 0   keepalive, errnum 0
control, other types   -            -              refused               refused
control with parts     -            refused        refused               refused
no topic (but control) -            refused        refused               refused
nodeid 0xFFFFFFFE      -            refused        refused               refused
routes, delimiter      -            requests and responses only, delimiter always
route id, topic        -            NUL-terminated as they are (hops unescaped, or refused)
event's unused word    -            zero           zero                  zero
credentials, errnum, nodeid, matchtag, sequence, control status: carried by all
=====================  ===========  =============  ====================  ==============================

A flag is refused on every type, also where its text gives it no meaning (STREAMING on an event): a receiver
must see the flags that were sent, or nothing. Nobody is left waiting for what was refused: see
``answer_refused`` and ``said_instead``, which links use (``Link.refuse``). And by the side that it is read from:

=====================  ===========  =============  ====================  ==============================
what                   flux1        flux1 strict   cmb1rev               cmb1
=====================  ===========  =============  ====================  ==============================
undefined flag bits    none         none           0x80: DecodeError     0x20 0x40 0x80: DecodeError
bit 0x04               NORESPONSE   NORESPONSE     NORESPONSE            JSON: the payload gains a NUL
keepalive errnum       -            -              refused unless 0      refused unless 0
missing delimiter      kept so      added          added                 added
parts of control       kept         dropped        dropped               dropped
=====================  ===========  =============  ====================  ==============================
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.wire.message import NORESPONSE, PAYLOAD, REQUEST, RESPONSE, ROUTE, TOPIC, Message, response
from broker.wire.payload import encode_text

if TYPE_CHECKING:
    from broker.errors import Untranslatable
    from broker.wire.dialects.contract import Dialect


def translate(parts: list[bytes], source: Dialect, target: Dialect) -> list[bytes]:
    """The message in ``parts``, read as ``source``, written as ``target``.

    Raises:
        DecodeError: no message of ``source``.
        Untranslatable: ``target`` cannot carry it; the text says which field and why.
    """
    return target.encode(source.decode(parts))


def answer_refused(message: Message, error: Untranslatable) -> Message | None:
    """What a request gets that could not be written to its link: EOPNOTSUPP and the reason as text.

    A link gives it to its receiver as if its peer had answered, so that no caller waits for ever. None for
    everything that expects no answer.
    """
    if message.type != REQUEST or message.flags & NORESPONSE:
        return None
    return response(message, encode_text(str(error)), errnum=error.errno)


def said_instead(message: Message, error: Untranslatable) -> Message | None:
    """What a caller gets in place of a response that its link cannot carry: EOPNOTSUPP and the reason as text.

    It has no flags that a dialect could refuse. None for everything but a response, and for one without such
    flags: it was refused for something that an error response would share.
    """
    common = message.flags & (TOPIC | PAYLOAD | ROUTE)
    if message.type != RESPONSE or message.flags == common:
        return None
    text, sender = encode_text(str(error)), (message.userid, message.rolemask)
    instead = response(message, text, errnum=error.errno, userid=sender[0], rolemask=sender[1])
    instead.set_flags(common | PAYLOAD)
    return instead
