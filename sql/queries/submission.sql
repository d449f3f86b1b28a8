-- name: submit
-- The large arrays in binary: as text, an input would be sent at twice its size.
SELECT job_id::text, outcome, state, created_at, queue_deadline_at, deadline_at, outstanding,
    wait_s, place::text, due_s, is_placed
FROM submit_v3(
    %(ids)s::uuid[], %(owner_ids)s::uuid[], %(key_ids)s::uuid[], %(functions)s::text[],
    %(interfaces)s::text[],
    %(inputs)b::bytea[], %(digests)b::bytea[], %(costs)s::double precision[], %(weights)s::double precision[],
    %(attempts)s::integer[], %(started)s::integer[], %(charged)s::integer[], %(alone)s::boolean[],
    %(queue_s)s::double precision[], %(total_s)s::double precision[],
    %(most_outstanding)s::integer[], %(most_waiting)s::integer[],
    %(most_costs)s::double precision[], %(most_ages_s)s::double precision[],
    %(request_ids)s::text[], %(traceparents)s::text[], %(idempotency_keys)s::text[], %(retries_of)s::uuid[],
    %(actors)s::text[], %(waiters)s::text[], %(key_ttl_s)s, %(places)s::uuid[]
);

-- name: remembered
SELECT job_id::text, digest FROM idempotency
WHERE owner_id = %(owner_id)s::uuid AND function = %(function)s AND key = %(key)s
    AND expires_at > clock_timestamp();
