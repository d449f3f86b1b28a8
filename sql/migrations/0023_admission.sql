-- Deciding what is accepted, with places in line.

-- The place with which a call comes: the one that it names, or else the newest under its key, or else the
-- one of the very same job, whose refusal didn't arrive. `is_open`: it is due; otherwise it is still to
-- come. No row: it has none, or none that is worth anything.
CREATE FUNCTION find_place_v1(
    p_lane text, p_owner_id uuid, p_cost double precision, p_place uuid, p_key text,
    p_job_id uuid
)
RETURNS TABLE (id uuid, is_open boolean, told_s double precision)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    SELECT p.id, p.due_at <= v_now + place_early_v1(),
        greatest(extract(epoch FROM p.told_at - v_now), 0)::double precision
    FROM (
        SELECT 1 AS rank, o.* FROM place o WHERE o.id = p_place
        UNION ALL
        SELECT 2, o.* FROM place o
        WHERE o.owner_id = p_owner_id AND o.lane = p_lane AND o.idempotency_key = p_key
        UNION ALL
        SELECT 3, o.* FROM place o WHERE o.job_id = p_job_id
    ) AS p
    WHERE p.lane = p_lane AND p.owner_id = p_owner_id AND p_cost <= 1.05 * p.cost
        AND p.told_at >= v_now - place_late_v1()
    ORDER BY p.rank, p.told_at DESC LIMIT 1;
END;
$$;

-- Uses a place up: it has come back. Returns it as it was.
CREATE FUNCTION use_place_v1(p_id uuid)
RETURNS place LANGUAGE plpgsql AS $$
DECLARE
    v_place place;
BEGIN
    DELETE FROM place p WHERE p.id = p_id RETURNING p.* INTO STRICT v_place;
    UPDATE line n SET share = least(1, 0.9 * n.share + 0.1), used_at = clock_timestamp()
    WHERE n.lane = v_place.lane AND n.owner_id = v_place.owner_id AND n.weight = v_place.weight;
    RETURN v_place;
END;
$$;

-- Lane and flow without a place that was used up just now.
CREATE FUNCTION without_place_v1(p_place place, INOUT lane lane_state, INOUT flow flow_state)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_is_due boolean := p_place.due_at <= v_now + place_early_v1();
BEGIN
    lane.places := lane.places - 1;
    flow.owned := flow.owned - 1;
    IF p_place.for_room THEN
        lane.is_lined := EXISTS (
            SELECT FROM place p
            WHERE p.lane = lane.name AND p.for_room AND p.told_at >= v_now - place_late_v1());
    END IF;
    IF p_place.for_room AND v_is_due THEN
        lane.kept := greatest(lane.kept - flow.share, 0);
        lane.kept_cost := greatest(lane.kept_cost - flow.share * p_place.cost, 0);
    END IF;
    IF p_place.weight = flow.weight THEN
        flow.places := flow.places - 1;
        flow.line_work := greatest(flow.line_work - flow.share * work_v1(p_place.cost), 0);
        IF v_is_due THEN
            flow.kept_work := greatest(flow.kept_work - flow.share * work_v1(p_place.cost), 0);
        END IF;
    END IF;
END;
$$;

-- Why a lane takes no job of a flow, if it doesn't; NULL: it does. Whoever has a place may fill the bounds.
-- While anybody has one for want of room, others leave half, and what is kept for places that are due: that
-- slack absorbs a drain slower than thought. No more than a quarter is kept, so an idle lane refuses nobody.
-- p_limit_s is how long the job may wait; others may count on half of it while their flow has places of such
-- calls, else on four fifths, so that jobs rarely expire.
CREATE FUNCTION refusal_v1(
    p_lane lane_state, p_flow flow_state, p_limit_s double precision, p_is_placed boolean
)
RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_part double precision := CASE WHEN p_is_placed OR NOT p_lane.is_lined THEN 1 ELSE 0.5 END;
    v_time_part double precision := CASE WHEN p_flow.limit_s >= p_limit_s THEN 0.5 ELSE 0.8 END;
    v_kept double precision := CASE WHEN p_is_placed THEN 0 ELSE least(p_lane.kept, 0.25 * p_lane.most) END;
    v_kept_cost double precision := CASE WHEN p_is_placed THEN 0
        ELSE least(p_lane.kept_cost, 0.25 * p_lane.most_cost) END;
    v_ahead double precision;
