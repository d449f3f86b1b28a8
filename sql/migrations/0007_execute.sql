-- What runners do: claim, renew, report progress, finish. Every write names the token of its start; no row
-- means that the job isn't the runner's any more.

-- Ends those among jobs that were started before and whose deadline is near: another start would come to
-- nothing. Returns the others.
CREATE FUNCTION without_late_v1(p_ids uuid[], p_before timestamptz, p_actor text)
RETURNS uuid[] LANGUAGE plpgsql AS $$
DECLARE
    v_job job;
BEGIN
    FOR v_job IN
        SELECT j.* FROM job j WHERE j.id = ANY (p_ids) AND j.attempt > 0 AND j.deadline_at <= p_before
    LOOP
        PERFORM conclude_v1(v_job, 'failed', 'deadline-exceeded',
            'The deadline left no time for another start.', NULL, p_actor,
            'less time was left than an execution takes');
        p_ids := array_remove(p_ids, v_job.id);
    END LOOP;
    RETURN p_ids;
END;
$$;

-- Gives a runner jobs of its lanes, in the order that the lanes are given in and never more than are free in
-- a lane's group of slots. The arrays p_functions, p_interfaces, p_groups and p_expected_s are parallel;
-- p_free is by group, counted from 1. p_expected_s is what an execution takes as a rule (its median). Of the
-- jobs that run alone, p_alone at most are given, and before the others: a runner takes no more than it can
-- start. Job and queue entry are locked together, in one statement that skips what others hold: it never
-- waits, so it can't be part of a deadlock.
CREATE FUNCTION claim_v1(
    p_session_id uuid, p_claim_id uuid, p_functions text[], p_interfaces text[], p_groups integer[],
    p_expected_s double precision[], p_free integer[], p_lease_s double precision, p_alone integer
)
RETURNS TABLE (
    job_id uuid, token uuid, attempt integer, charged integer, function text, input bytea, owner_id uuid,
    remaining_s double precision, waited_s double precision, request_id text, traceparent text, alone boolean
)
LANGUAGE plpgsql
-- Tables swing between empty and full: this leaves one plan, whatever their statistics say today.
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_sort = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_free integer[] := p_free;
    v_now timestamptz;
    v_ids uuid[];
    v_entries bigint[];
    v_tag double precision;
    v_lane integer;
    v_followed boolean;
    v_is_late boolean;
    v_alone integer := p_alone;
    v_is_alone boolean;
