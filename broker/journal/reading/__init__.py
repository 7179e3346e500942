"""Segments -> blocks -> records (plain Python) or columns (numpy); nothing here writes.

``damage``    what is torn or damaged: a value (``Damage``) and an error (``Damaged``) with the exact extent
``files``     where segments lie: a folder of this machine, or a store that a URL names
``segments``  a segment's header and name; the segments of a directory; which of them is being written
``blocks``    blocks of a segment: ``walk`` (strict), ``salvage`` (steps over damage), ``complete_end``
``heads``     one block: its header, entries and bodies
``codecs``    bodies as stored -> bodies
``peers``     names of peers, from DICTIONARY records
``bodies``    the parts of one body: what an entry's offsets say, or a walk where they do not fit
``records``   records with named fields; no numpy
``columns``   the same as numpy columns, whole blocks at a time
``shapes``    what a column is; ``entries`` and ``batch`` make them (these four alone import numpy)
``gaps``      numbers that are missing, and why
``contents``  what is in each segment, by block headers alone
``verify``    every damage, gap and oddity of a directory
``follow``    blocks as they come, over rotation and retention

A reader never changes a file and takes no lock; what the writer has not finished yet is not there yet.
"""
