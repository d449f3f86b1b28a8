-- name: open
SELECT batch_id::text, outcome FROM open_batch_v1(
    %(batch_id)s::uuid, %(owner_id)s::uuid, %(key_id)s::uuid, %(function)s, %(size)s::integer, %(request_id)s,
    %(idempotency_key)s, %(digest)b, %(key_ttl_s)s
);

-- name: room
SELECT outstanding, refusal, most_waiting, most_cost, due_s FROM room_v1(
    %(owner_id)s::uuid, %(function)s, %(most_outstanding)s::integer, %(most_waiting)s::integer,
    %(most_cost)s, %(most_age_s)s
);

-- name: admit
SELECT refusal, tag, outstanding, due_s FROM admit_batch_v2(
    %(owner_id)s::uuid, %(function)s, %(costs)s::double precision[], %(weight)s,
    %(most_outstanding)s::integer, %(most_waiting)s::integer, %(most_cost)s, %(most_age_s)s, %(queue_s)s
);

-- name: release
SELECT release_tags_v1(%(function)s, %(owner_id)s::uuid, %(weight)s, %(tag)s, (
    SELECT sum(tag_step_v1(u.cost, %(weight)s)) FROM unnest(%(costs)s::double precision[]) AS u (cost)));

-- name: fill
-- The large arrays in binary: as text, an input would be sent at twice its size.
SELECT fill_batch_v1(
    %(batch_id)s::uuid, %(first)s::integer, %(interface)s, %(ids)s::uuid[], %(inputs)b::bytea[],
    %(digests)b::bytea[], costs_v1(%(costs)s::double precision[]), %(tag)s, %(weight)s, %(attempts)s::integer,
    %(queue_s)s, %(total_s)s, %(traceparent)s
) AS tag;

-- name: close
SELECT close_batch_v1(%(batch_id)s::uuid) AS created_at;

-- name: find
SELECT b.id::text AS batch_id, b.function, b.size, b.created_at,
    EXISTS (SELECT FROM job j WHERE j.batch_id = b.id AND j.finished_at IS NULL) AS is_running,
    EXISTS (
        SELECT FROM job j
        WHERE j.batch_id = b.id AND j.finished_at IS NULL AND j.settle_at <= statement_timestamp()
            AND (j.state = 'queued' OR j.deadline_at <= statement_timestamp())) AS is_overdue
FROM batch b WHERE b.id = %(batch_id)s::uuid AND b.owner_id = %(owner_id)s::uuid;

-- name: settle
-- Not what others move on already. What has run out of a lease alone is maintenance's.
SELECT count(*) FILTER (WHERE settle_job_v2(o.id, %(actor)s)) AS settled
FROM (
    SELECT j.id FROM job j
    WHERE j.batch_id = %(batch_id)s::uuid AND j.finished_at IS NULL AND j.settle_at <= statement_timestamp()
        AND (j.state = 'queued' OR j.deadline_at <= statement_timestamp())
    ORDER BY j.id LIMIT %(limit)s FOR UPDATE SKIP LOCKED) AS o;

-- name: list
SELECT b.id::text AS batch_id, b.function, b.size, b.created_at,
    EXISTS (SELECT FROM job j WHERE j.batch_id = b.id AND j.finished_at IS NULL) AS is_running
FROM batch b
WHERE b.owner_id = %(owner_id)s::uuid AND (%(before)s::uuid IS NULL OR b.id < %(before)s::uuid)
ORDER BY b.id DESC LIMIT %(limit)s;

-- name: counts
SELECT j.state, count(*) AS jobs FROM job j WHERE j.batch_id = %(batch_id)s::uuid GROUP BY j.state;

-- name: results
-- What is large is read piece by piece.
SELECT batch_index, id::text AS job_id, state, error_category, error_message,
    coalesce(error_errors, '[]') AS error_errors, octet_length(result) AS result_size, result_expires_at,
    CASE WHEN octet_length(result) <= %(inline)s AND result_expires_at > clock_timestamp() THEN result END
        AS small_result
FROM job
WHERE batch_id = %(batch_id)s::uuid AND batch_index > %(after)s
ORDER BY batch_index LIMIT %(limit)s;

-- name: cancel
SELECT cancel_batch_v1(
    %(batch_id)s::uuid, %(owner_id)s::uuid, %(actor)s, %(limit)s::integer, %(is_first)s
) AS jobs;
