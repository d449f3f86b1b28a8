-- name: evidence
-- The database's clock, and which backend of which start of the server answers.
SELECT clock_timestamp() AS now, pg_backend_pid() AS backend, pg_postmaster_start_time() AS server_started_at;

-- name: end_unread
-- A reply that isn't read keeps its statement from committing, and the rows that it wrote locked. Both names:
-- a role may end its own sessions, and only Headrace's are meant.
SELECT a.pid, pg_terminate_backend(a.pid) AS ended FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.usename = current_user AND a.application_name LIKE 'headrace-%%'
    AND a.backend_xid IS NOT NULL AND a.wait_event = 'ClientWrite'
    AND a.xact_start < clock_timestamp() - make_interval(secs => %(older_s)s);
