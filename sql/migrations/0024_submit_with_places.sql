-- Accepting jobs and batches, with places in line.

-- Outcomes after which nothing is left of a submission.
CREATE FUNCTION is_refusal_v1(p_outcome text)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_outcome IN ('quota-exceeded', 'backlog-full', 'backlog-costly', 'backlog-old', 'no-capacity')
$$;

-- As submit_v2, with places in line. p_places are those that calls name, or NULL. Of an accepted job,
-- `wait_s` says how long it should wait for its start; of one that is refused for want of room, `due_s` when
-- there should be some, and `place` is then kept for it. NULL: not known; without a place. `is_placed`: a
-- place that it came with has counted. What does a job again gets no place, as few come back for it.
CREATE FUNCTION submit_v3(
    p_ids uuid[], p_owner_ids uuid[], p_key_ids uuid[], p_functions text[], p_interfaces text[],
    p_inputs bytea[], p_digests bytea[], p_costs double precision[], p_weights double precision[],
    p_attempts integer[], p_started integer[], p_charged integer[], p_alone boolean[],
    p_queue_s double precision[], p_total_s double precision[],
    p_most_outstanding integer[], p_most_waiting integer[],
    p_most_costs double precision[], p_most_ages_s double precision[],
    p_request_ids text[], p_traceparents text[], p_idempotency_keys text[], p_retries_of uuid[],
    p_actors text[], p_waiters text[], p_key_ttl_s double precision, p_places uuid[]
)
RETURNS TABLE (
    job_id uuid, outcome text, state text, created_at timestamptz, queue_deadline_at timestamptz,
    deadline_at timestamptz, outstanding integer, wait_s double precision, place uuid,
    due_s double precision, is_placed boolean
)
LANGUAGE plpgsql
-- Tables swing between empty and full: no plan may depend on what their statistics say today.
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
    v_ids uuid[] := p_ids;
    v_outcomes text[] := array_fill('accepted'::text, ARRAY[cardinality(p_ids)]);
    v_outstanding integer[];
    v_places uuid[];
    v_due_s double precision[];
    v_is_placed boolean[];
    v_rates double precision[];
    v_works double precision[];
    v_waits double precision[] := array_fill(NULL::double precision, ARRAY[cardinality(p_ids)]);
    v_lane_waits double precision[];
    v_tags double precision[] := array_fill(0::double precision, ARRAY[cardinality(p_ids)]);
    v_entries bigint[];
    v_accepted integer[];
    v_found record;
    v_first integer;
    v_tag double precision;
    n integer;
