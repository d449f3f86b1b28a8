-- name: settle
SELECT now, expired, failed, cancelled, requeued FROM settle_v2(
    %(actor)s, CASE WHEN %(reap)s THEN coalesce(%(seen_at)s::timestamptz, clock_timestamp()) END,
    %(limit)s::integer
);

-- name: count
SELECT count_backlogs_v1(%(with_cost)s) AS counted;

-- name: sweep
SELECT entries_deleted, entries_made FROM sweep_v1(%(limit)s);

-- name: forget_runners
SELECT forget_runners_v1() AS forgotten;

-- name: lanes
SELECT f.name AS function,
    (SELECT count(*) FROM job j WHERE j.function = f.name AND j.state = 'queued') AS waiting,
    (SELECT extract(epoch FROM clock_timestamp() - min(j.created_at)) FROM job j
        WHERE j.function = f.name AND j.state = 'queued')::double precision AS oldest_s,
    (SELECT count(*) FROM job j WHERE j.function = f.name AND j.session_id IS NOT NULL) AS running,
    (SELECT count(*) FROM runner r WHERE r.interfaces ? f.name AND r.left_at IS NULL AND NOT r.draining
        AND r.seen_at > clock_timestamp() - runner_silence_v1()) AS runners,
    l.most_waiting, l.most_cost, l.most_age_s
FROM function f LEFT JOIN lane l ON l.name = f.name WHERE f.retired_at IS NULL ORDER BY f.name;

-- name: held_sessions
SELECT pg_backend_pid() AS backend, pg_postmaster_start_time() AS server_started_at,
    ARRAY(SELECT h.id::text FROM held_sessions_v1() AS h (id)) AS session_ids;

-- name: session_marks
SELECT u.id::text AS session_id, session_mark_v1(u.id) AS mark FROM unnest(%(session_ids)s::uuid[]) AS u (id);

-- name: reap_session
SELECT reap_session_v1(%(session_id)s::uuid, %(mark)s::timestamptz, %(actor)s) AS moved;
