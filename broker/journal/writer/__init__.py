"""The process that writes: chunks from a socket -> blocks -> segments.

``start``      command line, options, lock; the last report
``process``    the loop: chunks in, blocks out, reports back
``intake``     bytes of the socket -> chunks -> where records begin in them, and their times (a walk in Python)
``blocks``     many chunks -> one block: numbering, gaps, entries, bodies without payloads, compressed
``entries``    the parts of many frames, and the fields of all records of a block, at once (numpy)
``peers``      who is alive, to be repeated at a segment's begin
``segments``   blocks -> files: rotation, sync, cutting back when the disk is full
``recovery``   what a former writer left: its torn tail is cut, its numbers go on; which sealed segments go

Started by ``broker.journal.recorder`` as ``python -m broker.journal.writer FD JSON``; see ``start``.
"""
