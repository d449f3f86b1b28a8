-- name: owner
SELECT id::text AS owner_id FROM owner WHERE name = %(owner)s;

-- name: count
-- `before`: what is older at this moment, so that what comes later isn't reached.
-- Not by the clock, which is volatile: see selected_jobs_v1.
SELECT statement_timestamp() - make_interval(secs => %(older_s)s) AS before,
    (SELECT count(*) FROM selected_jobs_v1(
        %(kind)s, %(function)s, %(interface)s, %(owner_id)s::uuid, %(state)s, %(category)s,
        %(batch_id)s::uuid, statement_timestamp() - make_interval(secs => %(older_s)s), NULL)) AS matching;

-- name: chunk
SELECT s.id::text AS job_id, octet_length(s.input) AS size FROM selected_jobs_v1(
    %(kind)s, %(function)s, %(interface)s, %(owner_id)s::uuid, %(state)s, %(category)s,
    %(batch_id)s::uuid, %(before)s::timestamptz, %(after)s::uuid) AS s
ORDER BY s.id LIMIT %(limit)s;

-- name: dead
SELECT s.id::text AS job_id, o.name AS owner, s.function, s.state, s.attempt, s.error_category AS category,
    s.error_message AS message, s.created_at, s.finished_at
FROM selected_jobs_v1(
    'retry', %(function)s, NULL, %(owner_id)s::uuid, %(state)s, %(category)s, %(batch_id)s::uuid,
    statement_timestamp() - make_interval(secs => %(older_s)s), NULL) AS s
JOIN owner o ON o.id = s.owner_id
ORDER BY s.id DESC LIMIT %(limit)s;

-- name: bounds
SELECT id::text AS owner_id, most_outstanding FROM owner WHERE id = ANY (%(owner_ids)s::uuid[]);

-- name: cancel
SELECT cancel_jobs_v1(%(job_ids)s::uuid[], %(actor)s, %(command_id)s::uuid) AS changed;

-- name: move
SELECT move_v1(%(job_ids)s::uuid[], %(from)s, %(to)s, %(actor)s, %(command_id)s::uuid) AS changed;

-- name: lane_bounds
SELECT most_waiting, most_cost, most_age_s FROM lane WHERE name = %(name)s;

-- name: set_lane
SELECT set_lane_v1(%(name)s, %(changes)s::jsonb, %(actor)s) AS known;
