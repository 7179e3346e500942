"""Bytes to messages and back: pure, no I/O, no clock (RFC 3).

``parts``    the encoding of one part: size and data
``message``  the one Message class: five encoded segments, patched in place
``decoding`` bytes to canonical messages
``framing``  stream framing: magic, length, parts; any split of the bytes
``payload``  payload norms: NUL-terminated strings and JSON objects
``topic``    topic strings and service names
``audience`` the receivers of an event: prefixes looked up by topic, and what was found
``event_history`` the last events by number: what rank 0 and gateways keep for whoever comes back
``shares``   what an event counts for, and how much one user may publish while events have to wait
``dialects`` the three texts of RFC 3 as properties of a link, and translation between them
``log_entry`` entries of the log, as ``log.append`` and ``log.dmesg`` have them
"""
