"""Judges a run from what both ends wrote down (`tests.proof.record`). Standard library only; nothing of the product.

    entries     connections, calls, events, jobs, with all that was written of each
    story       the lines of a run as such entries; what does not fit together is said (C0)
    places      the tree, and the way of a message through it
    trouble     when a fault, or its aftermath, touched a way
    verdict     what was found: violations, and how much there was to judge
    calls       C1 to C6 and C12: requests and their answers, by Flux, the web and oslo.messaging
    events      C7, C8, C13: numbers, order, losses, returns
    stamps      C9: who was allowed to send, serve and receive what
    usage       C10: memory, descriptors, tasks
    jobs        C11: NFP
    returns     C7, C9, C13, C14 over the dashboards of a scene
    judge       all of it

The rules. A way is *touched* in a time when a fault, or the ``settle_s`` after its end, overlaps that time and
concerns a process or a link on it, or a link of the tree below a broker that lost its parent (such a broker sends its
children away, who join anew). A pair is *live* when both connections last through the whole time, and the way between
them is untouched.

C0   The logs fit together: every connection, call and event that is spoken of is known; nobody serves, and no event
     arrives, what nobody sent; a connection ends by its party's will, or where it is touched; load that was meant to
     be there was.
C1   Every call has exactly one end: its last answer, or that its party gave up because the connection was lost or the
     time was over. Calls of a party that was killed, and those without response, have at most one. None hangs until
     its party leaves.
C2   No request is served twice, whatever happens.
C3   What one connection asks of one provider's connection is served in the order in which it was sent, whatever
     happens; by oslo.messaging where it is untouched, since there another server takes over from one that is gone.
C4   Responses of one call come in the order in which they were made: none missing, none twice, none behind the last.
C5   A call between a live pair is served exactly once and answered without error; a stream is answered completely.
C6   An error is one of EHOSTUNREACH, ENOSYS, ECONNRESET, ETIMEDOUT, EAGAIN, from a gateway that leaves ESHUTDOWN, and
     comes only where the way is touched, or the provider came or went during the call. A call that policy forbids gets
     exactly the errno that is expected.
C7   One event has one number, one number one event, until rank 0 begins anew; on each connection numbers increase. An
     event that a subscriber was passed over with has been told: to a web client by a gap, below a broker in that
     broker's log, unless the subscriber has heard nothing before.
C8   An event that has a number reaches every subscriber whose way from rank 0 is untouched.
C9   The stamp a provider sees is the caller's userid and no role beyond the caller's; LOCAL ends with the host.
     Forbidden calls are never served, private events reach the owner and the sender's userid only, and nothing
     reaches a provider or subscriber that did not ask for it.
C10  When everything is quiet again, memory, descriptors and tasks of every member are what they were.
C11  A job that was acknowledged has exactly one recorded result for each worker it is for, told and stored alike; the
     same worker does not run it twice at a time; one that must not run twice does not; untouched, it runs once and
     succeeds.
C12  A cast or a notification is served at most once, a fan-out at most once by each server; exactly once where the way
     to every server is untouched. Restarts of oslo.messaging's proxies touch nothing, nor do they in C5.
C13  A web client that comes back, to any gateway, and is told that nothing is missing gets every event between the last
     one that it had and the number it is told, whatever happened; and none that it had. In a scene of
     `tests.proof.returns` a dashboard gets every event from its first one to the last, but where it is told of a loss.
C14  In a scene nobody is told of a loss, and numbers go on, where rank 0, its journal or a gateway has the events;
     where they are gone every dashboard is told so, and where rank 0 is gone without a journal numbers begin anew.

What is not demanded. Nothing is said about how long an untouched call takes beyond its party's own patience, nor that
a call which failed was not served: the answer may have been lost behind it.
"""

from tests.proof.checker.judge import check
from tests.proof.checker.verdict import Verdict, Violation

__all__ = ["Verdict", "Violation", "check"]
