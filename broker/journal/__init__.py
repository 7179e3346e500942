"""What passed, on disk: append-only segments of blocks, written outside the corridor, read without Spark.

``layout``    the bytes of a segment: header, block header, entry; the numbers that stand in them
``marks``     what the corridor hands over in front of each record, and the envelope of a chunk
``options``   what is captured, where to, how it is rotated, synced and kept
``tap``       the corridor's end: records as they pass, peers by number, chunks at the end of a batch
``feed``      a tap with its recorder on an event loop, for processes that record beside their own work
``premises``  what must be there before a writer is started
``child``     the processes that write and ship, seen from the one that records: socket pair, process, one descriptor
``recorder``  chunks to the process that writes; bounded, never waiting; what it sheds is counted
``crc``       the CRC of a block, by isa-l where it is there
``stores``    a store of segments that a URL names, through pyarrow
``shipping``  sealed segments to a store, each once; a process of its own where a broker asks for it
``samples``   what a recorder has to tell, as Prometheus is told
``writer/``   that process: chunks -> blocks -> segments; rotation, retention, recovery, a full disk
``reading/``  segments -> blocks -> records (plain Python) or columns (numpy); verification, following
``replay``    a captured session sent again

A record's way: ``Router.request`` -> ``routing.recording.record_request`` (mark and frame into ``Tap.items``) -> at the
end of the batch ``node.capture`` -> ``Tap.end_batch`` -> ``Recorder.hand`` -> (socket) -> ``writer.process`` ->
``writer.intake`` -> ``writer.blocks`` -> ``writer.segments`` -> disk -> ``reading``.
"""
