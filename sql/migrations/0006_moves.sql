-- How a job is moved, one row at a time: what the commands share. Callers hold the row's lock.

-- Tells the gateways in which somebody waits: of an end always, of a step only where one is followed.
CREATE FUNCTION tell_waiters_v1(p_ids uuid[])
RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify(waiter_channel_v1(w.gateway), j.id::text)
    FROM job j, unnest(j.waiters) AS w (gateway)
    WHERE j.id = ANY (p_ids) AND (j.followed OR j.finished_at IS NOT NULL)
$$;

-- Ends a job otherwise than with a result.
CREATE FUNCTION conclude_v1(
    p_job job, p_state text, p_category text, p_message text, p_errors jsonb, p_actor text, p_reason text
)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    DELETE FROM procrastinate_jobs e WHERE e.id = p_job.entry_id;
    UPDATE job j SET state = p_state, sequence = j.sequence + 1,
        entry_id = NULL, due_at = NULL, session_id = NULL, claim_id = NULL, lease_expires_at = NULL,
        finished_at = v_now, settle_at = NULL,
        error_category = p_category, error_message = p_message, error_errors = p_errors
    WHERE j.id = p_job.id;
    INSERT INTO job_event (job_id, sequence, at, from_state, state, attempt, actor, reason)
    VALUES (p_job.id, p_job.sequence + 1, v_now, p_job.state, p_state, p_job.attempt, p_actor, p_reason);
    PERFORM tell_waiters_v1(ARRAY[p_job.id]);
    RETURN p_state;
END;
$$;

-- Ends jobs that could not be started in time, all at once: those of a batch have one deadline.
CREATE FUNCTION expire_v1(p_ids uuid[], p_actor text)
RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    DELETE FROM procrastinate_jobs e USING job j WHERE j.id = ANY (p_ids) AND e.id = j.entry_id;
    UPDATE job j SET state = 'expired', sequence = j.sequence + 1, entry_id = NULL, due_at = NULL,
        finished_at = v_now, settle_at = NULL, error_category = 'queue-deadline-exceeded',
        error_message = 'The job could not be started within the time that it may wait.'
    WHERE j.id = ANY (p_ids);
    INSERT INTO job_event (job_id, sequence, at, from_state, state, attempt, actor, reason)
    SELECT j.id, j.sequence, v_now, 'queued', 'expired', j.attempt, p_actor, 'its queue deadline passed'
    FROM job j WHERE j.id = ANY (p_ids);
    PERFORM tell_waiters_v1(p_ids);
END;
$$;

CREATE FUNCTION conclude_cancelled_v1(p_job job, p_actor text, p_reason text)
RETURNS text LANGUAGE sql AS $$
    SELECT conclude_v1(p_job, 'cancelled', 'job-cancelled', 'The job was cancelled.', NULL, p_actor, p_reason)
$$;

-- What becomes of a job whose start came to nothing: it waits for another, if one is allowed and there is
-- time; otherwise it has failed, and the message tells what its last start came to. p_kind: `retry`, a
-- passing failure; `lost`, its process died; `reaped`, its runner did; `displaced`, its process was killed
-- for another call; `returned`, it was given back. The last two are through no fault of its own: not charged,
-- three times at most. What was in a process that ended is alone in the next one, so that a call that ends
-- its process can't make others run again for ever; until it answers, and so has left its process alive. The
-- loss of a runner says nothing of any of the jobs that it ran.
CREATE FUNCTION lost_start_v1(
    p_job job, p_kind text, p_category text, p_message text, p_actor text, p_reason text
)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_charged integer := p_job.charged;
    v_due_at timestamptz;
BEGIN
    IF p_job.state = 'cancel_requested' THEN
        RETURN conclude_cancelled_v1(p_job, p_actor, p_reason);
    END IF;
    IF p_kind IN ('displaced', 'returned') AND p_job.attempt - p_job.charged < 3 THEN
        v_charged := v_charged - 1;
    ELSE
        v_due_at := v_now + make_interval(secs => backoff_v1(v_charged));
    END IF;
    IF v_charged >= p_job.attempts THEN
        RETURN conclude_v1(p_job, 'failed', 'attempts-exhausted',
            CASE WHEN p_job.attempts = 1 THEN 'The one start that the job was allowed'
                ELSE 'Each of the ' || p_job.attempts || ' starts that the job was allowed' END
                || ' came to nothing. The last one: ' || p_message, NULL, p_actor,
            p_reason || ' (' || p_category || ')');
    END IF;
    IF coalesce(v_due_at, v_now) >= p_job.deadline_at THEN
        RETURN conclude_v1(p_job, 'failed', 'deadline-exceeded',
            'The deadline left no time for another start.', NULL, p_actor, p_reason);
    END IF;
    UPDATE job j SET state = 'queued', charged = v_charged, token = NULL,
        alone = p_kind IN ('lost', 'displaced') OR j.alone AND p_kind <> 'retry',
        session_id = NULL, claim_id = NULL, lease_expires_at = NULL,
        entry_id = enqueue_v1(j.function, j.id, v_due_at), queued_at = coalesce(v_due_at, v_now),
        due_at = v_due_at, settle_at = j.deadline_at, sequence = j.sequence + 1,
        progress = NULL, progress_message = ''
    WHERE j.id = p_job.id;
    INSERT INTO job_event (job_id, sequence, at, from_state, state, attempt, actor, reason)
    VALUES (p_job.id, p_job.sequence + 1, v_now, p_job.state, 'queued', p_job.attempt, p_actor, p_reason);
    PERFORM tell_waiters_v1(ARRAY[p_job.id]);
    RETURN 'queued';
END;
$$;

-- Moves on a job that is past its time; NULL when it isn't. p_reap: leases count.
CREATE FUNCTION settle_one_v1(p_job job, p_reap boolean, p_actor text)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    IF p_job.settle_at IS NULL OR p_job.settle_at > v_now THEN
        RETURN NULL;
    END IF;
    IF p_job.state = 'queued' AND p_job.attempt = 0 THEN
        PERFORM expire_v1(ARRAY[p_job.id], p_actor);
        RETURN 'expired';
    END IF;
    IF p_job.deadline_at <= v_now THEN
        IF p_job.session_id IS NOT NULL THEN
            PERFORM pg_notify(cancel_channel_v1(p_job.session_id), p_job.id::text);
        END IF;
        IF p_job.state = 'cancel_requested' THEN
            RETURN conclude_cancelled_v1(p_job, p_actor, 'its deadline passed');
        END IF;
        RETURN conclude_v1(p_job, 'failed', 'deadline-exceeded', 'The job was not finished at its deadline.',
            NULL, p_actor, 'its deadline passed');
    END IF;
    IF NOT p_reap THEN
        RETURN NULL;
    END IF;
    RETURN lost_start_v1(p_job, 'reaped', 'worker-lost', 'The process that ran the job was lost.', p_actor,
        'the lease of runner ' || p_job.session_id || ' ran out');
END;
$$;