BEGIN
    IF p_lane.waiting + v_kept >= v_part * p_lane.most THEN
        RETURN 'backlog-full';
    ELSIF p_lane.cost + v_kept_cost >= v_part * p_lane.most_cost THEN
        RETURN 'backlog-costly';
    ELSIF p_lane.age_s > v_part * p_lane.most_age_s THEN
        RETURN 'backlog-old';
    END IF;
    v_ahead := ahead_of_next_v1(p_lane, p_flow);
    IF v_ahead > p_lane.rate * p_limit_s
        OR NOT p_is_placed AND v_ahead + coalesce(p_flow.kept_work, 0)
            > v_time_part * p_lane.rate * p_limit_s THEN
        RETURN 'no-capacity';
    END IF;
    RETURN NULL;
END;
$$;

-- Seconds until half of what bounds a job that is refused should be free.
CREATE FUNCTION until_room_v1(p_lane lane_state, p_flow flow_state, p_limit_s double precision)
RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(
        0,
        (p_lane.waiting - 0.5 * p_lane.most) * p_lane.work / greatest(p_lane.waiting, 1) / p_lane.rate,
        CASE WHEN p_lane.cost > 0
            THEN (p_lane.cost - 0.5 * p_lane.most_cost) * p_lane.work
                / greatest(p_lane.cost, 1e-6) / p_lane.rate ELSE 0 END,
        p_lane.age_s - 0.5 * p_lane.most_age_s,
        ahead_of_next_v1(p_lane, p_flow) / p_lane.rate - 0.5 * p_limit_s)
$$;

