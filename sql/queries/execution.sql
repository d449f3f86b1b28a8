-- name: claim
SELECT job_id::text, token::text, attempt, charged, function, input, owner_id::text, remaining_s, waited_s,
    request_id, traceparent, alone
FROM claim_v2(
    %(session_id)s::uuid, %(claim_id)s::uuid, %(functions)s::text[], %(interfaces)s::text[],
    %(groups)s::integer[], %(expected_s)s::double precision[], %(free)s::integer[], %(lease_s)s,
    %(alone)s
);

-- name: next_due
SELECT extract(epoch FROM min(d.due_at) - clock_timestamp())::double precision AS seconds
FROM unnest(%(functions)s::text[]) AS f (name), LATERAL (
    SELECT j.due_at FROM job j WHERE j.function = f.name AND j.due_at IS NOT NULL
    ORDER BY j.due_at LIMIT 1) AS d;

-- name: renew
SELECT job_id::text, verdict
FROM renew_v1(
    %(session_id)s::uuid, %(ids)s::uuid[], %(tokens)s::uuid[], %(attempts)s::integer[],
    %(claiming)s::uuid[], %(lease_s)s
);

-- name: progress
SELECT progress_v1(
    %(ids)s::uuid[], %(tokens)s::uuid[], %(attempts)s::integer[], %(fractions)s::double precision[],
    %(messages)s::text[]
);

-- name: finish
SELECT job_id::text, state
FROM finish_v2(
    %(session_id)s::uuid, %(ids)s::uuid[], %(tokens)s::uuid[], %(attempts)s::integer[], %(kinds)s::text[],
    %(outputs)b::bytea[], %(categories)s::text[], %(messages)s::text[], %(errors)s::text[]::jsonb[],
    %(execution_s)s::double precision[], %(waits_s)s::double precision[], %(result_ttl_s)s
);