BEGIN
    p_costs := costs_v1(p_costs);
    FOR v_found IN
        SELECT u.n FROM unnest(p_ids) WITH ORDINALITY AS u (id, n) JOIN job j ON j.id = u.id
    LOOP
        v_outcomes[v_found.n] := 'replayed';
    END LOOP;

    FOR n IN
        SELECT u.n FROM unnest(p_retries_of) WITH ORDINALITY AS u (id, n)
        WHERE u.id IS NOT NULL ORDER BY u.id, u.n
    LOOP
        CONTINUE WHEN v_outcomes[n] <> 'accepted';
        UPDATE job j SET retried_as = p_ids[n]
        WHERE j.id = p_retries_of[n] AND j.owner_id = p_owner_ids[n]
            AND j.retried_as IS NULL AND j.state IN ('failed', 'expired', 'cancelled');
        CONTINUE WHEN FOUND;
        SELECT j.retried_as INTO v_found FROM job j
        WHERE j.id = p_retries_of[n] AND j.owner_id = p_owner_ids[n];
        v_outcomes[n] := CASE WHEN v_found.retried_as IS NULL THEN 'not-retryable' ELSE 'replayed' END;
        v_ids[n] := coalesce(v_found.retried_as, p_ids[n]);
    END LOOP;

    -- In one order everywhere, as each waits for whoever submits the same key at the same time.
    FOR n IN
        SELECT u.n FROM unnest(p_owner_ids, p_functions, p_idempotency_keys, p_retries_of) WITH ORDINALITY
            AS u (owner_id, function, key, retry_of, n)
        WHERE u.key IS NOT NULL AND u.retry_of IS NULL ORDER BY u.owner_id, u.function, u.key, u.n
    LOOP
        CONTINUE WHEN v_outcomes[n] <> 'accepted';
        INSERT INTO idempotency AS i (owner_id, function, key, job_id, digest, expires_at)
        VALUES (p_owner_ids[n], p_functions[n], p_idempotency_keys[n], p_ids[n], p_digests[n],
            v_now + make_interval(secs => p_key_ttl_s))
        ON CONFLICT (owner_id, function, key) DO UPDATE
        SET job_id = excluded.job_id, digest = excluded.digest, expires_at = excluded.expires_at
        WHERE i.expires_at <= v_now;
        CONTINUE WHEN FOUND;
        SELECT i.job_id, i.digest INTO STRICT v_found FROM idempotency i
        WHERE i.owner_id = p_owner_ids[n] AND i.function = p_functions[n] AND i.key = p_idempotency_keys[n];
        v_ids[n] := v_found.job_id;
        v_outcomes[n] := CASE WHEN v_found.digest = p_digests[n] THEN 'replayed' ELSE 'key-conflict' END;
    END LOOP;

    SELECT array_agg(a.outcome), array_agg(a.outstanding), array_agg(a.place), array_agg(a.due_s),
        array_agg(a.is_placed), array_agg(a.rate), array_agg(a.work)
    INTO v_outcomes, v_outstanding, v_places, v_due_s, v_is_placed, v_rates, v_works
    FROM admit_v1(p_ids, p_owner_ids, p_functions, p_costs, p_weights,
        -- What has started before is not held to its queue deadline any more. Products with what is tiny
        -- would underflow.
        ARRAY(SELECT greatest(CASE WHEN u.started = 0 THEN u.queue_s ELSE u.total_s END, 0.001)
            FROM unnest(p_started, p_queue_s, p_total_s) WITH ORDINALITY AS u (started, queue_s, total_s, n)
            ORDER BY u.n),
        p_most_outstanding, p_most_waiting, p_most_costs, p_most_ages_s, p_idempotency_keys, p_places,
        ARRAY(SELECT u.id IS NULL FROM unnest(p_retries_of) WITH ORDINALITY AS u (id, n) ORDER BY u.n),
        v_outcomes) a;
    FOR n IN SELECT u.n FROM unnest(v_ids, p_ids) WITH ORDINALITY AS u (one, other, n) WHERE u.one <> u.other
    LOOP
        -- What stands for it may be a job of this submission that was refused just now, and so is it.
        v_first := array_position(p_ids, v_ids[n]);
        IF is_refusal_v1(v_outcomes[v_first]) THEN
            v_ids[n] := p_ids[n];
            v_outcomes[n] := v_outcomes[v_first];
            v_places[n] := v_places[v_first];
            v_due_s[n] := v_due_s[v_first];
            v_is_placed[n] := v_is_placed[v_first];
        END IF;
    END LOOP;
    -- A refusal isn't remembered, neither under its key nor by what it would have done again.
    UPDATE job j SET retried_as = NULL
    FROM unnest(p_retries_of, p_ids, v_outcomes) AS u (retry_of, id, outcome)
    WHERE j.id = u.retry_of AND j.retried_as = u.id
        AND is_refusal_v1(u.outcome);
    DELETE FROM idempotency i USING unnest(p_owner_ids, p_functions, p_idempotency_keys, p_ids, v_outcomes)
        AS u (owner_id, function, key, id, outcome)
    WHERE i.owner_id = u.owner_id AND i.function = u.function AND i.key = u.key AND i.job_id = u.id
        AND is_refusal_v1(u.outcome);

    -- In one order everywhere, as the rows of the flows stay locked.
    FOR v_found IN
        SELECT u.function, u.owner_id, u.weight, sum(tag_step_v1(u.cost, u.weight)) AS total,
            array_agg(u.n ORDER BY u.n) AS numbers
        FROM unnest(p_functions, p_owner_ids, p_costs, p_weights, v_outcomes) WITH ORDINALITY
            AS u (function, owner_id, cost, weight, outcome, n)
        WHERE u.outcome = 'accepted'
        GROUP BY u.function, u.owner_id, u.weight ORDER BY u.function, u.owner_id, u.weight
    LOOP
        v_tag := reserve_tags_v1(v_found.function, v_found.owner_id, v_found.weight, v_found.total);
        FOREACH n IN ARRAY v_found.numbers LOOP
            v_tags[n] := v_tag;
            v_tag := v_tag + tag_step_v1(p_costs[n], p_weights[n]);
        END LOOP;
    END LOOP;
    -- When each is known that comes before.
    FOR v_found IN
        SELECT u.function, u.rate, array_agg(u.n ORDER BY u.n) AS numbers,
            array_agg(u.tag ORDER BY u.n) AS tags, array_agg(u.work ORDER BY u.n) AS works,
            array_agg(u.cost ORDER BY u.n) AS costs
        FROM unnest(p_functions, p_costs, v_outcomes, v_rates, v_tags, v_works) WITH ORDINALITY
            AS u (function, cost, outcome, rate, tag, work, n)
        WHERE u.outcome = 'accepted' AND u.rate IS NOT NULL GROUP BY u.function, u.rate
    LOOP
        v_lane_waits := waits_v1(v_found.function, v_found.rate, v_found.tags, v_found.works, v_found.costs);
        FOR n IN 1 .. cardinality(v_found.numbers) LOOP
            v_waits[v_found.numbers[n]] := v_lane_waits[n];
        END LOOP;
    END LOOP;

    -- The same submission may have been under way already. It has committed by now: this has just waited for
    -- the row of its owner in its lane.
    FOR v_found IN
        SELECT u.n FROM unnest(p_ids) WITH ORDINALITY AS u (id, n) JOIN job j ON j.id = u.id
    LOOP
        v_outcomes[v_found.n] := 'replayed';
    END LOOP;

    SELECT array_agg(u.n ORDER BY u.n), procrastinate_defer_jobs_v1(array_agg(ROW(
            p_functions[u.n], 'headrace.run', 0, NULL, NULL,
            jsonb_build_object('job_id', p_ids[u.n], 'v', 1), NULL
        )::procrastinate_job_to_defer_v1 ORDER BY u.n))
    INTO v_accepted, v_entries
    FROM unnest(v_outcomes) WITH ORDINALITY AS u (outcome, n)
    WHERE u.outcome = 'accepted' HAVING count(*) > 0;

    INSERT INTO job (
        id, owner_id, key_id, function, interface, digest, input, idempotency_key, retry_of, request_id,
        traceparent, state, attempt, charged, attempts, alone, entry_id, cost, weight, tag,
        created_at, queue_deadline_at, deadline_at, queued_at, settle_at, waiters)
    SELECT p_ids[a.n], p_owner_ids[a.n], p_key_ids[a.n], p_functions[a.n], p_interfaces[a.n], p_digests[a.n],
        p_inputs[a.n], p_idempotency_keys[a.n], p_retries_of[a.n], p_request_ids[a.n], p_traceparents[a.n],
        'queued', p_started[a.n], p_charged[a.n], p_attempts[a.n], p_alone[a.n], v_entries[a.place],
        p_costs[a.n], p_weights[a.n], v_tags[a.n],
        v_now, v_now + make_interval(secs => p_queue_s[a.n]), v_now + make_interval(secs => p_total_s[a.n]),
        v_now, v_now + make_interval(
            secs => CASE WHEN p_started[a.n] = 0 THEN p_queue_s[a.n] ELSE p_total_s[a.n] END),
        array_remove(ARRAY[p_waiters[a.n]], NULL)
    FROM unnest(v_accepted) WITH ORDINALITY AS a (n, place);
    INSERT INTO job_event (job_id, sequence, at, from_state, state, attempt, actor, reason)
    SELECT p_ids[a.n], 1, v_now, NULL, 'queued', p_started[a.n],
        coalesce(p_actors[a.n], 'key:' || p_key_ids[a.n], 'owner:' || p_owner_ids[a.n]),
        CASE WHEN p_alone[a.n] THEN 'lost with its process on the direct path'
            WHEN p_started[a.n] > 0 THEN 'lost on the direct path'
            WHEN p_retries_of[a.n] IS NOT NULL THEN 'does job ' || p_retries_of[a.n] || ' again'
            ELSE 'submitted' END
    FROM unnest(v_accepted) AS a (n);

    PERFORM audit_v1(coalesce(p_actors[a.n], 'key:' || p_key_ids[a.n], 'owner:' || p_owner_ids[a.n]),
        'job.retry', p_retries_of[a.n]::text, jsonb_build_object('job_id', p_ids[a.n]))
    FROM unnest(v_accepted) AS a (n) WHERE p_retries_of[a.n] IS NOT NULL;

    FOR v_found IN
        SELECT u.owner_id, count(*) AS accepted
        FROM unnest(p_owner_ids, v_outcomes) AS u (owner_id, outcome)
        WHERE u.outcome = 'accepted' GROUP BY u.owner_id ORDER BY u.owner_id
    LOOP
        UPDATE owner_load o SET unfinished = o.unfinished + v_found.accepted
        WHERE o.owner_id = v_found.owner_id;
    END LOOP;

    RETURN QUERY
    SELECT u.id, u.outcome, j.state, j.created_at, j.queue_deadline_at, j.deadline_at, u.outstanding,
        CASE WHEN u.outcome = 'accepted' THEN u.wait_s END, u.place, u.due_s, u.is_placed
    FROM unnest(v_ids, v_outcomes, v_outstanding, v_waits, v_places, v_due_s, v_is_placed)
        WITH ORDINALITY AS u (id, outcome, outstanding, wait_s, place, due_s, is_placed, n)
    LEFT JOIN job j ON j.id = u.id AND u.outcome IN ('accepted', 'replayed')
    ORDER BY u.n;
