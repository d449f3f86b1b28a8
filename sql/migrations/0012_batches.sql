-- Batches: many inputs of one function, a job each, accepted all or not at all.
--
-- One transaction records a batch: open_batch_v1, fill_batch_v1 for some hundreds of jobs at a time, and
-- close_batch_v1. Between the first two, admit_batch_v1 in a transaction of its own on another connection:
-- it keeps the row of the owner's flow locked, for which other submissions wait. It waits for nothing that
-- the first transaction holds.

-- Whether a batch whose jobs cost so much is accepted: NULL and the tag from which its jobs count on, or
-- why not. The arguments bound the owner's unfinished jobs and what waits in the lane, as in submit_v1.
CREATE FUNCTION admit_batch_v1(
    p_owner_id uuid, p_function text, p_costs double precision[], p_weight double precision,
    p_most_outstanding integer, p_most_waiting integer, p_most_cost double precision,
    p_most_age_s double precision
)
RETURNS TABLE (refusal text, tag double precision, outstanding integer)
LANGUAGE plpgsql AS $$
DECLARE
    v_size integer := cardinality(p_costs);
    v_cost double precision;
    v_steps double precision;
    v_room record;
BEGIN
    SELECT sum(u.cost), sum(tag_step_v1(u.cost, p_weight)) INTO STRICT v_cost, v_steps
    FROM unnest(p_costs) AS u (cost);
    outstanding := outstanding_v1(p_owner_id, p_most_outstanding);
    SELECT r.* INTO STRICT v_room FROM lane_room_v1(p_function, p_most_waiting, p_most_cost, p_most_age_s) r;
    refusal := CASE WHEN outstanding + v_size > p_most_outstanding THEN 'quota-exceeded'
        WHEN v_room.refusal IS NOT NULL THEN v_room.refusal
        WHEN v_size > v_room.room THEN 'backlog-full'
        WHEN v_cost > v_room.room_cost THEN 'backlog-costly' END;
    IF refusal IS NULL THEN
        tag := reserve_tags_v1(p_function, p_owner_id, p_weight, v_steps);
    END IF;
    RETURN NEXT;
END;
$$;

-- Records a batch and its key. `accepted`; `replayed` with the batch that the key, or the id, stands for
-- already; or `key-conflict`. An owner's batches go one after the other, so that each is admitted after the
-- one before it has committed: no bound is passed by batches of one owner.
CREATE FUNCTION open_batch_v1(
    p_id uuid, p_owner_id uuid, p_key_id uuid, p_function text, p_size integer, p_request_id text,
    p_idempotency_key text, p_digest bytea, p_key_ttl_s double precision
)
RETURNS TABLE (batch_id uuid, outcome text)
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz;
    v_found record;
BEGIN
    -- A gateway that was frozen or vanished in the middle keeps its owner's submissions waiting for so long
    -- only.
    PERFORM set_config('idle_in_transaction_session_timeout', '15s', true);
    PERFORM pg_advisory_xact_lock(hashtextextended('headrace.batch.' || p_owner_id, 0));
    v_now := clock_timestamp();
    batch_id := p_id;
    outcome := 'accepted';
    IF EXISTS (SELECT FROM batch b WHERE b.id = p_id) THEN
        outcome := 'replayed';
    ELSIF p_idempotency_key IS NOT NULL THEN
        INSERT INTO idempotency AS i (owner_id, function, key, job_id, digest, expires_at)
        VALUES (p_owner_id, p_function || '/batch', p_idempotency_key, p_id, p_digest,
            v_now + make_interval(secs => p_key_ttl_s))
        ON CONFLICT (owner_id, function, key) DO UPDATE
        SET job_id = excluded.job_id, digest = excluded.digest, expires_at = excluded.expires_at
        WHERE i.expires_at <= v_now;
        IF NOT FOUND THEN
            SELECT i.job_id, i.digest INTO STRICT v_found FROM idempotency i
            WHERE i.owner_id = p_owner_id AND i.function = p_function || '/batch'
                AND i.key = p_idempotency_key;
            batch_id := v_found.job_id;
            outcome := CASE WHEN v_found.digest = p_digest THEN 'replayed' ELSE 'key-conflict' END;
        END IF;
    END IF;
    IF outcome = 'accepted' THEN
        INSERT INTO batch (id, owner_id, key_id, function, size, request_id, created_at)
        VALUES (p_id, p_owner_id, p_key_id, p_function, p_size, p_request_id, v_now);
    END IF;
    RETURN NEXT;
END;
$$;

-- Adds jobs to a batch that this transaction has opened. The arrays are parallel; p_first is the index of
-- the first one in the batch, p_tag the tag from which they count on. Returns where they end.
CREATE FUNCTION fill_batch_v1(
    p_batch_id uuid, p_first integer, p_interface text, p_ids uuid[], p_inputs bytea[], p_digests bytea[],
    p_costs double precision[], p_tag double precision, p_weight double precision, p_attempts integer,
    p_queue_s double precision, p_total_s double precision, p_traceparent text
)
RETURNS double precision LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_batch batch;
    v_entries bigint[];
