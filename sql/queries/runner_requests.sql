-- name: ask
SELECT ask_runner_v2(
    %(request_id)s::uuid, %(runner_id)s::uuid, %(kind)s::text, %(job_id)s::uuid, %(subject)s::text,
    %(valid_s)s::double precision, %(actor)s::text
);

-- name: answers
SELECT id::text AS request_id, answer FROM runner_request
WHERE id = ANY (%(request_ids)s::uuid[]) AND answered_at IS NOT NULL;

-- name: take
SELECT id::text AS request_id, kind, job_id::text, subject, asked_by
FROM take_requests_v1(%(runner_id)s::uuid);

-- name: answer
SELECT answer_request_v1(%(request_id)s::uuid, %(runner_id)s::uuid, %(answer)s::bytea) AS stored;

-- name: holder
SELECT state, function, session_id::text FROM job WHERE id = %(job_id)s::uuid;

-- name: has_left
SELECT EXISTS (
    SELECT FROM runner WHERE id = %(runner_id)s::uuid AND left_at IS NOT NULL
) AS has_left;