END;
$$;

-- As admit_batch_v1, with places in line: a batch gets none, and leaves others theirs. `due_s`: seconds until
-- there should be room for all of it; NULL: not known, or never. p_limit_s is how long its jobs may wait.
CREATE FUNCTION admit_batch_v2(
    p_owner_id uuid, p_function text, p_costs double precision[], p_weight double precision,
    p_most_outstanding integer, p_most_waiting integer, p_most_cost double precision,
    p_most_age_s double precision, p_limit_s double precision
)
RETURNS TABLE (refusal text, tag double precision, outstanding integer, due_s double precision)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_size integer := cardinality(p_costs);
    v_cost double precision;
    v_work double precision;
    v_steps double precision;
    v_lane lane_state;
    v_flow flow_state;
BEGIN
    p_costs := costs_v1(p_costs);
    SELECT sum(u.cost), sum(work_v1(u.cost)), sum(tag_step_v1(u.cost, p_weight))
    INTO STRICT v_cost, v_work, v_steps FROM unnest(p_costs) AS u (cost);
    outstanding := outstanding_v1(p_owner_id, p_most_outstanding);
    v_lane := lane_state_v1(p_function, p_most_waiting, p_most_cost, p_most_age_s);
    p_limit_s := greatest(p_limit_s, 0.001); -- products with what is tiny would underflow
    IF is_scarce_v1(v_lane, v_size, v_cost, v_work, p_limit_s) THEN
        PERFORM pg_advisory_xact_lock(line_lock_v1(p_function));
        v_lane := lane_state_v1(p_function, p_most_waiting, p_most_cost, p_most_age_s);
    END IF;
    SELECT s.* INTO v_flow
    FROM flow_states_v1(v_lane, ARRAY[p_owner_id], ARRAY[p_weight], ARRAY[v_work]) s;
    refusal := CASE WHEN outstanding + v_size > p_most_outstanding THEN 'quota-exceeded'
        ELSE refusal_v1(v_lane, v_flow, p_limit_s, false) END;
    -- As if all but the last job were in already. Half of the bound is for those who come one by one.
    v_lane.is_lined := false;
    v_lane.waiting := v_lane.waiting + v_size - 1;
    v_lane.cost := v_lane.cost + v_cost - p_costs[v_size];
    v_lane.work := v_lane.work + v_work - work_v1(p_costs[v_size]);
    v_flow.tag := v_flow.last_tag - tag_step_v1(p_costs[v_size], p_weight);
    refusal := coalesce(refusal, refusal_v1(v_lane, v_flow, p_limit_s, false),
        CASE WHEN v_lane.cost + p_costs[v_size] > v_lane.most_cost THEN 'backlog-costly' END);
    IF refusal IS NULL THEN
        tag := reserve_tags_v1(p_function, p_owner_id, p_weight, v_steps);
    ELSIF refusal <> 'quota-exceeded' AND v_lane.rate IS NOT NULL
        AND v_size <= v_lane.most AND v_cost <= v_lane.most_cost THEN
        due_s := least(greatest(ceil(until_room_v1(v_lane, v_flow, p_limit_s)), 1), 600);
    END IF;
    RETURN NEXT;
