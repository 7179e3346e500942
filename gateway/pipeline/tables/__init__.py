"""Gold tables, each a pure function of rows of bronze, in Spark's SQL.

``*.sql``     the queries, each below its ``-- name:``: gold tables by their name, what a step of a stream leaves open
              as ``open KIND``, the views that these name, ``bronze`` and ``look``: ``grep -n 'name: rpc' *.sql``
``queries``   statements of a query and those that it names; their DataFrames

Queries name one another, and what they are given:

- ``bronze``: rows of bronze, with whether another broker is at either end (``tree``, ``via_tree``); ``resolved``: the
  same with ``origin`` filled in;
- ``calls``: what became of each call; made once, and kept;
- ``before``: what an earlier batch left open, in the columns of ``_open``; empty where all of bronze is given;
- ``:since_ns``: a parameter: calls that are open and not older, and jobs that were heard of since, are left open.

Numbers in them are of RFC 3: flags 4 (no response wanted) and 64 (streaming); errno 1 and 13 (EPERM, EACCES: refused
for want of rights), 61 (ENODATA: a stream of responses ended well). A time is 0 where the clock stepped back, and NULL
where there is no end. A sum of times beyond 64 bits (a clock was set, from 1970 to now, while calls were open) is
9223372036854775807; an errno that an answer says may be any 32 bits, and beyond 31 of them is 2147483647.

Spark's own ways: ``try_parse_json`` and ``try_variant_get`` give NULL where ``detail`` is no JSON, or has no such value
of that type; ``greatest`` and ``least`` pass over NULL; a sum beyond 64 bits is an error; a view that is named
twice in a statement is computed twice; an aggregate that keeps strings sorts its rows, one that groups by them does
not.
"""
