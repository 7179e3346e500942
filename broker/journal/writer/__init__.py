"""The process that writes: chunks from a socket -> blocks -> segments.

``start``      command line, options, lock; the last report
``process``    the loop: chunks in, blocks out, reports back
``intake``     bytes of the socket -> chunks
``frames``     where records begin in a chunk, and when they were (the only walk in Python)
``blocks``     many chunks -> one block: numbering, gaps, entries, bodies without payloads
``entries``    the fields of all records of a block at once (numpy)
``parts``      parts of many frames at once (numpy)
``peers``      who is alive, to be repeated at a segment's begin
``codecs``     bodies, compressed
``segments``   blocks -> files: rotation, sync, cutting back when the disk is full
``retention``  which sealed segments go
``recovery``   what a former writer left: its torn tail is cut, its numbers go on

Started by ``broker.journal.recorder`` as ``python -m broker.journal.writer FD JSON``; see ``start``.
"""
