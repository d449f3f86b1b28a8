-- Deciding what is accepted, with places in line.

-- The place with which a call comes: the one that it names, or else the newest under its key. `is_open`: it
-- is due; otherwise it is still to come. No row: it has none, or none that is worth anything.
CREATE FUNCTION find_place_v1(
    p_lane text, p_owner_id uuid, p_cost double precision, p_place uuid, p_key text
)
RETURNS TABLE (id uuid, weight double precision, is_open boolean, told_s double precision)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    SELECT p.id, p.weight, p.due_at <= v_now + place_early_v1(),
        greatest(extract(epoch FROM p.told_at - v_now), 0)::double precision
    FROM place p
    WHERE p.id = p_place AND p.lane = p_lane AND p.owner_id = p_owner_id
        AND p_cost <= 1.05 * p.cost AND p.told_at >= v_now - place_late_v1();
    IF NOT FOUND AND p_key IS NOT NULL THEN
        RETURN QUERY
        SELECT p.id, p.weight, p.due_at <= v_now + place_early_v1(),
            greatest(extract(epoch FROM p.told_at - v_now), 0)::double precision
        FROM place p
        WHERE p.owner_id = p_owner_id AND p.lane = p_lane AND p.idempotency_key = p_key
            AND p_cost <= 1.05 * p.cost AND p.told_at >= v_now - place_late_v1()
        ORDER BY p.told_at DESC LIMIT 1;
    END IF;
END;
$$;

-- Uses a place up: it has come back.
CREATE FUNCTION use_place_v1(p_lane text, p_owner_id uuid, p_weight double precision, p_id uuid)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM place p WHERE p.id = p_id;
    UPDATE line n SET share = least(1, 0.9 * n.share + 0.1), used_at = clock_timestamp()
    WHERE n.lane = p_lane AND n.owner_id = p_owner_id AND n.weight = p_weight;
END;
$$;

-- Seconds until half of what bounds a job that is refused should be free.
CREATE FUNCTION until_room_v1(p_lane lane_state, p_flow flow_state, p_limit_s double precision)
RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(
        0,
        (p_lane.waiting - 0.5 * p_lane.most) * p_lane.work / greatest(p_lane.waiting, 1) / p_lane.rate,
        CASE WHEN p_lane.cost > 0
            THEN (p_lane.cost - 0.5 * p_lane.most_cost) * p_lane.work / p_lane.cost / p_lane.rate ELSE 0 END,
        p_lane.age_s - 0.5 * p_lane.most_age_s,
        ahead_of_next_v1(p_lane, p_flow) / p_lane.rate - 0.5 * p_limit_s)
$$;