BEGIN
    FOR v_lane IN 1 .. cardinality(p_functions) LOOP
        CONTINUE WHEN coalesce(v_free[p_groups[v_lane]], 0) < 1;
        v_now := clock_timestamp();
        -- Retries that are due join those that may be claimed.
        UPDATE job j SET due_at = NULL WHERE j.id IN (
            SELECT k.id FROM job k WHERE k.function = p_functions[v_lane] AND k.due_at <= v_now
            LIMIT 500 FOR UPDATE SKIP LOCKED);
        v_is_alone := v_alone > 0;
        LOOP
            -- The status as text: as it is, a partial index over all that waits could stand in for the key.
            SELECT array_agg(c.id), array_agg(c.entry_id), max(c.tag), bool_or(c.followed), bool_or(c.is_late)
            INTO v_ids, v_entries, v_tag, v_followed, v_is_late
            FROM (
                SELECT j.id, j.entry_id, j.tag, j.followed, j.attempt > 0
                    AND j.deadline_at <= v_now + make_interval(secs => p_expected_s[v_lane]) AS is_late
                FROM job j JOIN procrastinate_jobs e ON e.id = j.entry_id
                WHERE j.function = p_functions[v_lane] AND j.interface = p_interfaces[v_lane]
                    AND j.state = 'queued' AND j.due_at IS NULL AND j.alone = v_is_alone
                    AND j.settle_at > v_now
                    AND e.status::text = 'todo' AND (e.scheduled_at IS NULL OR e.scheduled_at <= v_now)
                ORDER BY j.tag, j.id
                LIMIT CASE WHEN v_is_alone THEN least(v_alone, v_free[p_groups[v_lane]])
                    ELSE v_free[p_groups[v_lane]] END
                FOR UPDATE OF j, e SKIP LOCKED
            ) AS c;
            IF v_ids IS NULL THEN
                EXIT WHEN NOT v_is_alone;
                v_is_alone := false;
                CONTINUE;
            END IF;
            v_now := clock_timestamp(); -- some may have been accepted after the last reading
            IF v_is_late THEN
                v_ids := without_late_v1(
                    v_ids, v_now + make_interval(secs => p_expected_s[v_lane]), 'runner:' || p_session_id);
            END IF;
            v_free[p_groups[v_lane]] := v_free[p_groups[v_lane]] - cardinality(v_ids);
            DELETE FROM procrastinate_jobs e WHERE e.id = ANY (v_entries);
            RETURN QUERY
            WITH started AS (
                UPDATE job j SET state = 'running', attempt = j.attempt + 1, charged = j.charged + 1,
                    token = gen_random_uuid(), entry_id = NULL, due_at = NULL,
                    session_id = p_session_id, claim_id = p_claim_id,
                    lease_expires_at = v_now + make_interval(secs => p_lease_s),
                    settle_at = least(v_now + make_interval(secs => p_lease_s), j.deadline_at),
                    first_started_at = coalesce(j.first_started_at, v_now), started_at = v_now,
                    waited_s = j.waited_s + extract(epoch FROM v_now - j.queued_at),
                    sequence = j.sequence + 1
                WHERE j.id = ANY (v_ids)
                RETURNING j.*
            ), noted AS (
                INSERT INTO job_event (job_id, sequence, at, from_state, state, attempt, actor, reason)
                SELECT s.id, s.sequence, v_now, 'queued', 'running', s.attempt, 'runner:' || p_session_id,
                    'claimed'
                FROM started s
            )
            SELECT s.id, s.token, s.attempt, s.charged, s.function, s.input, s.owner_id,
                extract(epoch FROM s.deadline_at - v_now)::double precision, s.waited_s, s.request_id,
                s.traceparent, s.alone
            FROM started s;
            -- Whoever claims at the same moment may do it instead: nobody waits for a number that only grows.
            UPDATE lane l SET virtual_time = v_tag
            WHERE l.name IN (
                SELECT k.name FROM lane k WHERE k.name = p_functions[v_lane] AND k.virtual_time < v_tag
                -- Not FOR UPDATE, which would skip a lane to which a submission adds an owner just now.
                FOR NO KEY UPDATE SKIP LOCKED);
            IF v_followed THEN
                PERFORM tell_waiters_v1(v_ids);
            END IF;
            IF v_is_alone THEN
                v_alone := v_alone - cardinality(v_ids);
            END IF;
            EXIT WHEN NOT (v_is_late OR v_is_alone) OR v_free[p_groups[v_lane]] < 1;
            v_is_alone := v_is_alone AND v_alone > 0;
        END LOOP;
    END LOOP;
END;
$$;

-- Renews the leases of all that a runner holds. The list is complete, so what the ledger has beyond it was
-- given to a claim whose reply was lost, and is given back; claims in flight are named to be left alone.
-- A row for each job that isn't simply held: `lost`, `cancelled` (its cancel was requested), `returned`, or
-- `busy`: its row is locked, and isn't waited for, as all other leases would run out meanwhile.
CREATE FUNCTION renew_v1(
    p_session_id uuid, p_ids uuid[], p_tokens uuid[], p_attempts integer[], p_claiming uuid[],
    p_lease_s double precision
)
RETURNS TABLE (job_id uuid, verdict text)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
    v_free uuid[];
    v_held uuid[];
    v_job job;
