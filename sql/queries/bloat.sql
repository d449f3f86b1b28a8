-- What loadtests/bloat.py asks of the tables that it wears.

-- name: owners
INSERT INTO owner (name) SELECT 'owner ' || n FROM generate_series(1, %(count)s) AS n
RETURNING id::text AS owner_id;

-- name: sizes
-- Live rows are counted, dead ones are as Postgres' statistics have them. A table's size is without its
-- indexes.
SELECT t.name, t.live, s.n_dead_tup AS dead, s.autovacuum_count AS vacuums,
    pg_table_size(s.relid) AS table_bytes, pg_indexes_size(s.relid) AS index_bytes
FROM (
    SELECT 'job' AS name, count(*) AS live FROM job
    UNION ALL SELECT 'job_event', count(*) FROM job_event
    UNION ALL SELECT 'idempotency', count(*) FROM idempotency
    UNION ALL SELECT 'lane_owner', count(*) FROM lane_owner
    UNION ALL SELECT 'procrastinate_jobs', count(*) FROM procrastinate_jobs
    UNION ALL SELECT 'procrastinate_events', count(*) FROM procrastinate_events
) AS t JOIN pg_stat_user_tables s ON s.relname = t.name ORDER BY t.name;