-- Gives the next place in a flow's line to who is refused; p_in_front: one before the line, to who came
-- back when told. The line is at least as long as what is in it takes now, so that errors of earlier rates
-- don't add up; and at most twice as long, so that a rate that was too low for a while isn't remembered for
-- longer. The last fifth of a lane's places is for owners with few. p_most_outstanding bounds the owner's
-- places too. Returns the seconds that the caller is told, with jitter; NULL as the id: without a place,
-- and some time after the end of the line.
CREATE FUNCTION give_place_v1(
    p_lane lane_state, p_flow flow_state, p_refusal text, p_cost double precision, p_limit_s double precision,
    p_key text, p_job_id uuid, p_in_front boolean, p_most_outstanding integer, p_with_place boolean
)
RETURNS TABLE (id uuid, due_s double precision, ends_at timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
    v_until_s double precision := until_room_v1(p_lane, p_flow, p_limit_s);
    v_due_at timestamptz;
BEGIN
    IF p_in_front THEN
        ends_at := p_flow.front_at;
        due_s := v_until_s;
    ELSE
        ends_at := p_flow.end_at;
        due_s := v_until_s + p_flow.line_work / p_flow.rate;
    END IF;
    IF ends_at IS NOT NULL THEN
        due_s := greatest(due_s, least(extract(epoch FROM ends_at - v_now),
            v_until_s + 2 * p_flow.line_work / p_flow.share / p_flow.rate));
    END IF;
    due_s := due_s + work_v1(p_cost) / p_flow.rate;
    v_due_at := v_now + make_interval(secs => least(due_s, 600));
    -- Whole seconds are told.
    due_s := least(greatest(ceil(due_s + random() * least(1, 0.05 * due_s)), 1), 600);
    IF p_with_place AND v_due_at < v_now + interval '600 seconds'
        AND p_flow.owned < least(2000, p_most_outstanding)
        AND p_lane.places < (CASE WHEN p_flow.owned < 100 THEN 10000 ELSE 8000 END) THEN
        INSERT INTO line (lane, owner_id, weight, used_at)
        VALUES (p_lane.name, p_flow.owner_id, p_flow.weight, v_now) ON CONFLICT DO NOTHING;
        INSERT INTO place AS p (lane, owner_id, weight, cost, idempotency_key, job_id, in_front, for_room,
            limit_s, due_at, told_at)
        VALUES (p_lane.name, p_flow.owner_id, p_flow.weight, p_cost, p_key, p_job_id, p_in_front,
            p_refusal <> 'no-capacity', p_limit_s, v_due_at, v_now + make_interval(secs => due_s))
        RETURNING p.id INTO id;
        ends_at := greatest(ends_at, v_due_at);
    ELSE
        -- The line doesn't grow by these: told its end, all would come back at once.
        due_s := least(ceil(due_s * (1 + random())), 600);
    END IF;
    RETURN NEXT;
END;
$$;

-- Decides which of a submission's jobs are accepted: those whose outcome so far is. The arrays are
-- parallel, as in submit_v1; p_limits_s is how long each may wait. A row for each job, in their order. What
-- was accepted while this waited for a lane is `replayed`.
--
-- Bounds that are near, and those of at most 5,000 jobs, are kept to by one submission at a time, so they
-- hold for any number of gateways. Larger ones may be passed by what is accepted in a quarter of a second, as
-- that old is the count, and by five or more large submissions at once, that each see the bound far off.
--
-- With an outcome of a lane that has no room: `place` and `due_s`, as soon as the lane's rate is known. With
-- `accepted`: the lane's rate, and the work that waited in it.
CREATE FUNCTION admit_v1(
    p_ids uuid[], p_owner_ids uuid[], p_functions text[], p_costs double precision[],
    p_weights double precision[], p_limits_s double precision[], p_most_outstanding integer[],
    p_most_waiting integer[], p_most_costs double precision[], p_most_ages_s double precision[],
    p_keys text[], p_places uuid[], p_with_place boolean[], p_outcomes text[]
)
RETURNS TABLE (
    outcome text, outstanding integer, place uuid, due_s double precision, is_placed boolean,
    rate double precision, work double precision
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    -- By a job's number, the number of the first job of its owner, lane or flow, and by that what is known.
    v_owner integer[] := array_fill(0, ARRAY[cardinality(p_outcomes)]);
    v_lane_of integer[] := array_fill(0, ARRAY[cardinality(p_outcomes)]);
    v_flow_of integer[];
    v_owned integer[] := array_fill(0, ARRAY[cardinality(p_outcomes)]);
    v_lanes lane_state[] := array_fill(NULL::lane_state, ARRAY[cardinality(p_outcomes)]);
    v_flows flow_state[] := array_fill(NULL::flow_state, ARRAY[cardinality(p_outcomes)]);
    v_lane lane_state;
    v_flow flow_state;
    v_found record;
    v_given record;
    n integer;
BEGIN
    FOR v_found IN
        SELECT u.owner_id, max(u.most) AS most, array_agg(u.n) AS numbers
        FROM unnest(p_owner_ids, p_most_outstanding) WITH ORDINALITY AS u (owner_id, most, n)
        GROUP BY u.owner_id ORDER BY u.owner_id
    LOOP
        v_owned[v_found.numbers[1]] := outstanding_v1(v_found.owner_id, v_found.most);
        FOREACH n IN ARRAY v_found.numbers LOOP
            v_owner[n] := v_found.numbers[1];
        END LOOP;
    END LOOP;
    -- In one order everywhere, as the lines stay locked.
    FOR v_found IN
        SELECT u.function, max(u.most) AS most, max(u.most_cost) AS most_cost, max(u.age_s) AS age_s,
            count(*) AS jobs, sum(u.cost) AS cost, sum(work_v1(u.cost)) AS work, min(u.limit_s) AS least_s,
            array_agg(u.n) AS numbers, array_agg(DISTINCT u.owner_id) AS owners
        FROM unnest(p_functions, p_owner_ids, p_most_waiting, p_most_costs, p_most_ages_s, p_costs,
            p_limits_s) WITH ORDINALITY AS u (function, owner_id, most, most_cost, age_s, cost, limit_s, n)
        GROUP BY u.function ORDER BY u.function
    LOOP
        v_lane := lane_state_v1(v_found.function, v_found.most, v_found.most_cost, v_found.age_s);
        v_lane.is_scarce := is_scarce_v1(
            v_lane, v_found.jobs, v_found.cost, v_found.work, v_found.least_s)
            -- Places that aren't for room concern their owners.
            OR v_lane.places > 0 AND EXISTS (
                SELECT FROM place p WHERE p.lane = v_lane.name AND p.owner_id = ANY (v_found.owners));
        IF v_lane.is_scarce THEN
            PERFORM pg_advisory_xact_lock(line_lock_v1(v_found.function));
            v_lane := lane_state_v1(v_found.function, v_found.most, v_found.most_cost, v_found.age_s);
            v_lane.is_scarce := true;
        END IF;
        v_lanes[v_found.numbers[1]] := v_lane;
        FOREACH n IN ARRAY v_found.numbers LOOP
            v_lane_of[n] := v_found.numbers[1];
        END LOOP;
    END LOOP;
    FOR n IN SELECT u.n FROM unnest(p_ids) WITH ORDINALITY AS u (id, n) JOIN job j ON j.id = u.id LOOP
        p_outcomes[n] := 'replayed';
    END LOOP;
    v_flow_of := ARRAY(
        SELECT min(u.n) OVER (PARTITION BY u.function, u.owner_id, u.weight, u.outcome)
        FROM unnest(p_functions, p_owner_ids, p_weights, p_outcomes) WITH ORDINALITY
            AS u (function, owner_id, weight, outcome, n) ORDER BY u.n);
    FOR v_found IN
        SELECT array_agg(f.n ORDER BY f.n) AS firsts, array_agg(p_owner_ids[f.n] ORDER BY f.n) AS owner_ids,
            array_agg(p_weights[f.n] ORDER BY f.n) AS weights, array_agg(f.work ORDER BY f.n) AS works
        FROM (
            SELECT u.n, sum(work_v1(u.cost)) AS work
            FROM unnest(v_flow_of, p_costs, p_outcomes) AS u (n, cost, outcome)
            WHERE u.outcome = 'accepted' GROUP BY u.n) AS f
        GROUP BY p_functions[f.n]
    LOOP
        v_lane := v_lanes[v_lane_of[v_found.firsts[1]]];
        CONTINUE WHEN NOT v_lane.is_scarce;
        n := 0;
        FOR v_flow IN
            SELECT s.* FROM flow_states_v1(v_lane, v_found.owner_ids, v_found.weights, v_found.works) s
        LOOP
            n := n + 1;
            v_flows[v_found.firsts[n]] := v_flow;
        END LOOP;
    END LOOP;
    FOR n IN 1 .. cardinality(p_outcomes) LOOP
        outcome := p_outcomes[n];
        outstanding := v_owned[v_owner[n]];
        place := NULL;
        due_s := NULL;
        is_placed := false;
        v_lane := v_lanes[v_lane_of[n]];
        rate := v_lane.rate;
        work := v_lane.work;
        IF outcome = 'accepted' AND outstanding >= p_most_outstanding[n] THEN
            outcome := 'quota-exceeded';
        ELSIF outcome = 'accepted' THEN
            IF v_lane.is_scarce THEN
                v_flow := v_flows[v_flow_of[n]];
                v_given := admit_one_v1(v_lane, v_flow, p_ids[n], p_costs[n], p_limits_s[n], p_keys[n],
                    p_places[n], p_with_place[n], p_most_outstanding[n]);
                outcome := coalesce(v_given.refusal, 'accepted');
                place := v_given.place;
                due_s := v_given.due_s;
                is_placed := v_given.is_placed;
                v_lane := v_given.lane;
                v_flow := v_given.flow;
                v_flows[v_flow_of[n]] := v_flow;
            END IF;
            IF outcome = 'accepted' THEN
                v_owned[v_owner[n]] := outstanding + 1;
                v_lane.waiting := v_lane.waiting + 1;
                v_lane.cost := v_lane.cost + p_costs[n];
                v_lane.work := v_lane.work + work_v1(p_costs[n]);
            END IF;
            v_lanes[v_lane_of[n]] := v_lane;
        END IF;
        RETURN NEXT;
    END LOOP;
END;
$$;

-- One job of admit_v1, where room is scarce: why it is refused, and with which place; lane and flow as they
-- are then, the flow with its tag moved on where the job is accepted.
CREATE FUNCTION admit_one_v1(
    p_lane lane_state, p_flow flow_state, p_id uuid, p_cost double precision, p_limit_s double precision,
    p_key text, p_place uuid, p_with_place boolean, p_most_outstanding integer,
    OUT refusal text, OUT place uuid, OUT due_s double precision, OUT is_placed boolean,
    OUT lane lane_state, OUT flow flow_state
)
LANGUAGE plpgsql AS $$
DECLARE
    v_place_id uuid;
    v_told_s double precision;
    v_left record;
    v_given record;
BEGIN
    lane := p_lane;
    flow := p_flow;
    is_placed := false;
    IF p_flow.owned > 0 THEN
        SELECT f.id, f.is_open, f.told_s INTO v_place_id, is_placed, v_told_s
        FROM find_place_v1(p_lane.name, p_flow.owner_id, p_cost, p_place, p_key, p_id) f;
        is_placed := coalesce(is_placed, false);
    END IF;
    refusal := refusal_v1(p_lane, p_flow, p_limit_s, is_placed);
    IF refusal IS NOT NULL AND v_place_id IS NOT NULL AND NOT is_placed THEN
        -- Too early: it is worth as much as before.
        place := v_place_id;
        due_s := greatest(v_told_s, 0.001);
        is_placed := true;
        RETURN;
    END IF;
    IF v_place_id IS NOT NULL THEN
        v_left := without_place_v1(use_place_v1(v_place_id), lane, flow);
        lane := v_left.lane;
        flow := v_left.flow;
    END IF;
    IF refusal IS NULL THEN
        flow.tag := flow.tag + tag_step_v1(p_cost, flow.weight);
    ELSIF p_lane.rate IS NOT NULL THEN
        SELECT g.* INTO v_given FROM give_place_v1(
            lane, flow, refusal, p_cost, p_limit_s, p_key, p_id, is_placed, p_most_outstanding,
            p_with_place) g;
        place := v_given.id;
        due_s := v_given.due_s;
        IF place IS NOT NULL THEN
            lane.places := lane.places + 1;
            lane.is_lined := lane.is_lined OR refusal <> 'no-capacity';
            flow.limit_s := greatest(flow.limit_s, p_limit_s);
            flow.places := flow.places + 1;
            flow.owned := flow.owned + 1;
            flow.line_work := flow.line_work + flow.share * work_v1(p_cost);
            IF is_placed THEN
                flow.front_at := v_given.ends_at;
            ELSE
                flow.end_at := v_given.ends_at;
            END IF;
        END IF;
    END IF;
END;
$$;

-- Seconds that accepted jobs of a lane should wait. The arrays are parallel; p_works is what waited in the
-- lane before each.
CREATE FUNCTION waits_v1(
    p_lane text, p_rate double precision, p_tags double precision[], p_works double precision[],
    p_costs double precision[]
)
RETURNS double precision[] LANGUAGE sql STABLE AS $$
    -- Behind others a job also waits for the end of what runs: half of one, as a mean.
    SELECT array_agg(
        CASE WHEN least(u.work, u.ahead) > 0
            THEN (least(u.work, u.ahead) + work_v1(u.cost) / 2) / p_rate ELSE 0 END ORDER BY u.n)
    FROM unnest(aheads_v1(p_lane, p_tags), p_works, p_costs) WITH ORDINALITY AS u (ahead, work, cost, n)
$$;
