-- Accepting jobs.

-- What a job adds to its flow's tag. A call costs 1 to a million here: callers choose their inputs; what
-- costs nothing would always be next, and sums must keep their precision.
CREATE FUNCTION tag_step_v1(p_cost double precision, p_weight double precision)
RETURNS double precision LANGUAGE sql IMMUTABLE AS $$ SELECT least(greatest(p_cost, 1), 1e6) / p_weight $$;

-- Start-time fair queueing: a job's tag is where the job before it in its flow ends, or the lane's virtual
-- time if that is later; it ends its cost over its weight further on. Moves the flow on by p_total, and
-- returns the tag of its next job.
CREATE FUNCTION reserve_tags_v1(
    p_lane text, p_owner_id uuid, p_weight double precision, p_total double precision
)
RETURNS double precision LANGUAGE plpgsql AS $$
DECLARE
    v_tag double precision;
BEGIN
    INSERT INTO lane (name) SELECT p_lane WHERE NOT EXISTS (SELECT FROM lane l WHERE l.name = p_lane)
    ON CONFLICT DO NOTHING;
    INSERT INTO lane_owner AS o (lane, owner_id, weight, last_tag)
    SELECT l.name, p_owner_id, p_weight, l.virtual_time + p_total FROM lane l WHERE l.name = p_lane
    ON CONFLICT (lane, owner_id, weight) DO UPDATE
    SET last_tag = greatest(o.last_tag, excluded.last_tag - p_total) + p_total
    RETURNING o.last_tag - p_total INTO STRICT v_tag;
    RETURN v_tag;
END;
$$;

-- Takes a reservation back that came to nothing, unless others count on it already.
CREATE FUNCTION release_tags_v1(
    p_lane text, p_owner_id uuid, p_weight double precision, p_tag double precision, p_total double precision
)
RETURNS void LANGUAGE sql AS $$
    UPDATE lane_owner o SET last_tag = p_tag
    WHERE o.lane = p_lane AND o.owner_id = p_owner_id AND o.weight = p_weight AND o.last_tag - p_total = p_tag
$$;