BEGIN
    SELECT b.* INTO STRICT v_batch FROM batch b WHERE b.id = p_batch_id;
    v_entries := procrastinate_defer_jobs_v1(array_agg(ROW(
            v_batch.function, 'headrace.run', 0, NULL, NULL, jsonb_build_object('job_id', u.id, 'v', 1), NULL
        )::procrastinate_job_to_defer_v1 ORDER BY u.n)) FROM unnest(p_ids) WITH ORDINALITY AS u (id, n);
    INSERT INTO job (
        id, owner_id, key_id, function, interface, digest, input, batch_id, batch_index,
        request_id, traceparent, state, attempts, entry_id, cost, weight,
        tag, created_at, queue_deadline_at, deadline_at, queued_at, settle_at)
    SELECT u.id, v_batch.owner_id, v_batch.key_id, v_batch.function, p_interface, u.digest, u.input,
        p_batch_id, p_first + u.n - 1,
        v_batch.request_id, p_traceparent, 'queued', p_attempts, v_entries[u.n], u.cost, p_weight,
        p_tag + sum(tag_step_v1(u.cost, p_weight)) OVER (ORDER BY u.n) - tag_step_v1(u.cost, p_weight),
        v_batch.created_at, v_batch.created_at + make_interval(secs => p_queue_s),
        v_batch.created_at + make_interval(secs => p_total_s), v_batch.created_at,
        v_batch.created_at + make_interval(secs => p_queue_s)
    FROM unnest(p_ids, p_inputs, p_digests, p_costs) WITH ORDINALITY AS u (id, input, digest, cost, n);
    INSERT INTO job_event (job_id, sequence, at, from_state, state, attempt, actor, reason)
    SELECT u.id, 1, v_batch.created_at, NULL, 'queued', 0,
        coalesce('key:' || v_batch.key_id, 'owner:' || v_batch.owner_id), 'submitted in batch ' || p_batch_id
    FROM unnest(p_ids) AS u (id);
    RETURN p_tag + (SELECT sum(tag_step_v1(u.cost, p_weight)) FROM unnest(p_costs) AS u (cost));
END;
$$;

-- The last command before the commit, as it keeps a row for which the owner's other submissions wait.
CREATE FUNCTION close_batch_v1(p_batch_id uuid)
RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    v_batch batch;
BEGIN
    SELECT b.* INTO STRICT v_batch FROM batch b WHERE b.id = p_batch_id;
    UPDATE owner_load o SET unfinished = o.unfinished + v_batch.size WHERE o.owner_id = v_batch.owner_id;
    RETURN v_batch.created_at;
END;
$$;

-- Cancels what isn't finished of a batch, at most p_limit jobs; those that wait all at once, as they are
-- many. Returns how many it has looked at: with none, there are none left. The first call of a request
-- (p_is_first) tells the audit how many jobs it is for.
CREATE FUNCTION cancel_batch_v1(
    p_batch_id uuid, p_owner_id uuid, p_actor text, p_limit integer, p_is_first boolean
)
RETURNS integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_now timestamptz;
    v_ids uuid[];
    v_queued uuid[];
    v_running uuid[];
    v_id uuid;
    v_count integer;
BEGIN
    IF p_is_first THEN
        SELECT count(*) INTO v_count FROM job j
        WHERE j.batch_id = p_batch_id AND j.finished_at IS NULL AND j.state <> 'cancel_requested'
            AND (p_owner_id IS NULL OR j.owner_id = p_owner_id);
        IF v_count > 0 THEN
            PERFORM audit_v1(
                p_actor, 'batch.cancel', p_batch_id::text, jsonb_build_object('jobs', v_count));
        END IF;
    END IF;
    -- OFFSET 0: with the order inside, all jobs of all batches might be read in it.
    SELECT array_agg(o.id) INTO v_ids FROM (
        SELECT i.id FROM (
            SELECT j.id FROM job j
            WHERE j.batch_id = p_batch_id AND j.finished_at IS NULL AND j.state <> 'cancel_requested'
                AND (p_owner_id IS NULL OR j.owner_id = p_owner_id) OFFSET 0) AS i
        ORDER BY i.id LIMIT p_limit) AS o;
    SELECT array_agg(l.id) FILTER (WHERE l.state = 'queued'),
        array_agg(l.id) FILTER (WHERE l.state = 'running')
    INTO v_queued, v_running
    FROM (
        SELECT j.id, j.state FROM job j
        WHERE j.id = ANY (v_ids) AND j.state IN ('queued', 'running') ORDER BY j.id FOR UPDATE) AS l;
    v_now := clock_timestamp();
    -- The entries' locks are taken second, as claims take them; claims never wait for them.
    DELETE FROM procrastinate_jobs e USING job j WHERE j.id = ANY (v_queued) AND e.id = j.entry_id;
    UPDATE job j SET state = 'cancelled', sequence = j.sequence + 1, entry_id = NULL, due_at = NULL,
        finished_at = v_now, settle_at = NULL,
        error_category = 'job-cancelled', error_message = 'The job was cancelled.', error_errors = NULL
    WHERE j.id = ANY (v_queued);
    INSERT INTO job_event (job_id, sequence, at, from_state, state, attempt, actor, reason)
    SELECT j.id, j.sequence, v_now, 'queued', 'cancelled', j.attempt, p_actor, 'cancelled while it waited'
    FROM job j WHERE j.id = ANY (v_queued);
    PERFORM tell_waiters_v1(v_queued);
    FOREACH v_id IN ARRAY coalesce(v_running, '{}') LOOP
        PERFORM cancel_one_v1(v_id, NULL, p_actor);
    END LOOP;
    RETURN coalesce(cardinality(v_ids), 0);
END;
$$;
