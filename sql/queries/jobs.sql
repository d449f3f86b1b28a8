-- name: find
-- An owner of NULL is an operator, who sees all.
SELECT id::text AS job_id, owner_id::text, function, interface, state, attempt, charged, attempts,
    created_at, queue_deadline_at, deadline_at, first_started_at, started_at, finished_at,
    progress, progress_message, progress_sequence, error_category, error_message,
    coalesce(error_errors, '[]') AS error_errors, octet_length(result) AS result_size,
    CASE WHEN octet_length(result) <= %(inline)s AND result_expires_at > clock_timestamp() THEN result END
        AS small_result,
    result_expires_at, result_expires_at <= clock_timestamp() OR result_place = 'gone' AS result_expired,
    request_id, batch_id::text, batch_index, retry_of::text, retried_as::text, sequence, waited_s,
    execution_s, settle_at <= clock_timestamp() AS overdue
FROM job
WHERE id = %(job_id)s::uuid AND (%(owner_id)s::uuid IS NULL OR owner_id = %(owner_id)s::uuid);

-- name: list
SELECT id::text AS job_id, owner_id::text, function, interface, state, attempt, charged, attempts,
    created_at, queue_deadline_at, deadline_at, first_started_at, started_at, finished_at,
    progress, progress_message, progress_sequence, error_category, error_message,
    coalesce(error_errors, '[]') AS error_errors, octet_length(result) AS result_size,
    NULL::bytea AS small_result,
    result_expires_at, result_expires_at <= clock_timestamp() OR result_place = 'gone' AS result_expired,
    request_id, batch_id::text, batch_index, retry_of::text, retried_as::text, sequence, waited_s,
    execution_s, false AS overdue
FROM job
WHERE owner_id = %(owner_id)s::uuid AND (%(before)s::uuid IS NULL OR id < %(before)s::uuid)
    AND (%(state)s::text IS NULL OR state = %(state)s::text)
    AND (%(function)s::text IS NULL OR function = %(function)s::text)
    AND (%(batch_id)s::uuid IS NULL OR batch_id = %(batch_id)s::uuid)
    AND (%(category)s::text IS NULL OR error_category = %(category)s::text)
    AND (NOT %(dead)s::boolean OR (state IN ('failed', 'expired') AND retried_as IS NULL))
ORDER BY id DESC LIMIT %(limit)s;

-- name: settle_one
SELECT settle_job_v2(%(job_id)s::uuid, %(actor)s) AS settled;

-- name: result
SELECT result FROM job
WHERE id = %(job_id)s::uuid AND (%(owner_id)s::uuid IS NULL OR owner_id = %(owner_id)s::uuid)
    AND result_expires_at > clock_timestamp();

-- name: result_piece
SELECT substring(result FROM %(at)s::integer + 1 FOR %(length)s::integer) AS piece FROM job
WHERE id = %(job_id)s::uuid AND result_expires_at > clock_timestamp();

-- name: events
SELECT sequence, at, from_state, state, attempt, actor, reason FROM job_event
WHERE job_id = %(job_id)s::uuid AND sequence > %(after)s ORDER BY sequence;

-- name: watch
UPDATE job SET followed = followed OR %(follow)s,
    waiters = CASE WHEN %(gateway_id)s::text = ANY (waiters) THEN waiters
        ELSE array_append(waiters, %(gateway_id)s::text) END
WHERE id = %(job_id)s::uuid AND finished_at IS NULL
    AND (NOT (%(gateway_id)s::text = ANY (waiters)) OR (%(follow)s AND NOT followed));

-- name: standings
SELECT id::text AS job_id, state, sequence FROM job WHERE id = ANY (%(job_ids)s::uuid[]);

-- name: cancel
SELECT cancel_v1(%(job_id)s::uuid, %(owner_id)s::uuid, %(actor)s) AS changed;
