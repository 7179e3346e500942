-- What queries are given as bronze: rows of it (recorded), and whether who sent one (tree), and the other end
-- (via_tree), is another broker of the tree. Whoever has another role, or none, entered the tree at the broker that
-- recorded it.
-- name: bronze
SELECT *, coalesce(role IN ('child', 'parent'), false) AS tree,
    coalesce(via_role IN ('child', 'parent'), false) AS via_tree
FROM recorded

-- What is looked for first, in one pass over the rows: a table that can have none is not made (queries.NEEDS).

-- name: look
SELECT count(*) AS n, max(ts_ns) AS newest_ns, count_if(direction <> 'in' AND origin IS NULL) AS hops,
    count_if(type IN ('request', 'response')) AS calls,
    count_if(kind = 'flux' AND direction <> 'denied' AND tree) AS tree,
    count_if(direction = 'denied' OR errnum > 0 OR topic = 'denied.link') AS refused,
    count_if(type = 'event' AND direction = 'in' AND event_seq > 0) AS events,
    count_if(kind = 'flux' AND direction = 'out') AS out, count_if(kind = 'nfp') AS jobs,
    count_if(kind = 'oslo') AS oslo, count_if(kind = 'state' AND topic <> 'denied.link') AS states
FROM bronze
