-- name: add
SELECT add_usage_v1(%(source)s::uuid, %(sequence)s::bigint, %(counts)s::jsonb) AS added;

-- name: add_expired
SELECT add_expired_v1(%(limit)s) AS added;

-- name: sum
SELECT sum_usage_v1(%(limit)s) AS summed;

-- name: prune_minutes
SELECT prune_usage_minutes_v1(%(after_s)s, %(limit)s) AS pruned;

-- name: prune_hours
SELECT prune_usage_hours_v1(%(after_s)s, %(limit)s) AS pruned;

-- name: read
SELECT at, function, kind, reason, device, cost, number, total, buckets FROM read_usage_v1(
    %(function)s::text, %(since)s::timestamptz, %(until)s::timestamptz, %(step_s)s::double precision
);
