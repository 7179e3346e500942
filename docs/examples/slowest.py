"""The ten slowest calls of a recorded session, read from its journal without Spark.

headgate up --size 4 --journal journal
python slowest.py journal
"""

import sys

from broker.journal.reading.records import records


def main(folder):
    open_calls, slowest = {}, []
    for record in records(folder):
        if record.type == "request" and record.direction == "in":
            open_calls.setdefault((record.rank, record.origin, record.matchtag), record)
        elif record.type == "response" and record.direction == "in":
            asked = open_calls.pop((record.rank, record.origin, record.matchtag), None)
            if asked is not None:
                slowest.append(((record.ts_ns - asked.ts_ns) / 1e6, asked))
    slowest.sort(key=lambda pair: -pair[0])
    for ms, asked in slowest[:10]:
        print(f"{ms:9.3f} ms  rank {asked.rank}  userid {asked.userid}  {asked.topic}")


if __name__ == "__main__":
    main(sys.argv[1])
