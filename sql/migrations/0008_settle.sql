-- Cancelling, and maintenance.

-- Cancels a job: at once while it waits; a running one is told to its runner, and ends as cancelled whatever
-- comes of it. True when this call changed anything. p_owner_id is NULL for an operator, who may cancel all.
CREATE FUNCTION cancel_one_v1(p_id uuid, p_owner_id uuid, p_actor text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_job job;
BEGIN
    SELECT j.* INTO v_job FROM job j
    WHERE j.id = p_id AND (p_owner_id IS NULL OR j.owner_id = p_owner_id) FOR UPDATE;
    IF v_job.state = 'queued' THEN
        -- The entry's lock is taken second, as claims take it; claims never wait for it.
        PERFORM conclude_cancelled_v1(v_job, p_actor, 'cancelled while it waited');
        RETURN true;
    END IF;
    IF v_job.state IS DISTINCT FROM 'running' THEN
        RETURN false;
    END IF;
    UPDATE job j SET state = 'cancel_requested', sequence = j.sequence + 1 WHERE j.id = p_id;
    INSERT INTO job_event (job_id, sequence, at, from_state, state, attempt, actor, reason)
    VALUES (p_id, v_job.sequence + 1, clock_timestamp(), 'running', 'cancel_requested', v_job.attempt,
        p_actor, 'cancelled while it ran');
    PERFORM pg_notify(cancel_channel_v1(v_job.session_id), p_id::text);
    PERFORM tell_waiters_v1(ARRAY[p_id]);
    RETURN true;
END;
$$;

CREATE FUNCTION cancel_v1(p_id uuid, p_owner_id uuid, p_actor text)
RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
BEGIN
    IF NOT cancel_one_v1(p_id, p_owner_id, p_actor) THEN
        RETURN false;
    END IF;
    PERFORM audit_v1(p_actor, 'job.cancel', p_id::text, '{}');
    RETURN true;
END;
$$;

-- Moves on one job that is past its time, for whoever asks for it. False when there was nothing to do.
CREATE FUNCTION settle_job_v1(p_id uuid, p_actor text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_job job;
BEGIN
    -- Whoever has it locked moves it on; a reader doesn't wait for that.
    SELECT j.* INTO v_job FROM job j
    WHERE j.id = p_id AND j.settle_at <= clock_timestamp() FOR UPDATE SKIP LOCKED;
    -- Leases are maintenance's: it knows whether runners could renew them.
    RETURN FOUND AND settle_one_v1(v_job, false, p_actor) IS NOT NULL;
END;
$$;

-- Moves on all jobs that are past their time, at most p_limit, and as many that expire: one pass of the loop
-- that every gateway and every runner keeps. No row when another process is at it. Leases count that had run
-- out by p_reap_until: an instant at which this clock was compared with another, as it may have jumped since.
-- NULL: none does.
CREATE FUNCTION settle_v1(p_actor text, p_reap_until timestamptz, p_limit integer)
RETURNS TABLE (
    now timestamptz, expired integer, failed integer, cancelled integer, requeued integer
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
    v_ids uuid[];
    v_job job;
    v_state text;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('headrace.settle', 0)) THEN
        RETURN;
    END IF;
    SELECT v_now, 0, 0, 0, 0 INTO now, expired, failed, cancelled, requeued;
    SELECT array_agg(d.id), count(*) INTO v_ids, expired FROM (
        SELECT j.id FROM job j WHERE j.settle_at <= v_now AND j.state = 'queued' AND j.attempt = 0
        ORDER BY j.settle_at LIMIT p_limit FOR UPDATE SKIP LOCKED) AS d;
    IF expired > 0 THEN
        PERFORM expire_v1(v_ids, p_actor);
    END IF;
    FOR v_job IN
        SELECT j.* FROM job j
        WHERE j.settle_at <= v_now AND NOT (j.state = 'queued' AND j.attempt = 0)
            AND (j.settle_at <= p_reap_until OR j.state = 'queued' OR j.deadline_at <= v_now)
        ORDER BY j.settle_at LIMIT p_limit FOR UPDATE SKIP LOCKED
    LOOP
        v_state := settle_one_v1(v_job, coalesce(v_job.settle_at <= p_reap_until, false), p_actor);
        expired := expired + (v_state IS NOT DISTINCT FROM 'expired')::integer;
        failed := failed + (v_state IS NOT DISTINCT FROM 'failed')::integer;
        cancelled := cancelled + (v_state IS NOT DISTINCT FROM 'cancelled')::integer;
        requeued := requeued + (v_state IS NOT DISTINCT FROM 'queued')::integer;
    END LOOP;
    RETURN NEXT;
END;
$$;

-- Orphans on either side, which only a hand in the database can make: entries without a waiting job are
-- deleted, waiting jobs without an entry get one. Slow, so it isn't part of every pass.
CREATE FUNCTION sweep_v1(p_limit integer)
RETURNS TABLE (entries_deleted integer, entries_made integer)
LANGUAGE plpgsql AS $$
DECLARE
    v_job job;
BEGIN
    WITH orphan AS (
        SELECT e.id FROM procrastinate_jobs e
        WHERE e.task_name = 'headrace.run' AND NOT EXISTS (SELECT FROM job j WHERE j.entry_id = e.id)
        ORDER BY e.id LIMIT p_limit FOR UPDATE OF e SKIP LOCKED
    ), deleted AS (
        DELETE FROM procrastinate_jobs e USING orphan o WHERE e.id = o.id RETURNING e.id
    ) SELECT count(*) INTO entries_deleted FROM deleted;
    entries_made := 0;
    FOR v_job IN
        SELECT j.* FROM job j
        WHERE j.state = 'queued' AND NOT EXISTS (
            SELECT FROM procrastinate_jobs e WHERE e.id = j.entry_id AND e.status = 'todo')
        LIMIT p_limit FOR UPDATE OF j SKIP LOCKED
    LOOP
        DELETE FROM procrastinate_jobs e WHERE e.id = v_job.entry_id;
        UPDATE job j SET entry_id = enqueue_v1(j.function, j.id, j.due_at) WHERE j.id = v_job.id;
        entries_made := entries_made + 1;
    END LOOP;
    RETURN NEXT;
END;
$$;
