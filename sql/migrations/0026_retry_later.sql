-- A start that failed for now may say for how long another one would: the next one comes after that.

-- As lost_start_v1. p_wait_s: seconds within which any start would come to nothing; where the deadline leaves
-- no time after them, the job fails at once. The usual pause comes on top, so that all that was told of one
-- busy server doesn't return to it in one instant. A job that is given back for that never ran, and is
-- allowed one start more: that uses up neither those that it was allowed, nor the three that aren't charged.
CREATE FUNCTION lost_start_v2(
    p_job job, p_kind text, p_category text, p_message text, p_actor text, p_reason text,
    p_wait_s double precision
)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_charged integer := p_job.charged;
    v_attempts integer := p_job.attempts;
    v_due_at timestamptz;
BEGIN
    IF p_job.state = 'cancel_requested' THEN
        RETURN conclude_cancelled_v1(p_job, p_actor, p_reason);
    END IF;
    IF p_kind = 'returned' AND p_wait_s > 0 THEN
        v_attempts := v_attempts + 1;
        v_due_at := v_now + make_interval(secs => p_wait_s + backoff_v1(1));
    ELSIF p_kind IN ('displaced', 'returned') AND p_job.attempt - p_job.charged < 3 THEN
        v_charged := v_charged - 1;
    ELSE
        v_due_at := v_now + make_interval(secs => p_wait_s + backoff_v1(v_charged));
    END IF;
    IF v_charged >= v_attempts THEN
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
    UPDATE job j SET state = 'queued', charged = v_charged, attempts = v_attempts, token = NULL,
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

-- As finish_v1; p_waits_s: as of lost_start_v2, 0 where nothing is known.
CREATE FUNCTION finish_v2(
    p_session_id uuid, p_ids uuid[], p_tokens uuid[], p_attempts integer[], p_kinds text[], p_outputs bytea[],
    p_categories text[], p_messages text[], p_errors jsonb[], p_execution_s double precision[],
    p_waits_s double precision[], p_result_ttl_s double precision
)
RETURNS TABLE (job_id uuid, state text)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
-- A row that somebody keeps locked is an error, not a wait: the runner then sends the others without it.
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
    v_actor text := 'runner:' || p_session_id;
    v_succeeded uuid[];
    v_ended record;
    v_job job;
BEGIN
    PERFORM FROM job j WHERE j.id = ANY (p_ids) ORDER BY j.id FOR UPDATE;
    RETURN QUERY
    SELECT j.id, j.state
    FROM unnest(p_ids, p_tokens, p_attempts) AS u (id, token, attempt) JOIN job j ON j.id = u.id
    WHERE j.attempt = u.attempt
        AND (j.state = 'queued' OR j.finished_at IS NOT NULL AND j.token = u.token)
        AND EXISTS (
            SELECT FROM job_event v WHERE v.job_id = j.id AND v.sequence = j.sequence AND v.actor = v_actor);

    WITH ended AS (
        UPDATE job j SET state = 'succeeded', sequence = j.sequence + 1,
            session_id = NULL, claim_id = NULL, lease_expires_at = NULL,
            finished_at = v_now, settle_at = NULL, execution_s = u.execution_s,
            result_place = 'row', result = u.output,
            result_expires_at = v_now + make_interval(secs => p_result_ttl_s)
        FROM unnest(p_ids, p_tokens, p_attempts, p_kinds, p_outputs, p_execution_s)
            AS u (id, token, attempt, kind, output, execution_s)
        WHERE j.id = u.id AND j.token = u.token AND j.attempt = u.attempt
            AND j.state = 'running' AND u.kind = 'succeeded' AND j.deadline_at > v_now
        RETURNING j.id, j.sequence, j.attempt
    ), noted AS (
        INSERT INTO job_event (job_id, sequence, at, from_state, state, attempt, actor, reason)
        SELECT e.id, e.sequence, v_now, 'running', 'succeeded', e.attempt, v_actor, 'the function returned'
        FROM ended e
    ) SELECT array_agg(e.id) INTO v_succeeded FROM ended e;
    RETURN QUERY SELECT u.id, 'succeeded' FROM unnest(v_succeeded) AS u (id);
    PERFORM tell_waiters_v1(v_succeeded);

    FOR v_ended IN
        SELECT u.* FROM unnest(p_ids, p_tokens, p_attempts, p_kinds, p_categories, p_messages, p_errors,
            p_execution_s, p_waits_s)
            AS u (id, token, attempt, kind, category, message, errors, execution_s, wait_s)
        ORDER BY u.id
    LOOP
        SELECT j.* INTO v_job FROM job j
        WHERE j.id = v_ended.id AND j.token = v_ended.token AND j.attempt = v_ended.attempt
            AND j.state IN ('running', 'cancel_requested');
        CONTINUE WHEN NOT FOUND;
        UPDATE job j SET execution_s = v_ended.execution_s WHERE j.id = v_ended.id;
        job_id := v_ended.id;
        state := CASE
            -- Commit order decided: whatever came of it, a job whose cancel was requested is cancelled.
            WHEN v_job.state = 'cancel_requested' THEN
                conclude_cancelled_v1(v_job, v_actor, 'its execution ended')
            WHEN v_ended.kind = 'succeeded' THEN
                conclude_v1(v_job, 'failed', 'deadline-exceeded', 'The job was not finished at its deadline.',
                    NULL, v_actor, 'its deadline passed')
            WHEN v_ended.kind = 'failed' THEN
                conclude_v1(v_job, 'failed', v_ended.category, v_ended.message, v_ended.errors, v_actor,
                    'the execution failed')
            ELSE lost_start_v2(v_job, v_ended.kind, v_ended.category, v_ended.message, v_actor,
                CASE v_ended.kind WHEN 'retry' THEN 'the execution failed for now'
                    WHEN 'lost' THEN 'its process was lost'
                    WHEN 'displaced' THEN 'its process was killed for another call'
                    ELSE 'given back by its runner' END, v_ended.wait_s)
            END;
        RETURN NEXT;
    END LOOP;
END;
$$;
