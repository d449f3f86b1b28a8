-- What loadtests/ledger_cost.py fills ledgers with and how it looks at them. Rows are written as the
-- commands would leave them, in bulk.

-- name: create_database
CREATE DATABASE {database};

-- name: explain
EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query};

-- name: owners
-- Many: nobody who measures has a quota that is used up.
INSERT INTO owner (name) SELECT 'owner ' || n FROM generate_series(0, 99) AS n;

-- name: owner
SELECT id::text AS owner_id FROM owner WHERE name = 'owner 0';

-- name: lanes
INSERT INTO lane (name) VALUES (%(function)s) ON CONFLICT DO NOTHING;

-- name: lane_owners
INSERT INTO lane_owner (lane, owner_id, weight, last_tag)
SELECT %(function)s, o.id, 1, %(tag)s
FROM generate_series(%(first_owner)s, %(first_owner)s + %(owners)s - 1) AS n
    JOIN owner o ON o.name = 'owner ' || n;

-- name: waiting
WITH made AS (
    SELECT n, row_number() OVER (ORDER BY n) AS place, ledger_cost_id(n) AS id
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
), queued AS (
    SELECT procrastinate_defer_jobs_v1(array_agg(ROW(
        %(function)s, 'headrace.run', 0, NULL, NULL, jsonb_build_object('job_id', m.id, 'v', 1), NULL
    )::procrastinate_job_to_defer_v1 ORDER BY m.n)) AS entries FROM made m
), entry AS (
    SELECT e.id, e.place FROM queued q, unnest(q.entries) WITH ORDINALITY AS e (id, place)
), noted AS (
    INSERT INTO job_event (job_id, sequence, at, from_state, state, attempt, actor, reason)
    SELECT m.id, 1, clock_timestamp(), NULL, 'queued', 0, 'key:filler', 'submitted' FROM made m
)
INSERT INTO job (
    id, owner_id, function, interface, digest, input, state, attempts, entry_id, cost, weight, tag,
    created_at, queue_deadline_at, deadline_at, queued_at, settle_at)
SELECT m.id, o.id, %(function)s, %(interface)s, sha256(m.id::text::bytea), %(input)s, 'queued', 2, e.id, 1, 1,
    m.n::double precision / 100, t.now, t.now + interval '1 day', t.now + interval '2 days', t.now,
    t.now + interval '1 day'
FROM made m JOIN entry e ON e.place = m.place
    JOIN owner o ON o.name = 'owner ' || %(first_owner)s + m.n %% %(owners)s,
    (SELECT clock_timestamp() AS now) AS t;

-- name: finished
WITH made AS (
    SELECT n, ledger_cost_id(n) AS id FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
), noted AS (
    INSERT INTO job_event (job_id, sequence, at, from_state, state, attempt, actor, reason)
    SELECT m.id, s.sequence, clock_timestamp(), s.from_state, s.state, s.attempt, 'runner:filler', s.reason
    FROM made m, (VALUES
        (1, NULL, 'queued', 0, 'submitted'), (2, 'queued', 'running', 1, 'claimed'),
        (3, 'running', 'succeeded', 1, 'the function returned')
    ) AS s (sequence, from_state, state, attempt, reason)
)
INSERT INTO job (
    id, owner_id, function, interface, digest, input, state, attempt, charged, attempts, token, sequence,
    cost, weight, tag, created_at, queue_deadline_at, deadline_at, queued_at, first_started_at, started_at,
    finished_at, result_place, result, result_expires_at)
SELECT m.id, o.id, %(function)s, %(interface)s, sha256(m.id::text::bytea), %(input)s, 'succeeded', 1, 1, 2,
    gen_random_uuid(), 3, 1, 1, 0, t.now, t.now + interval '1 day', t.now + interval '2 days', t.now, t.now,
    t.now, t.now, 'row', %(input)s, t.now + interval '1 day'
FROM made m JOIN owner o ON o.name = 'owner ' || m.n %% 100, (SELECT clock_timestamp() AS now) AS t;

-- name: prepare
-- The UUIDv7 of a millisecond in the past: sorted by number, as real ids are by time.
CREATE FUNCTION ledger_cost_id(p_n bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (
        lpad(to_hex(1700000000000 + p_n), 12, '0') || '7000' || '8' || substr(md5(p_n::text), 1, 15))::uuid
$$;
