"""Where a message goes: pure state, no I/O, no clock (RFC 3, "Request Routing" and following).

``port``               the router's record of one attached link: hop, pending calls, subscriptions
``topology``           the tree: parent, children, next hop towards a rank
``router``             requests and responses: decide once, remember, unwind
``request_routing``    where a request goes: a service of this rank (``ServiceTable``), a neighbour
``open_calls``         open calls by key, by sender and service, by the port that owes the answer; disconnect notices
``users``              what the links of one user hold together; the caps on open calls
``events``             numbering, order, subscriptions, private events
``flow``               whether events may go on: what is on its way to brokers and subscribers, what waits for a parent
``recording``          what the router sees of a recorder of traffic, and the records that are rare
``departure``          what is owed when a port goes: answers, disconnect notices
``counters``           messages that passed, and those that did not and why; calls by method, events by topic
"""

# compiled: mypyc
