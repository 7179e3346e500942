"""What applications do and oslo.messaging's own suite does not ask for; runs inside the environment of an application.

::

    python -m tests.live.oslo_tricks JSON    {"green": bool, "servers": URL, "clients": URL, "only": part of a name}

Servers and clients may live on different nodes. Each trick ends in a line of JSON: {"trick", "ok", "seconds", "text"}.
A trick is a function of ``rpc``, ``ends`` or ``notifications``; it fails by raising. Only public interfaces are used.
"""
