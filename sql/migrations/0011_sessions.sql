-- Runners that were lost, seen at once instead of at the end of their leases.
--
-- A runner holds an advisory lock for as long as it lives. Maintenance reads who holds one, and never takes
-- one. That a lock is absent proves something only to who has seen it held before, over the same
-- connection: a restart of Postgres, or a failover, takes all locks and all connections with it.

-- By the lock, as held_sessions_v1 reads it.
CREATE INDEX runner_lock ON runner (session_lock_v1(id));

-- Takes a runner's lock, for as long as this connection lasts. Shared: it never waits for its holder's last
-- connection, which may be half dead.
CREATE FUNCTION hold_session_v1(p_session_id uuid)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- A machine that vanished without a word is noticed after 5 + 2 * 3 seconds, also with data in flight.
    PERFORM set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false),
        set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '11000', false);
    PERFORM pg_advisory_lock_shared(1751217778, session_lock_v1(p_session_id));
END;
$$;

-- The locks that are held now, as session_lock_v1 names them.
CREATE FUNCTION session_locks_v1()
RETURNS SETOF integer LANGUAGE sql STABLE AS $$
    SELECT l.objid::bigint::bit(32)::integer FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.classid = 1751217778 AND l.objsubid = 2 AND l.granted
        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
$$;

-- The runners whose lock is held now; also those that drain, which are unregistered by then.
CREATE FUNCTION held_sessions_v1()
RETURNS SETOF uuid LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off
AS $$
    SELECT r.id FROM session_locks_v1() AS l (half) JOIN runner r ON session_lock_v1(r.id) = l.half
$$;

-- What a renewal or a claim of a runner changes, NULL for one that runs nothing.
CREATE FUNCTION session_mark_v1(p_session_id uuid)
RETURNS timestamptz LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
    SELECT max(j.lease_expires_at) FROM job j WHERE j.session_id = p_session_id
$$;

-- Requeues what a lost runner ran, or ends it; nothing if the runner has been heard of since its mark was
-- p_mark, or holds its lock again. Returns how many jobs were moved; NULL when a row is locked, maybe by a
-- renewal.
CREATE FUNCTION reap_session_v1(p_session_id uuid, p_mark timestamptz, p_actor text)
RETURNS integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
-- Long enough for a commit. Rows that somebody keeps locked are left to their leases: no pass waits for them.
SET lock_timeout = '100ms'
AS $$
DECLARE
    v_job job;
    v_jobs job[];
    v_lock integer := session_lock_v1(p_session_id);
BEGIN
    -- By the lock itself: a runner whose row was deleted by hand isn't lost.
    IF v_lock IN (SELECT session_locks_v1()) THEN
        RETURN 0;
    END IF;
    -- All of them, in the order in which others lock several: a renewal can't come in between.
    BEGIN
        SELECT array_agg(l.locked) INTO v_jobs FROM (
            SELECT j AS locked FROM job j WHERE j.session_id = p_session_id ORDER BY j.id FOR UPDATE) AS l;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        RETURN NULL;
    END;
    IF v_jobs IS NULL OR session_mark_v1(p_session_id) IS DISTINCT FROM p_mark
        OR v_lock IN (SELECT session_locks_v1()) THEN
        RETURN 0;
    END IF;
    FOREACH v_job IN ARRAY v_jobs LOOP
        PERFORM lost_start_v1(v_job, 'reaped', 'worker-lost', 'The process that ran the job was lost.',
            p_actor, 'runner ' || p_session_id || ' was lost');
    END LOOP;
    RETURN cardinality(v_jobs);
END;
$$;