-- Gives the next place in a flow's line to who is refused; p_in_front: one before the line, to who came back
-- when told. The line is at least as long as what is in it takes now, so that errors of earlier rates don't
-- add up. p_most_outstanding bounds the owner's places too. Returns the seconds that the caller is told, with
-- jitter; NULL as the id: without a place, and some time after the end of the line.
CREATE FUNCTION give_place_v1(
    p_lane lane_state, p_flow flow_state, p_refusal text, p_cost double precision, p_limit_s double precision,
    p_key text, p_in_front boolean, p_most_outstanding integer, p_with_place boolean
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
    due_s := greatest(due_s, extract(epoch FROM ends_at - v_now)) + work_v1(p_cost) / p_flow.rate;
    v_due_at := v_now + make_interval(secs => least(due_s, 600));
    -- Whole seconds are told.
    due_s := least(greatest(ceil(due_s + random() * least(1, 0.05 * due_s)), 1), 600);
    IF p_with_place AND v_due_at < v_now + interval '600 seconds'
        AND p_flow.places < least(2000, p_most_outstanding) AND p_lane.places < 10000 THEN
        INSERT INTO line (lane, owner_id, weight, used_at)
        VALUES (p_lane.name, p_flow.owner_id, p_flow.weight, v_now) ON CONFLICT DO NOTHING;
        INSERT INTO place AS p (lane, owner_id, weight, cost, idempotency_key, in_front, for_room, limit_s,
            due_at, told_at)
        VALUES (p_lane.name, p_flow.owner_id, p_flow.weight, p_cost, p_key, p_in_front,
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

-- Decides which of a submission's jobs are accepted: those whose outcome so far is. The arrays are parallel,
-- as in submit_v1; p_limits_s is how long each may wait. A row for each job, in their order. Bounds that are
-- near are kept to by one submission at a time, so they hold for any number of gateways; far from them
-- nobody waits for anybody.
--
-- With an outcome of a lane that has no room: `place` and `due_s`, as soon as the lane's rate is known. With
-- `accepted`: the lane's rate, and the work that waited in it.
CREATE FUNCTION admit_v1(
    p_owner_ids uuid[], p_functions text[], p_costs double precision[], p_weights double precision[],
    p_limits_s double precision[], p_most_outstanding integer[], p_most_waiting integer[],
    p_most_costs double precision[], p_most_ages_s double precision[], p_keys text[], p_places uuid[],
    p_with_place boolean[], p_outcomes text[]
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
    v_flow_of integer[] := array_fill(0, ARRAY[cardinality(p_outcomes)]);
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
            array_agg(u.n) AS numbers
        FROM unnest(p_functions, p_most_waiting, p_most_costs, p_most_ages_s, p_costs, p_limits_s)
            WITH ORDINALITY AS u (function, most, most_cost, age_s, cost, limit_s, n)
        GROUP BY u.function ORDER BY u.function
    LOOP
        v_lane := lane_state_v1(v_found.function, v_found.most, v_found.most_cost, v_found.age_s);
        v_lane.is_scarce := is_scarce_v1(
            v_lane, v_found.jobs, v_found.cost, v_found.work, v_found.least_s);
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
    FOR v_found IN
        SELECT u.function, u.owner_id, u.weight, sum(work_v1(u.cost)) AS work, array_agg(u.n) AS numbers
        FROM unnest(p_functions, p_owner_ids, p_weights, p_costs, p_outcomes) WITH ORDINALITY
            AS u (function, owner_id, weight, cost, outcome, n)
        WHERE u.outcome = 'accepted' GROUP BY u.function, u.owner_id, u.weight
    LOOP
        v_lane := v_lanes[v_lane_of[v_found.numbers[1]]];
        IF v_lane.is_scarce THEN
            v_flows[v_found.numbers[1]] :=
                flow_state_v1(v_lane, v_found.owner_id, v_found.weight, v_found.work);
        END IF;
        FOREACH n IN ARRAY v_found.numbers LOOP
            v_flow_of[n] := v_found.numbers[1];
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
                v_given := admit_one_v1(v_lane, v_flow, p_costs[n], p_limits_s[n], p_keys[n], p_places[n],
                    p_with_place[n], p_most_outstanding[n]);
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
    p_lane lane_state, p_flow flow_state, p_cost double precision, p_limit_s double precision, p_key text,
    p_place uuid, p_with_place boolean, p_most_outstanding integer,
    OUT refusal text, OUT place uuid, OUT due_s double precision, OUT is_placed boolean,
    OUT lane lane_state, OUT flow flow_state
)
LANGUAGE plpgsql AS $$
DECLARE
    v_place_id uuid;
    v_weight double precision;
    v_told_s double precision;
    v_given record;
BEGIN
    lane := p_lane;
    flow := p_flow;
    is_placed := false;
    IF p_lane.places > 0 AND (p_place IS NOT NULL OR p_key IS NOT NULL) THEN
        SELECT f.id, f.weight, f.is_open, f.told_s INTO v_place_id, v_weight, is_placed, v_told_s
        FROM find_place_v1(p_lane.name, p_flow.owner_id, p_cost, p_place, p_key) f;
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
        PERFORM use_place_v1(p_lane.name, p_flow.owner_id, v_weight, v_place_id);
        lane.places := lane.places - 1;
    END IF;
    IF refusal IS NULL THEN
        flow.tag := flow.tag + tag_step_v1(p_cost, flow.weight);
    ELSIF p_lane.rate IS NOT NULL THEN
        SELECT g.* INTO v_given FROM give_place_v1(
            lane, flow, refusal, p_cost, p_limit_s, p_key, is_placed, p_most_outstanding, p_with_place) g;
        place := v_given.id;
        due_s := v_given.due_s;
        IF place IS NOT NULL THEN
            lane.places := lane.places + 1;
            lane.is_lined := lane.is_lined OR refusal <> 'no-capacity';
            flow.limit_s := greatest(flow.limit_s, p_limit_s);
            flow.places := flow.places + 1;
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

-- Seconds that accepted jobs of a flow should wait: NULL where that isn't known. The arrays are parallel, in
-- the order of tags; p_works is what waited in the lane before each.
CREATE FUNCTION waits_v1(
    p_lane text, p_owner_id uuid, p_weight double precision, p_rate double precision,
    p_tags double precision[], p_works double precision[], p_costs double precision[]
)
RETURNS double precision[] LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_last integer := cardinality(p_tags);
    v_first_ahead double precision := ahead_v1(p_lane, p_owner_id, p_weight, p_tags[1]);
    v_slope double precision := 0;
BEGIN
    IF v_last > 1 THEN
        v_slope := (ahead_v1(p_lane, p_owner_id, p_weight, p_tags[v_last]) - v_first_ahead)
            / greatest(p_tags[v_last] - p_tags[1], 1e-300);
    END IF;
    -- Behind others a job also waits for the end of what runs: half of one, as a mean.
    RETURN (SELECT array_agg(
        CASE WHEN a.ahead > 0 THEN (a.ahead + work_v1(a.cost) / 2) / p_rate ELSE 0 END ORDER BY a.n)
        FROM (
            SELECT u.n, u.cost, least(u.work, v_first_ahead + v_slope * (u.tag - p_tags[1])) AS ahead
            FROM unnest(p_tags, p_works, p_costs) WITH ORDINALITY AS u (tag, work, cost, n)) AS a);
END;
$$;
