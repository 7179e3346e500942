"""The driver ``zmq`` of oslo.messaging: the only room that imports oslo's packages.

::

    options        the group ``oslo_messaging_zmq`` and a transport URL -> ``contract.Settings``; what is set in vain
    serialization  contexts, messages, results and failures <-> bodies, as rabbit's driver would have them
    listener       how a server gets its messages: threads of its executor take them, or one polls, and holds so many
    driver         ``ZmqDriver``, which oslo.messaging loads by its entry point; failures -> exceptions that it knows

An application changes its ``transport_url`` and nothing else (zmq-patterns-usage, "Impact on Existing APIs").
"""