END;
$$;

-- What there is before a batch, before its inputs are read. Nothing is reserved: what is admitted meanwhile
-- takes the room. Batches may wait for a day, so `due_s` looks at what may wait, and not at how long.
CREATE FUNCTION room_v1(
    p_owner_id uuid, p_function text, p_most_outstanding integer, p_most_waiting integer,
    p_most_cost double precision, p_most_age_s double precision
)
RETURNS TABLE (
    outstanding integer, refusal text, most_waiting integer, most_cost double precision,
    due_s double precision
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_lane lane_state;
    v_flow flow_state;
BEGIN
    outstanding := outstanding_v1(p_owner_id, p_most_outstanding);
    SELECT r.refusal INTO refusal FROM lane_room_v1(p_function, p_most_waiting, p_most_cost, p_most_age_s) r;
    SELECT coalesce(l.most_waiting, p_most_waiting), coalesce(l.most_cost, p_most_cost)
    INTO most_waiting, most_cost FROM (VALUES (p_function)) AS f (name) LEFT JOIN lane l ON l.name = f.name;
    IF refusal IS NOT NULL THEN
        v_lane := lane_state_v1(p_function, p_most_waiting, p_most_cost, p_most_age_s);
        SELECT s.* INTO v_flow FROM flow_states_v1(v_lane, ARRAY[p_owner_id], ARRAY[1.0], ARRAY[0.0]) s;
        due_s := CASE WHEN v_lane.rate IS NOT NULL
            THEN least(greatest(ceil(until_room_v1(v_lane, v_flow, 86400)), 1), 600) END;
    END IF;
    RETURN NEXT;
END;
$$;
