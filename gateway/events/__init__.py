"""Events on their way to web clients.

``run``      consecutive events for the same receivers: encoded once, shared by all of them
``fanout``   who gets which event: prefixes, rights, privacy
``latest``   the newest event of each topic
"""