-- Accepts, replays or refuses each of an array of jobs, in one transaction. The arrays are parallel, one
-- entry a job; a row comes back for each, in their order. Repeating a submission changes nothing: a job id
-- that is there already is answered as it stands, so a client whose commit's reply was lost asks again.
--
-- p_started and p_charged are 0, or 1 for a call that was lost on its direct path. p_most_outstanding bounds
-- its owner's unfinished jobs; p_most_waiting, p_most_costs and p_most_ages_s bound what waits in its lane,
-- where the lane has no bounds of its own. They come from one setting: of several in an array, the largest
-- counts for all jobs of the lane.
--
-- A job that does another of its owner's again (p_retries_of) stands for it for ever: a second one is a
-- replay of the first. That is as good as a key, so its own isn't looked at.
CREATE FUNCTION submit_v1(
    p_ids uuid[], p_owner_ids uuid[], p_key_ids uuid[], p_functions text[], p_interfaces text[],
    p_inputs bytea[], p_digests bytea[], p_costs double precision[], p_weights double precision[],
    p_attempts integer[], p_started integer[], p_charged integer[],
    p_queue_s double precision[], p_total_s double precision[],
    p_most_outstanding integer[], p_most_waiting integer[],
    p_most_costs double precision[], p_most_ages_s double precision[],
    p_request_ids text[], p_traceparents text[], p_idempotency_keys text[], p_retries_of uuid[],
    p_actors text[], p_waiters text[], p_key_ttl_s double precision
)
RETURNS TABLE (
    job_id uuid, outcome text, state text, created_at timestamptz, queue_deadline_at timestamptz,
    deadline_at timestamptz, outstanding integer
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
    v_outstanding integer[] := array_fill(0, ARRAY[cardinality(p_ids)]);
    v_tags double precision[] := array_fill(0::double precision, ARRAY[cardinality(p_ids)]);
    v_entries bigint[];
    v_accepted integer[];
    v_found record;
    -- By a job's number, the number of the first job of its owner or lane, and by that what is counted.
    v_owner integer[] := array_fill(0, ARRAY[cardinality(p_ids)]);
    v_lane integer[] := array_fill(0, ARRAY[cardinality(p_ids)]);
    v_owned integer[] := array_fill(0, ARRAY[cardinality(p_ids)]);
    v_bounds text[] := array_fill(NULL::text, ARRAY[cardinality(p_ids)]);
    v_room integer[] := array_fill(0, ARRAY[cardinality(p_ids)]);
    v_room_cost double precision[] := array_fill(0::double precision, ARRAY[cardinality(p_ids)]);
    v_lane_room record;
    v_first integer;
    v_tag double precision;
    n integer;
BEGIN
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

    -- Both bounds are counted once for all of an owner's, or a lane's, jobs in this batch: what other
    -- batches accept at this moment isn't seen, so they may be passed by the batches in flight.
    FOR v_found IN
        SELECT u.owner_id, max(u.most) AS most, array_agg(u.n) AS numbers
        FROM unnest(p_owner_ids, p_most_outstanding) WITH ORDINALITY AS u (owner_id, most, n)
        GROUP BY u.owner_id ORDER BY u.owner_id
    LOOP
        v_first := v_found.numbers[1];
        v_owned[v_first] := outstanding_v1(v_found.owner_id, v_found.most);
        FOREACH n IN ARRAY v_found.numbers LOOP
            v_owner[n] := v_first;
        END LOOP;
    END LOOP;
    FOR v_found IN
        SELECT u.function, max(u.most) AS most, max(u.cost) AS cost, max(u.age_s) AS age_s,
            array_agg(u.n) AS numbers
        FROM unnest(p_functions, p_most_waiting, p_most_costs, p_most_ages_s) WITH ORDINALITY
            AS u (function, most, cost, age_s, n)
        GROUP BY u.function
    LOOP
        v_first := v_found.numbers[1];
        SELECT r.* INTO STRICT v_lane_room
        FROM lane_room_v1(v_found.function, v_found.most, v_found.cost, v_found.age_s) r;
        v_room[v_first] := v_lane_room.room;
        v_room_cost[v_first] := v_lane_room.room_cost;
        v_bounds[v_first] := v_lane_room.refusal;
        FOREACH n IN ARRAY v_found.numbers LOOP
            v_lane[n] := v_first;
        END LOOP;
    END LOOP;
    FOR n IN 1 .. cardinality(p_ids) LOOP
        v_outstanding[n] := v_owned[v_owner[n]];
        IF v_outcomes[n] <> 'accepted' THEN
            -- What stands for it may be a job of this batch that was refused just now, and so is it.
            v_first := array_position(p_ids, v_ids[n]);
            IF v_outcomes[v_first] IN ('quota-exceeded', 'backlog-full', 'backlog-costly', 'backlog-old') THEN
                v_outcomes[n] := v_outcomes[v_first];
                v_ids[n] := p_ids[n];
            END IF;
        ELSIF v_owned[v_owner[n]] >= p_most_outstanding[n] THEN
            v_outcomes[n] := 'quota-exceeded';
        ELSIF v_bounds[v_lane[n]] IS NOT NULL THEN
            v_outcomes[n] := v_bounds[v_lane[n]];
        ELSE
            v_first := v_lane[n];
            v_owned[v_owner[n]] := v_owned[v_owner[n]] + 1;
            v_room[v_first] := v_room[v_first] - 1;
            v_room_cost[v_first] := v_room_cost[v_first] - p_costs[n];
            v_bounds[v_first] := CASE WHEN v_room[v_first] <= 0 THEN 'backlog-full'
                WHEN v_room_cost[v_first] <= 0 THEN 'backlog-costly' END;
        END IF;
    END LOOP;
    -- A refusal isn't remembered, neither under its key nor by what it would have done again.
    UPDATE job j SET retried_as = NULL
    FROM unnest(p_retries_of, p_ids, v_outcomes) AS u (retry_of, id, outcome)
    WHERE j.id = u.retry_of AND j.retried_as = u.id
        AND u.outcome IN ('quota-exceeded', 'backlog-full', 'backlog-costly', 'backlog-old');
    DELETE FROM idempotency i USING unnest(p_owner_ids, p_functions, p_idempotency_keys, p_ids, v_outcomes)
        AS u (owner_id, function, key, id, outcome)
    WHERE i.owner_id = u.owner_id AND i.function = u.function AND i.key = u.key AND i.job_id = u.id
        AND u.outcome IN ('quota-exceeded', 'backlog-full', 'backlog-costly', 'backlog-old');

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
        traceparent, state, attempt, charged, attempts, entry_id, cost, weight, tag,
        created_at, queue_deadline_at, deadline_at, queued_at, settle_at, waiters)
    SELECT p_ids[a.n], p_owner_ids[a.n], p_key_ids[a.n], p_functions[a.n], p_interfaces[a.n], p_digests[a.n],
        p_inputs[a.n], p_idempotency_keys[a.n], p_retries_of[a.n], p_request_ids[a.n], p_traceparents[a.n],
        'queued', p_started[a.n], p_charged[a.n], p_attempts[a.n], v_entries[a.place],
        p_costs[a.n], p_weights[a.n], v_tags[a.n],
        v_now, v_now + make_interval(secs => p_queue_s[a.n]), v_now + make_interval(secs => p_total_s[a.n]),
        v_now, v_now + make_interval(
            secs => CASE WHEN p_started[a.n] = 0 THEN p_queue_s[a.n] ELSE p_total_s[a.n] END),
        array_remove(ARRAY[p_waiters[a.n]], NULL)
    FROM unnest(v_accepted) WITH ORDINALITY AS a (n, place);
    INSERT INTO job_event (job_id, sequence, at, from_state, state, attempt, actor, reason)
    SELECT p_ids[a.n], 1, v_now, NULL, 'queued', p_started[a.n],
        coalesce(p_actors[a.n], 'key:' || p_key_ids[a.n], 'owner:' || p_owner_ids[a.n]),
        CASE WHEN p_started[a.n] > 0 THEN 'lost on the direct path'
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
    SELECT u.id, u.outcome, j.state, j.created_at, j.queue_deadline_at, j.deadline_at, u.outstanding
    FROM unnest(v_ids, v_outcomes, v_outstanding) WITH ORDINALITY AS u (id, outcome, outstanding, n)
    LEFT JOIN job j ON j.id = u.id AND u.outcome IN ('accepted', 'replayed')
    ORDER BY u.n;
END;
$$;
