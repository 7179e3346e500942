"""The composition root: the only room that knows all others.

``broker``             the corridor: a batch of messages from a link, through ingress and routing, to the outboxes
``rundir``             the directory of its sockets
``client_admission``   the clients' door: listeners, admission of a new link, credentials, its port
``backlog``            fairness: what one batch leaves over waits for its turn
``pressure``           full outboxes: which link is paused, which one stalls, which one must go
``calls``              the broker's own requests and their answers
``context``            the broker as its services see it: implements ``broker.services.context``
``tracing``            messages that pass, handed to watchers
``overlay/``           the tree: hello, parent, children, liveness, rejoin
``lifecycle``          the states, and what moves a broker on from one to the next
``assembly``           settings -> the rooms of one broker, put together; ``link_options``: what they are told of links
``bootstrap``          a broker as a process: logging, signals, exit code
``drain``              leaving without cutting anybody short
``probes``             whether it lives and is ready: over HTTP, and for the service manager
``reload``             the settings read again while it runs: keys, clients, access
``attributes``, ``curve_keys``, ``metrics``: what the broker shows of itself
``capture``            the journal: records of messages, links and refusals, to the process that writes them
``event_numbers``      numbers of events that outlive rank 0, where there is a journal
"""
