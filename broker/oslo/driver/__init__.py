"""The driver ``zmq`` of oslo.messaging: the only room that imports oslo's packages.

::

    options        group ``oslo_messaging_zmq`` of a service's configuration; what of 2018 is set in vain is said
    url            a transport URL and the options -> ``contract.Settings``, and how a virtual host isolates
    serialization  contexts, messages, results and failures <-> bodies, as rabbit's driver would have them
    errors         failures of the wing -> exceptions that oslo.messaging knows
    listener       how a server gets its messages: threads of its executor take them, or one polls, and holds so many
    driver         ``ZmqDriver``, which oslo.messaging loads by its entry point

An application changes its ``transport_url`` and nothing else (zmq-patterns-usage, "Impact on Existing APIs").
"""
