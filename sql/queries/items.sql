-- name: add
SELECT job_id::text, verdict
FROM add_items_v1(
    %(ids)s::uuid[], %(tokens)s::uuid[], %(attempts)s::integer[], %(before)s::integer[],
    %(counts)s::integer[], %(items)b::bytea[]
);

-- name: story
-- Steps and items of one moment: read one after the other, items of a later attempt could come before the
-- step that tells of it. How large items are is added up before any of them is fetched.
SELECT v.sequence, v.at, v.from_state, v.state, v.attempt, v.actor, v.reason, NULL::bytea[] AS items
FROM job_event v WHERE v.job_id = %(job_id)s::uuid AND v.sequence > %(after)s
UNION ALL
SELECT g.sequence, NULL, NULL, NULL, NULL, NULL, NULL, g.items
FROM (
    SELECT k.sequence, k.items, sum(k.bytes) OVER (ORDER BY k.sequence) - k.bytes AS bytes_before
    FROM (
        SELECT i.sequence, i.items, i.bytes
        FROM job j JOIN job_items i ON i.job_id = j.id AND i.attempt = j.attempt
        WHERE j.id = %(job_id)s::uuid AND j.state <> 'queued' AND i.sequence > %(after)s
            AND coalesce(j.result_expires_at > clock_timestamp(), true)
        ORDER BY i.sequence LIMIT %(most_groups)s
    ) AS k
) AS g
WHERE g.bytes_before < %(most_bytes)s
ORDER BY sequence;