BEGIN
    SELECT coalesce(array_agg(f.id), '{}') INTO v_free FROM (
        SELECT j.id FROM job j WHERE j.session_id = p_session_id FOR NO KEY UPDATE SKIP LOCKED) AS f;
    WITH renewed AS (
        UPDATE job j SET lease_expires_at = v_now + make_interval(secs => p_lease_s),
            settle_at = least(v_now + make_interval(secs => p_lease_s), j.deadline_at)
        FROM unnest(p_ids, p_tokens, p_attempts) AS h (id, token, attempt)
        WHERE j.id = h.id AND j.token = h.token AND j.attempt = h.attempt AND j.session_id = p_session_id
            AND j.id = ANY (v_free)
        RETURNING j.id
    ) SELECT coalesce(array_agg(r.id), '{}') INTO v_held FROM renewed r;
    RETURN QUERY
    SELECT u.id, CASE WHEN j.id IS NULL THEN 'lost' ELSE 'busy' END
    FROM unnest(p_ids, p_tokens, p_attempts) AS u (id, token, attempt)
    LEFT JOIN job j ON j.id = u.id AND j.token = u.token AND j.attempt = u.attempt
        AND j.session_id = p_session_id AND j.id <> ALL (v_free)
    WHERE u.id <> ALL (v_held);
    RETURN QUERY SELECT j.id, 'cancelled' FROM job j
    WHERE j.id = ANY (v_held) AND j.state = 'cancel_requested';
    FOR v_job IN
        SELECT j.* FROM job j
        WHERE j.session_id = p_session_id AND j.id = ANY (v_free) AND j.id <> ALL (v_held)
            AND j.claim_id <> ALL (p_claiming)
        ORDER BY j.id
    LOOP
        PERFORM lost_start_v1(v_job, 'returned', 'worker-lost', 'Its runner never learnt of it.',
            'runner:' || p_session_id, 'given back: the reply to its claim was lost');
        job_id := v_job.id;
        verdict := 'returned';
        RETURN NEXT;
    END LOOP;
END;
$$;

-- Notes how far jobs are. The arrays are parallel.
CREATE FUNCTION progress_v1(
    p_ids uuid[], p_tokens uuid[], p_attempts integer[], p_fractions double precision[], p_messages text[]
)
RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_moved uuid[];
BEGIN
    PERFORM FROM job j WHERE j.id = ANY (p_ids) ORDER BY j.id FOR UPDATE;
    WITH moved AS (
        UPDATE job j SET progress = u.fraction, progress_message = u.message,
            sequence = j.sequence + 1, progress_sequence = j.sequence + 1
        FROM unnest(p_ids, p_tokens, p_attempts, p_fractions, p_messages)
            AS u (id, token, attempt, fraction, message)
        WHERE j.id = u.id AND j.token = u.token AND j.attempt = u.attempt AND j.state = 'running'
        RETURNING j.id
    ) SELECT array_agg(m.id) INTO v_moved FROM moved m;
    PERFORM tell_waiters_v1(v_moved);
END;
$$;

-- Records how starts ended. The arrays are parallel; p_kinds are `succeeded`, `failed`, or the kinds of
-- lost_start_v1. Returns the state that each job has now; no row for one that isn't the runner's any more.
-- A finish that is repeated, as its reply was lost, is answered as at first.
CREATE FUNCTION finish_v1(
    p_session_id uuid, p_ids uuid[], p_tokens uuid[], p_attempts integer[], p_kinds text[], p_outputs bytea[],
    p_categories text[], p_messages text[], p_errors jsonb[], p_execution_s double precision[],
    p_result_ttl_s double precision
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
            p_execution_s) AS u (id, token, attempt, kind, category, message, errors, execution_s)
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
            ELSE lost_start_v1(v_job, v_ended.kind, v_ended.category, v_ended.message, v_actor,
                CASE v_ended.kind WHEN 'retry' THEN 'the execution failed for now'
                    WHEN 'lost' THEN 'its process was lost'
                    WHEN 'displaced' THEN 'its process was killed for another call'
                    ELSE 'given back by its runner' END)
            END;
        RETURN NEXT;
    END LOOP;
END;
$$;
