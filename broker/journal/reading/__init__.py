"""Segments -> blocks -> records (plain Python) or columns (numpy); nothing here writes.

``segments``  where segments lie (a folder, or a store that a URL names), a segment's header and name, which of them is
              being written; what is torn or damaged, as a value (``Damage``) and an error (``Damaged``)
``bodies``    bodies as stored -> bodies -> their parts: what an entry's offsets say, or a walk where they do not fit
``blocks``    one block: its header, entries and bodies; those of a segment: ``walk`` (strict), ``salvage`` (steps over
              damage)
``peers``     names of peers, from DICTIONARY records
``records``   records with named fields; numbers that are missing, and why; no numpy
``entries``   what a column is, and the entries of some blocks as arrays (numpy)
``columns``   the fields of records as numpy columns, whole blocks at a time
``verify``    what is in each segment, by block headers alone; every damage, gap and oddity of a directory
``follow``    blocks as they come, over rotation and retention
``last_events`` a process that gives a rank 0 the events of the one before it

A reader never changes a file and takes no lock; what the writer has not finished yet is not there yet.
"""
