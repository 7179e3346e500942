"""Where a message goes: pure state, no I/O, no clock (RFC 3, "Request Routing" and following).

``port``               the router's record of one attached link: hop, pending calls, subscriptions
``topology``           the tree: parent, children, next hop towards a rank
``service_table``      service name -> port
``router``             requests and responses: decide once, remember, unwind
``request_routing``    where a request goes: a service of this rank, a neighbour
``open_calls``         who waits for whose answer: by key, by sender and service, by who owes it
``notices``            disconnect notices armed and disarmed
``users``              what the links of one user hold together
``call_caps``          the caps on open calls of many links together
``events``             numbering, order, subscriptions, private events
``held_events``        events that wait for a parent
``flow``               whether events may go on: what is on its way to brokers and subscribers
``window``             the same of one neighbour of the tree
``recording``          what the router sees of a recorder of traffic, and the records that are rare
``departure``          what is owed when a port goes: answers, disconnect notices
``call_stats``         rate, errors and duration of the clients' calls, by method
``event_stats``        how many events were published, by topic
``tally``              counts of what passed, and of what did not and why
"""

# compiled: mypyc
