-- name: originals
-- The input only of those that can be done again: it may be large.
SELECT id::text AS job_id, owner_id::text, function, interface, state, retried_as::text,
    CASE WHEN retried_as IS NULL AND state IN ('failed', 'expired', 'cancelled') THEN input ELSE ''::bytea END
        AS input,
    digest, cost, weight, attempts, request_id, traceparent,
    extract(epoch FROM queue_deadline_at - created_at)::double precision AS queue_s,
    extract(epoch FROM deadline_at - created_at)::double precision AS total_s,
    coalesce(settle_at <= clock_timestamp(), false) AS overdue
FROM job
WHERE id = ANY (%(job_ids)s::uuid[]) AND (%(owner_id)s::uuid IS NULL OR owner_id = %(owner_id)s::uuid)
ORDER BY id;
