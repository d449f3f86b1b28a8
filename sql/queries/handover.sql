-- name: hand_over
-- The large arrays in binary: as text, an input would be sent at twice its size.
SELECT job_id::text, verdict, state, created_at, queue_deadline_at, deadline_at
FROM handover_v1(
    %(session_id)s::uuid, %(claim_id)s::uuid, %(ids)s::uuid[], %(tokens)s::uuid[], %(owner_ids)s::uuid[],
    %(key_ids)s::uuid[], %(functions)s::text[], %(interfaces)s::text[], %(inputs)b::bytea[],
    %(digests)b::bytea[], %(costs)s::double precision[], %(weights)s::double precision[],
    %(attempts)s::integer[], %(attempt)s::integer[], %(charged)s::integer[], %(alone)s::boolean[],
    %(waited_s)s::double precision[], %(elapsed_s)s::double precision[],
    %(remaining_s)s::double precision[], %(queue_s)s::double precision[],
    %(request_ids)s::text[], %(traceparents)s::text[], %(lease_s)s
);
