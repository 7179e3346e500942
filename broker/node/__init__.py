"""The composition root: the only room that knows all others.

``broker``             the corridor: a batch of messages from a link, through ingress and routing, to the outboxes
``rundir``             the directory of its sockets
``client_admission``   a new link: admission, credentials, its port
``listening``          where clients come in, and new keys for that
``descriptors``        how many there are, and whose they are
``backlog``            fairness: what one batch leaves over waits for its turn
``pressure``           full outboxes: who is paused, who stalls, who must go
``keepalive``          a sign of life on quiet links of the older dialects
``calls``              the broker's own requests and their answers
``figures``            what it counted and who holds how much, JSON-ready
``context``            the broker as its services see it: implements ``broker.services.context``
``tracing``            who looks on while messages pass
``overlay/``           the tree: hello, parent, children, liveness, rejoin
``lifecycle``          the states; ``state_follower``: which follows which, with the tree
``assembly``           settings -> the rooms of one broker, put together; ``link_options``: what they are told of links
``bootstrap``          a broker as a process: logging, signals, exit code
``drain``              leaving without cutting anybody short
``probes``             whether it lives and is ready: over HTTP, and for the service manager
``reload``             the settings read again while it runs: keys, clients, access
``attributes``, ``curve_keys``, ``logring``, ``metrics``: what the broker shows of itself
``capture``            the journal: records from the corridor to the process that writes them
``linkfacts``          what the journal is told of links; ``refusals``: of who was turned away
"""
