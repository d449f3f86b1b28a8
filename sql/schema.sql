-- The schema that the migrations make, for reading and for reviewing changes; nothing executes this file.
-- Procrastinate's objects are in it: pg_dump can't leave functions and types out, and a release of theirs
-- that changes them should be seen here. Made by `python tests/support/dump_schema.py`.
--
-- PostgreSQL database dump
--

\restrict headrace


SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: flow_state; Type: TYPE; Schema: public; Owner: -
--

CREATE TYPE public.flow_state AS (
	owner_id uuid,
	weight double precision,
	rate double precision,
	tag double precision,
	first_tag double precision,
	first_ahead double precision,
	last_tag double precision,
	last_ahead double precision,
	share double precision,
	end_at timestamp with time zone,
	front_at timestamp with time zone,
	places bigint,
	owned bigint,
	limit_s double precision,
	line_work double precision,
	kept_work double precision
);


--
-- Name: lane_state; Type: TYPE; Schema: public; Owner: -
--

CREATE TYPE public.lane_state AS (
	name text,
	waiting double precision,
	cost double precision,
	work double precision,
	age_s double precision,
	most double precision,
	most_cost double precision,
	most_age_s double precision,
	rate double precision,
	places bigint,
	is_lined boolean,
	kept double precision,
	kept_cost double precision,
	is_scarce boolean
);


--
-- Name: procrastinate_job_event_type; Type: TYPE; Schema: public; Owner: -
--

CREATE TYPE public.procrastinate_job_event_type AS ENUM (
    'deferred',
    'started',
    'deferred_for_retry',
    'failed',
    'succeeded',
    'cancelled',
    'abort_requested',
    'aborted',
    'scheduled',
    'retried'
);


--
-- Name: procrastinate_job_status; Type: TYPE; Schema: public; Owner: -
--

CREATE TYPE public.procrastinate_job_status AS ENUM (
    'todo',
    'doing',
    'succeeded',
    'failed',
    'cancelled',
    'aborting',
    'aborted'
);


--
-- Name: procrastinate_job_to_defer_v1; Type: TYPE; Schema: public; Owner: -
--

CREATE TYPE public.procrastinate_job_to_defer_v1 AS (
	queue_name character varying,
	task_name character varying,
	priority integer,
	lock text,
	queueing_lock text,
	args jsonb,
	scheduled_at timestamp with time zone
);


--
-- Name: active_flows_v1(public.lane_state); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.active_flows_v1(p_lane public.lane_state) RETURNS TABLE(owner_id uuid, weight double precision)
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    SELECT j.owner_id, j.weight FROM job j
    WHERE p_lane.waiting <= 500 AND j.function = p_lane.name AND j.state = 'queued'
    UNION
    SELECT o.owner_id, o.weight FROM lane l JOIN lane_owner o ON o.lane = l.name
    WHERE p_lane.waiting > 500 AND l.name = p_lane.name AND o.last_tag > l.virtual_time
    UNION
    SELECT p.owner_id, p.weight FROM place p
    WHERE p_lane.places > 0 AND p.lane = p_lane.name
        AND p.due_at <= v_now + place_early_v1() AND p.told_at >= v_now - place_late_v1();
END;
$$;


--
-- Name: add_expired_v1(integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.add_expired_v1(p_limit integer) RETURNS integer
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_rows usage_expired[] := ARRAY(
        SELECT w FROM usage_expired w ORDER BY w.id LIMIT p_limit FOR UPDATE SKIP LOCKED);
BEGIN
    -- First of all, and in the order of add_usage_v1, for the same reasons.
    INSERT INTO usage_changed AS c (hour)
    SELECT DISTINCT date_trunc('hour', n.at, 'UTC') AS hour FROM unnest(v_rows) AS n ORDER BY hour
    ON CONFLICT (hour) DO UPDATE SET hour = excluded.hour;
    INSERT INTO usage_minute AS u (at, function, kind, reason, device, cost, number, total, buckets)
    SELECT b.at, b.function, 'expired', 'queue-deadline-exceeded', '', b.cost, sum(b.number), sum(b.total),
        jsonb_object_agg(b.bucket, b.number)
    FROM (
        SELECT n.at, n.function, n.cost, n.bucket, sum(n.number) AS number, sum(n.total) AS total
        FROM unnest(v_rows) AS n GROUP BY n.at, n.function, n.cost, n.bucket
    ) AS b
    GROUP BY b.at, b.function, b.cost ORDER BY b.at, b.function, b.cost
    ON CONFLICT (at, function, kind, reason, device, cost) DO UPDATE
    SET number = u.number + excluded.number, total = u.total + excluded.total,
        buckets = merge_buckets_v1(u.buckets, excluded.buckets);
    DELETE FROM usage_expired w USING unnest(v_rows) AS n WHERE w.id = n.id;
    RETURN cardinality(v_rows);
END;
$$;


--
-- Name: add_items_v1(uuid[], uuid[], integer[], integer[], integer[], bytea[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.add_items_v1(p_ids uuid[], p_tokens uuid[], p_attempts integer[], p_before integer[], p_counts integer[], p_items bytea[]) RETURNS TABLE(job_id uuid, verdict text)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    v_free uuid[];
    v_changed uuid[];
    v_end integer := 0;
    v_attempt integer;
    v_known integer;
    v_sequence integer;
    v_items bytea[];
BEGIN
    SELECT coalesce(array_agg(f.id), '{}') INTO v_free FROM (
        SELECT j.id FROM job j WHERE j.id = ANY (p_ids) ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED) AS f;
    FOR v_group IN 1 .. cardinality(p_ids) LOOP
        job_id := p_ids[v_group];
        v_end := v_end + p_counts[v_group];
        IF p_ids[v_group] <> ALL (v_free) THEN
            verdict := CASE WHEN EXISTS (SELECT FROM job j WHERE j.id = p_ids[v_group]) THEN 'busy'
                ELSE 'lost' END;
            RETURN NEXT;
            CONTINUE;
        END IF;
        PERFORM FROM job j
        WHERE j.id = p_ids[v_group] AND j.token = p_tokens[v_group] AND j.attempt = p_attempts[v_group]
            AND j.state = 'running';
        verdict := 'lost';
        IF FOUND THEN
            SELECT i.attempt, i.number INTO v_attempt, v_known FROM job_items i
            WHERE i.job_id = p_ids[v_group] ORDER BY i.sequence DESC LIMIT 1;
            IF v_attempt IS DISTINCT FROM p_attempts[v_group] THEN
                v_known := 0;
                IF v_attempt IS NOT NULL THEN
                    DELETE FROM job_items i WHERE i.job_id = p_ids[v_group];
                END IF;
            END IF;
            -- What would leave a gap is refused: nobody could tell that something is missing.
            IF p_before[v_group] <= v_known THEN
                verdict := 'written';
                v_items := p_items[
                    v_end - p_counts[v_group] + 1 + v_known - p_before[v_group] : v_end];
                IF cardinality(v_items) > 0 THEN
                    UPDATE job j SET sequence = j.sequence + cardinality(v_items)
                    WHERE j.id = p_ids[v_group] RETURNING j.sequence INTO v_sequence;
                    INSERT INTO job_items (job_id, sequence, attempt, number, bytes, items)
                    SELECT p_ids[v_group], v_sequence, p_attempts[v_group], v_known + cardinality(v_items),
                        sum(octet_length(u.item)), v_items
                    FROM unnest(v_items) AS u (item);
                    v_changed := v_changed || p_ids[v_group];
                END IF;
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
    PERFORM tell_waiters_v1(v_changed);
END;
$$;


--
-- Name: add_usage_v1(uuid, bigint, jsonb); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.add_usage_v1(p_source uuid, p_sequence bigint, p_counts jsonb) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO usage_source AS s (id, sequence, seen_at) VALUES (p_source, p_sequence, clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET sequence = excluded.sequence, seen_at = excluded.seen_at
    WHERE s.sequence < excluded.sequence;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    -- First of all, in one order, and also where it is marked: whoever sums the hour up waits for this, or
    -- this for them; and two that add to one minute can't deadlock.
    INSERT INTO usage_changed AS c (hour)
    SELECT DISTINCT date_trunc('hour', n.at, 'UTC') AS hour
    FROM jsonb_to_recordset(p_counts) AS n (at timestamptz) ORDER BY hour
    ON CONFLICT (hour) DO UPDATE SET hour = excluded.hour;
    INSERT INTO usage_minute AS u (at, function, kind, reason, device, cost, number, total, buckets)
    SELECT n.at, n.function, n.kind, n.reason, n.device, n.cost, n.number, n.total, n.buckets
    FROM jsonb_to_recordset(p_counts) AS n (
        at timestamptz, function text, kind text, reason text, device text, cost bigint,
        number bigint, total double precision, buckets jsonb)
    ORDER BY n.at, n.function, n.kind, n.reason, n.device, n.cost
    ON CONFLICT (at, function, kind, reason, device, cost) DO UPDATE
    SET number = u.number + excluded.number, total = u.total + excluded.total,
        buckets = merge_buckets_v1(u.buckets, excluded.buckets);
    RETURN true;
END;
$$;


--
-- Name: admit_batch_v1(uuid, text, double precision[], double precision, integer, integer, double precision, double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.admit_batch_v1(p_owner_id uuid, p_function text, p_costs double precision[], p_weight double precision, p_most_outstanding integer, p_most_waiting integer, p_most_cost double precision, p_most_age_s double precision) RETURNS TABLE(refusal text, tag double precision, outstanding integer)
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: admit_batch_v2(uuid, text, double precision[], double precision, integer, integer, double precision, double precision, double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.admit_batch_v2(p_owner_id uuid, p_function text, p_costs double precision[], p_weight double precision, p_most_outstanding integer, p_most_waiting integer, p_most_cost double precision, p_most_age_s double precision, p_limit_s double precision) RETURNS TABLE(refusal text, tag double precision, outstanding integer, due_s double precision)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
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


--
-- Name: admit_one_v1(public.lane_state, public.flow_state, uuid, double precision, double precision, text, uuid, boolean, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.admit_one_v1(p_lane public.lane_state, p_flow public.flow_state, p_id uuid, p_cost double precision, p_limit_s double precision, p_key text, p_place uuid, p_with_place boolean, p_most_outstanding integer, OUT refusal text, OUT place uuid, OUT due_s double precision, OUT is_placed boolean, OUT lane public.lane_state, OUT flow public.flow_state) RETURNS record
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: admit_v1(uuid[], uuid[], text[], double precision[], double precision[], double precision[], integer[], integer[], double precision[], double precision[], text[], uuid[], boolean[], text[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.admit_v1(p_ids uuid[], p_owner_ids uuid[], p_functions text[], p_costs double precision[], p_weights double precision[], p_limits_s double precision[], p_most_outstanding integer[], p_most_waiting integer[], p_most_costs double precision[], p_most_ages_s double precision[], p_keys text[], p_places uuid[], p_with_place boolean[], p_outcomes text[]) RETURNS TABLE(outcome text, outstanding integer, place uuid, due_s double precision, is_placed boolean, rate double precision, work double precision)
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: ahead_of_next_v1(public.lane_state, public.flow_state); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.ahead_of_next_v1(p_lane public.lane_state, p_flow public.flow_state) RETURNS double precision
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT least(p_lane.work, p_flow.first_ahead + CASE WHEN p_flow.last_tag > p_flow.first_tag
        THEN (p_flow.last_ahead - p_flow.first_ahead) * (p_flow.tag - p_flow.first_tag)
            / (p_flow.last_tag - p_flow.first_tag) ELSE 0 END)
$$;


--
-- Name: aheads_v1(text, double precision[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.aheads_v1(p_lane text, p_tags double precision[]) RETURNS double precision[]
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    v_time double precision := coalesce((SELECT l.virtual_time FROM lane l WHERE l.name = p_lane), 0);
BEGIN
    RETURN ARRAY(
        SELECT a.before + greatest(a.weights - a.weights_before, 0) * a.at FROM (
            SELECT c.n, c.at, sum(c.weight) OVER () AS weights, sum(c.weight) OVER b AS weights_before,
                sum(c.weight * c.at) OVER b AS before
            FROM (
                SELECT NULL::bigint AS n, o.last_tag - v_time AS at, o.weight FROM lane_owner o
                WHERE o.lane = p_lane AND o.last_tag > v_time
                UNION ALL
                SELECT u.n, greatest(u.tag - v_time, 0), 0 FROM unnest(p_tags) WITH ORDINALITY AS u (tag, n)
            ) AS c WINDOW b AS (ORDER BY c.at)
        ) AS a WHERE a.n IS NOT NULL ORDER BY a.n);
END;
$$;


--
-- Name: answer_request_v1(uuid, uuid, bytea); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.answer_request_v1(p_id uuid, p_runner_id uuid, p_answer bytea) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    UPDATE runner_request r SET answered_at = clock_timestamp(), answer = p_answer
    WHERE r.id = p_id AND r.runner_id = p_runner_id AND r.answered_at IS NULL;
    RETURN FOUND;
END;
$$;


--
-- Name: ask_runner_v1(uuid, uuid, text, uuid, double precision, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.ask_runner_v1(p_id uuid, p_runner_id uuid, p_kind text, p_job_id uuid, p_valid_s double precision, p_actor text) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    DELETE FROM runner_request r WHERE r.id IN (
        SELECT o.id FROM runner_request o WHERE o.asked_at < v_now - interval '1 hour'
        LIMIT 500 FOR UPDATE SKIP LOCKED);
    INSERT INTO runner_request (id, runner_id, kind, job_id, asked_by, asked_at, expires_at)
    VALUES (p_id, p_runner_id, p_kind, p_job_id, p_actor, v_now, v_now + make_interval(secs => p_valid_s));
    IF p_kind = 'drain' THEN
        PERFORM audit_v1(p_actor, 'runner.drain', p_runner_id::text, '{}');
    END IF;
    PERFORM pg_notify('headrace_ask_' || replace(p_runner_id::text, '-', ''), p_id::text);
END;
$$;


--
-- Name: ask_runner_v2(uuid, uuid, text, uuid, text, double precision, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.ask_runner_v2(p_id uuid, p_runner_id uuid, p_kind text, p_job_id uuid, p_subject text, p_valid_s double precision, p_actor text) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    DELETE FROM runner_request r WHERE r.id IN (
        SELECT o.id FROM runner_request o WHERE o.asked_at < v_now - interval '1 hour'
        LIMIT 500 FOR UPDATE SKIP LOCKED);
    INSERT INTO runner_request (id, runner_id, kind, job_id, subject, asked_by, asked_at, expires_at)
    VALUES (
        p_id, p_runner_id, p_kind, p_job_id, p_subject, p_actor, v_now,
        v_now + make_interval(secs => p_valid_s));
    IF p_kind <> 'stack' THEN
        PERFORM audit_v1(p_actor, 'runner.' || p_kind, p_runner_id::text,
            jsonb_strip_nulls(jsonb_build_object('subject', p_subject)));
    END IF;
    PERFORM pg_notify('headrace_ask_' || replace(p_runner_id::text, '-', ''), p_id::text);
END;
$$;


--
-- Name: audit_jobs_v1(text, text, uuid, uuid[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.audit_jobs_v1(p_actor text, p_action text, p_command_id uuid, p_ids uuid[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF cardinality(p_ids) > 0 THEN
        PERFORM audit_v1(p_actor, p_action, p_command_id::text,
            jsonb_build_object('stage', 'goes on', 'job_ids', p_ids));
    END IF;
END;
$$;


--
-- Name: audit_v1(text, text, text, jsonb); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.audit_v1(p_actor text, p_action text, p_subject text, p_detail jsonb) RETURNS void
    LANGUAGE sql
    AS $$
    INSERT INTO audit (actor, action, subject, detail) VALUES (p_actor, p_action, p_subject, p_detail)
$$;


--
-- Name: backoff_v1(integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.backoff_v1(p_charged integer) RETURNS double precision
    LANGUAGE sql
    AS $$
    SELECT least(60, 0.5 * 2 ^ least(greatest(p_charged, 1) - 1, 10)) * (0.5 + random())
$$;


--
-- Name: bounded_rate_v1(double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.bounded_rate_v1(p_rate double precision) RETURNS double precision
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT CASE WHEN p_rate IS NOT NULL THEN least(greatest(p_rate, 1e-9), 1e12) END
$$;


--
-- Name: cancel_batch_v1(uuid, uuid, text, integer, boolean); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.cancel_batch_v1(p_batch_id uuid, p_owner_id uuid, p_actor text, p_limit integer, p_is_first boolean) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
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


--
-- Name: cancel_channel_v1(uuid); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.cancel_channel_v1(p_session_id uuid) RETURNS text
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT 'headrace_cancel_' || replace(p_session_id::text, '-', '')
$$;


--
-- Name: cancel_jobs_v1(uuid[], text, uuid); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.cancel_jobs_v1(p_ids uuid[], p_actor text, p_command_id uuid) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_id uuid;
    v_changed uuid[] := '{}';
BEGIN
    -- In one order everywhere, as the rows stay locked.
    FOR v_id IN SELECT u.id FROM unnest(p_ids) AS u (id) ORDER BY u.id LOOP
        IF cancel_one_v1(v_id, NULL, p_actor) THEN
            v_changed := v_changed || v_id;
        END IF;
    END LOOP;
    PERFORM audit_jobs_v1(p_actor, 'jobs.cancel', p_command_id, v_changed);
    RETURN cardinality(v_changed);
END;
$$;


--
-- Name: cancel_one_v1(uuid, uuid, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.cancel_one_v1(p_id uuid, p_owner_id uuid, p_actor text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: cancel_v1(uuid, uuid, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.cancel_v1(p_id uuid, p_owner_id uuid, p_actor text) RETURNS boolean
    LANGUAGE plpgsql
    SET lock_timeout TO '2s'
    AS $$
BEGIN
    IF NOT cancel_one_v1(p_id, p_owner_id, p_actor) THEN
        RETURN false;
    END IF;
    PERFORM audit_v1(p_actor, 'job.cancel', p_id::text, '{}');
    RETURN true;
END;
$$;


--
-- Name: change_intake_v1(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.change_intake_v1() RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    LOCK TABLE intake IN SHARE ROW EXCLUSIVE MODE; -- whoever reads goes on
    PERFORM pg_notify('headrace_registry', 'intake');
END;
$$;


--
-- Name: claim_v1(uuid, uuid, text[], text[], integer[], double precision[], integer[], double precision, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.claim_v1(p_session_id uuid, p_claim_id uuid, p_functions text[], p_interfaces text[], p_groups integer[], p_expected_s double precision[], p_free integer[], p_lease_s double precision, p_alone integer) RETURNS TABLE(job_id uuid, token uuid, attempt integer, charged integer, function text, input bytea, owner_id uuid, remaining_s double precision, waited_s double precision, request_id text, traceparent text, alone boolean)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_sort TO 'off'
    SET jit TO 'off'
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


--
-- Name: claim_v2(uuid, uuid, text[], text[], integer[], double precision[], integer[], double precision, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.claim_v2(p_session_id uuid, p_claim_id uuid, p_functions text[], p_interfaces text[], p_groups integer[], p_expected_s double precision[], p_free integer[], p_lease_s double precision, p_alone integer) RETURNS TABLE(job_id uuid, token uuid, attempt integer, charged integer, function text, input bytea, owner_id uuid, remaining_s double precision, waited_s double precision, request_id text, traceparent text, alone boolean)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_free integer[] := p_free;
    v_starts integer[];
    v_works double precision[];
    v_short text[] := '{}';
    n integer;
BEGIN
    RETURN QUERY SELECT c.* FROM claim_v1(
        p_session_id, p_claim_id, p_functions, p_interfaces, p_groups, p_expected_s, p_free, p_lease_s,
        p_alone) c;
    v_now := clock_timestamp();
    SELECT array_agg(coalesce(g.starts, 0) ORDER BY u.n), array_agg(coalesce(g.work, 0) ORDER BY u.n)
    INTO v_starts, v_works
    FROM unnest(p_functions) WITH ORDINALITY AS u (name, n) LEFT JOIN (
        SELECT j.function, count(*) AS starts, sum(work_v1(j.cost)) AS work FROM job j
        WHERE j.session_id = p_session_id AND j.claim_id = p_claim_id GROUP BY j.function
    ) AS g ON g.function = u.name;
    FOR n IN 1 .. cardinality(p_functions) LOOP
        v_free[p_groups[n]] := v_free[p_groups[n]] - v_starts[n];
        IF v_free[p_groups[n]] > 0 THEN
            v_short := v_short || p_functions[n];
        END IF;
    END LOOP;
    -- Nobody else has these rows, nor does a session claim twice at once: no order is needed.
    INSERT INTO lane_started AS s (lane, session_id, starts, work, short_at, at)
    SELECT u.name, p_session_id, sum(u.starts), sum(u.work),
        CASE WHEN u.name = ANY (v_short) THEN v_now END, v_now
    FROM unnest(p_functions, v_starts, v_works) AS u (name, starts, work)
    GROUP BY u.name
    HAVING sum(u.starts) > 0 OR u.name = ANY (v_short) AND NOT EXISTS (
        SELECT FROM lane_started o WHERE o.lane = u.name AND o.session_id = p_session_id
            AND o.short_at > v_now - interval '0.2 seconds')
    ON CONFLICT (lane, session_id) DO UPDATE
    SET starts = s.starts + excluded.starts, work = s.work + excluded.work,
        short_at = coalesce(excluded.short_at, s.short_at), at = excluded.at;
END;
$$;


--
-- Name: close_batch_v1(uuid); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.close_batch_v1(p_batch_id uuid) RETURNS timestamp with time zone
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_batch batch;
BEGIN
    SELECT b.* INTO STRICT v_batch FROM batch b WHERE b.id = p_batch_id;
    UPDATE owner_load o SET unfinished = o.unfinished + v_batch.size WHERE o.owner_id = v_batch.owner_id;
    RETURN v_batch.created_at;
END;
$$;


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: job; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.job (
    id uuid NOT NULL,
    owner_id uuid NOT NULL,
    key_id uuid,
    function text NOT NULL,
    interface text NOT NULL,
    digest bytea NOT NULL,
    input bytea NOT NULL,
    idempotency_key text,
    batch_id uuid,
    batch_index integer,
    parent_id uuid,
    retry_of uuid,
    retried_as uuid,
    request_id text DEFAULT ''::text NOT NULL,
    traceparent text DEFAULT ''::text NOT NULL,
    state text NOT NULL,
    attempt integer DEFAULT 0 NOT NULL,
    charged integer DEFAULT 0 NOT NULL,
    attempts integer NOT NULL,
    alone boolean DEFAULT false NOT NULL,
    entry_id bigint,
    token uuid,
    session_id uuid,
    claim_id uuid,
    lease_expires_at timestamp with time zone,
    sequence integer DEFAULT 1 NOT NULL,
    cost double precision NOT NULL,
    weight double precision NOT NULL,
    tag double precision NOT NULL,
    created_at timestamp with time zone NOT NULL,
    queue_deadline_at timestamp with time zone NOT NULL,
    deadline_at timestamp with time zone NOT NULL,
    queued_at timestamp with time zone NOT NULL,
    due_at timestamp with time zone,
    first_started_at timestamp with time zone,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    settle_at timestamp with time zone,
    waited_s double precision DEFAULT 0 NOT NULL,
    execution_s double precision DEFAULT 0 NOT NULL,
    progress double precision,
    progress_message text DEFAULT ''::text NOT NULL,
    progress_sequence integer DEFAULT 0 NOT NULL,
    result_place text,
    result bytea,
    result_expires_at timestamp with time zone,
    error_category text,
    error_message text,
    error_errors jsonb,
    waiters text[] DEFAULT '{}'::text[] NOT NULL,
    followed boolean DEFAULT false NOT NULL,
    CONSTRAINT job_alone CHECK (((NOT alone) OR (attempt > 0))),
    CONSTRAINT job_attempts_check CHECK ((attempts > 0)),
    CONSTRAINT job_batch CHECK (((batch_id IS NULL) = (batch_index IS NULL))),
    CONSTRAINT job_charges CHECK ((((charged >= 0) AND (charged <= attempts)) AND (((attempt - charged) >= 0) AND ((attempt - charged) <= 3)))),
    CONSTRAINT job_cost_check CHECK (((cost >= (0)::double precision) AND (cost <= ('1000000000000000000'::numeric)::double precision))),
    CONSTRAINT job_deadlines CHECK (((created_at <= queue_deadline_at) AND (queue_deadline_at <= deadline_at))),
    CONSTRAINT job_digest_check CHECK ((octet_length(digest) = 32)),
    CONSTRAINT job_entry CHECK (((state = 'queued'::text) OR ((entry_id IS NULL) AND (due_at IS NULL)))),
    CONSTRAINT job_error CHECK ((((state = ANY (ARRAY['failed'::text, 'expired'::text, 'cancelled'::text])) = (error_category IS NOT NULL)) AND ((error_category IS NULL) = (error_message IS NULL)))),
    CONSTRAINT job_error_category_check CHECK ((error_category <> ''::text)),
    CONSTRAINT job_error_errors_check CHECK ((jsonb_typeof(error_errors) = 'array'::text)),
    CONSTRAINT job_final CHECK (((state = ANY (ARRAY['succeeded'::text, 'failed'::text, 'expired'::text, 'cancelled'::text])) = (finished_at IS NOT NULL))),
    CONSTRAINT job_idempotency_key_check CHECK (((char_length(idempotency_key) >= 1) AND (char_length(idempotency_key) <= 255))),
    CONSTRAINT job_interface_check CHECK ((interface <> ''::text)),
    CONSTRAINT job_lease CHECK (((state = ANY (ARRAY['running'::text, 'cancel_requested'::text])) OR ((lease_expires_at IS NULL) AND (session_id IS NULL) AND (claim_id IS NULL)))),
    CONSTRAINT job_never_started CHECK (((state <> 'expired'::text) OR (attempt = 0))),
    CONSTRAINT job_progress_check CHECK (((progress >= (0)::double precision) AND (progress <= (1)::double precision))),
    CONSTRAINT job_queued CHECK (((state <> 'queued'::text) OR ((charged < attempts) AND (entry_id IS NOT NULL) AND (token IS NULL) AND (settle_at IS NOT NULL)))),
    CONSTRAINT job_result CHECK ((((state = 'succeeded'::text) = (result_place IS NOT NULL)) AND ((result_place IS NOT NULL) = (result_expires_at IS NOT NULL)) AND (COALESCE((result_place = 'row'::text), false) = (result IS NOT NULL)))),
    CONSTRAINT job_result_place_check CHECK ((result_place = ANY (ARRAY['row'::text, 'gone'::text]))),
    CONSTRAINT job_retried CHECK (((retried_as IS NULL) OR (state = ANY (ARRAY['failed'::text, 'expired'::text, 'cancelled'::text])))),
    CONSTRAINT job_running CHECK (((state <> ALL (ARRAY['running'::text, 'cancel_requested'::text])) OR ((charged > 0) AND (token IS NOT NULL) AND (started_at IS NOT NULL) AND (settle_at IS NOT NULL) AND (lease_expires_at IS NOT NULL)))),
    CONSTRAINT job_session CHECK (((lease_expires_at IS NULL) = (session_id IS NULL))),
    CONSTRAINT job_settled CHECK (((finished_at IS NULL) = (settle_at IS NOT NULL))),
    CONSTRAINT job_state_check CHECK ((state = ANY (ARRAY['queued'::text, 'running'::text, 'succeeded'::text, 'failed'::text, 'expired'::text, 'cancel_requested'::text, 'cancelled'::text]))),
    CONSTRAINT job_tag_check CHECK (((tag >= (0)::double precision) AND (tag <= ('1000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000'::numeric)::double precision))),
    CONSTRAINT job_weight_check CHECK (((weight >= (0.000001)::double precision) AND (weight <= ('1000000'::numeric)::double precision)))
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05', toast.autovacuum_vacuum_scale_factor='0.02', toast.autovacuum_vacuum_threshold='1000');
ALTER TABLE ONLY public.job ALTER COLUMN result SET STORAGE EXTERNAL;


--
-- Name: conclude_cancelled_v1(public.job, text, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.conclude_cancelled_v1(p_job public.job, p_actor text, p_reason text) RETURNS text
    LANGUAGE sql
    AS $$
    SELECT conclude_v1(p_job, 'cancelled', 'job-cancelled', 'The job was cancelled.', NULL, p_actor, p_reason)
$$;


--
-- Name: conclude_v1(public.job, text, text, text, jsonb, text, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.conclude_v1(p_job public.job, p_state text, p_category text, p_message text, p_errors jsonb, p_actor text, p_reason text) RETURNS text
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: cost_bucket_v1(double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.cost_bucket_v1(p_cost double precision) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT CASE WHEN p_cost <= 0 THEN 0 WHEN p_cost >= 1::bigint << 40 THEN 1::bigint << 40
        ELSE 1::bigint << length(ltrim((ceil(p_cost)::bigint - 1)::bit(40)::text, '0')) END
$$;


--
-- Name: costs_v1(double precision[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.costs_v1(p_costs double precision[]) RETURNS double precision[]
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT ARRAY(SELECT CASE WHEN u.cost BETWEEN 0 AND 1e-9 THEN 0 ELSE u.cost END
        FROM unnest(p_costs) WITH ORDINALITY AS u (cost, n) ORDER BY u.n)
$$;


--
-- Name: count_backlogs_v1(boolean); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.count_backlogs_v1(p_with_cost boolean) RETURNS boolean
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_kept record;
    v_count integer;
    v_cost double precision;
    v_oldest_at timestamptz;
    v_second_ago timestamptz := clock_timestamp() - interval '1 second';
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('headrace.count', 0)) THEN
        RETURN false;
    END IF;
    FOR v_kept IN
        SELECT l.name, l.waiting, l.waiting_cost, l.oldest_at,
            p_with_cost OR l.most_cost IS NOT NULL OR l.most_age_s IS NOT NULL AS with_cost
        FROM lane l
        WHERE l.waiting <= 20000 OR l.counted_at < v_second_ago ORDER BY l.name
    LOOP
        SELECT count(*) INTO v_count FROM (
            SELECT FROM job j WHERE j.function = v_kept.name AND j.state = 'queued' LIMIT 501) AS counted;
        v_cost := NULL;
        v_oldest_at := NULL;
        IF v_count <= 500 THEN
            v_count := 0;
        ELSIF v_kept.with_cost THEN
            SELECT count(*), sum(j.cost), min(j.queued_at) INTO v_count, v_cost, v_oldest_at FROM job j
            WHERE j.function = v_kept.name AND j.state = 'queued';
        ELSE
            SELECT count(*) INTO v_count FROM job j WHERE j.function = v_kept.name AND j.state = 'queued';
        END IF;
        CONTINUE WHEN v_count = v_kept.waiting AND v_cost IS NOT DISTINCT FROM v_kept.waiting_cost
            AND v_oldest_at IS NOT DISTINCT FROM v_kept.oldest_at AND v_count <= 20000;
        UPDATE lane l
        SET waiting = v_count, waiting_cost = v_cost, oldest_at = v_oldest_at, counted_at = clock_timestamp()
        WHERE l.name IN (SELECT k.name FROM lane k WHERE k.name = v_kept.name FOR NO KEY UPDATE SKIP LOCKED);
    END LOOP;
    FOR v_kept IN
        SELECT o.owner_id, o.unfinished FROM owner_load o
        WHERE o.unfinished <= 20000 OR o.counted_at < v_second_ago ORDER BY o.owner_id
        FOR UPDATE SKIP LOCKED
    LOOP
        SELECT count(*) INTO v_count FROM job j
        WHERE j.owner_id = v_kept.owner_id AND j.state IN ('queued', 'running', 'cancel_requested');
        IF v_count > 500 THEN
            UPDATE owner_load o SET unfinished = v_count, counted_at = clock_timestamp()
            WHERE o.owner_id = v_kept.owner_id;
        ELSE
            DELETE FROM owner_load o WHERE o.owner_id = v_kept.owner_id;
        END IF;
    END LOOP;
    RETURN true;
END;
$$;


--
-- Name: create_key_v1(text, text, text, bytea); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.create_key_v1(p_owner text, p_name text, p_prefix text, p_hash bytea) RETURNS uuid
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_owner_id uuid;
    v_key_id uuid;
BEGIN
    INSERT INTO owner (name) VALUES (p_owner) ON CONFLICT (name) DO NOTHING;
    SELECT id INTO STRICT v_owner_id FROM owner WHERE name = p_owner;
    INSERT INTO api_key (owner_id, name, prefix, hash) VALUES (v_owner_id, p_name, p_prefix, p_hash)
    RETURNING id INTO v_key_id;
    -- A gateway may hold the key's hash as unknown.
    PERFORM pg_notify('headrace_keys', v_key_id::text);
    RETURN v_key_id;
END;
$$;


--
-- Name: create_key_v2(text, text, text, bytea, text[], text[], text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.create_key_v2(p_owner text, p_name text, p_prefix text, p_hash bytea, p_scopes text[], p_functions text[], p_actor text) RETURNS uuid
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_owner_id uuid;
    v_key_id uuid;
BEGIN
    INSERT INTO owner (name) VALUES (p_owner) ON CONFLICT (name) DO NOTHING;
    IF FOUND THEN
        PERFORM audit_v1(p_actor, 'owner.create', p_owner, '{}');
    END IF;
    SELECT id INTO STRICT v_owner_id FROM owner WHERE name = p_owner;
    INSERT INTO api_key (owner_id, name, prefix, hash, scopes, functions)
    VALUES (v_owner_id, p_name, p_prefix, p_hash, p_scopes, p_functions)
    RETURNING id INTO v_key_id;
    PERFORM audit_v1(p_actor, 'key.create', p_prefix, jsonb_build_object(
        'key_id', v_key_id, 'owner', p_owner, 'name', p_name, 'scopes', p_scopes, 'functions', p_functions));
    -- A gateway may hold the key's hash as unknown.
    PERFORM pg_notify('headrace_keys', v_key_id::text);
    RETURN v_key_id;
END;
$$;


--
-- Name: create_owner_v1(text, integer, double precision, integer, text, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.create_owner_v1(p_name text, p_most_outstanding integer, p_rate double precision, p_burst integer, p_highest_priority text, p_actor text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO owner (name, most_outstanding, rate, burst, highest_priority)
    VALUES (p_name, p_most_outstanding, p_rate, p_burst, p_highest_priority)
    ON CONFLICT (name) DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM audit_v1(p_actor, 'owner.create', p_name, jsonb_strip_nulls(jsonb_build_object(
        'most_outstanding', p_most_outstanding, 'rate', p_rate, 'burst', p_burst,
        'highest_priority', p_highest_priority)));
    RETURN true;
END;
$$;


--
-- Name: enqueue_v1(text, uuid, timestamp with time zone); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.enqueue_v1(p_lane text, p_job_id uuid, p_due_at timestamp with time zone) RETURNS bigint
    LANGUAGE sql
    AS $$
    SELECT (procrastinate_defer_jobs_v1(ARRAY[ROW(
        p_lane, 'headrace.run', 0, NULL, NULL, jsonb_build_object('job_id', p_job_id, 'v', 1), p_due_at
    )::procrastinate_job_to_defer_v1]))[1]
$$;


--
-- Name: expire_places_v1(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.expire_places_v1() RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_lane text;
BEGIN
    FOR v_lane IN
        SELECT DISTINCT p.lane FROM place p
        -- So far ahead only if the clock was set back.
        WHERE p.told_at < v_now - place_late_v1() OR p.told_at > v_now + interval '601 seconds'
    LOOP
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(line_lock_v1(v_lane));
        WITH gone AS (
            DELETE FROM place p WHERE p.lane = v_lane
                AND (p.told_at < v_now - place_late_v1() OR p.told_at > v_now + interval '601 seconds')
            RETURNING p.owner_id, p.weight
        )
        UPDATE line n SET share = greatest(0.05, n.share * 0.9 ^ least(g.places, 100)), used_at = v_now
        FROM (SELECT o.owner_id, o.weight, count(*) AS places FROM gone o GROUP BY 1, 2) AS g
        WHERE n.lane = v_lane AND n.owner_id = g.owner_id AND n.weight = g.weight;
    END LOOP;
    FOR v_lane IN SELECT DISTINCT n.lane FROM line n WHERE n.used_at < v_now - interval '1 hour' LOOP
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(line_lock_v1(v_lane));
        DELETE FROM line n WHERE n.lane = v_lane AND n.used_at < v_now - interval '1 hour'
            AND NOT EXISTS (
                SELECT FROM place p
                WHERE p.lane = n.lane AND p.owner_id = n.owner_id AND p.weight = n.weight);
    END LOOP;
END;
$$;


--
-- Name: expire_v1(uuid[], text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.expire_v1(p_ids uuid[], p_actor text) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
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


--
-- Name: expire_v2(uuid[], text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.expire_v2(p_ids uuid[], p_actor text) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    DELETE FROM procrastinate_jobs e USING job j WHERE j.id = ANY (p_ids) AND e.id = j.entry_id;
    WITH ended AS (
        UPDATE job j SET state = 'expired', sequence = j.sequence + 1, entry_id = NULL, due_at = NULL,
            finished_at = v_now, settle_at = NULL, error_category = 'queue-deadline-exceeded',
            error_message = 'The job could not be started within the time that it may wait.'
        WHERE j.id = ANY (p_ids)
        RETURNING j.id, j.sequence, j.attempt, j.function, j.cost,
            greatest(0, extract(epoch FROM v_now - j.created_at))::double precision AS waited_s
    ), noted AS (
        INSERT INTO job_event (job_id, sequence, at, from_state, state, attempt, actor, reason)
        SELECT n.id, n.sequence, v_now, 'queued', 'expired', n.attempt, p_actor, 'its queue deadline passed'
        FROM ended n
    )
    INSERT INTO usage_expired (at, function, cost, bucket, number, total)
    SELECT date_trunc('minute', v_now, 'UTC'), n.function, cost_bucket_v1(n.cost),
        value_bucket_v1(n.waited_s), count(*), sum(n.waited_s)
    FROM ended n GROUP BY 2, 3, 4;
    PERFORM tell_waiters_v1(p_ids);
END;
$$;


--
-- Name: fill_batch_v1(uuid, integer, text, uuid[], bytea[], bytea[], double precision[], double precision, double precision, integer, double precision, double precision, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.fill_batch_v1(p_batch_id uuid, p_first integer, p_interface text, p_ids uuid[], p_inputs bytea[], p_digests bytea[], p_costs double precision[], p_tag double precision, p_weight double precision, p_attempts integer, p_queue_s double precision, p_total_s double precision, p_traceparent text) RETURNS double precision
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
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


--
-- Name: find_place_v1(text, uuid, double precision, uuid, text, uuid); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.find_place_v1(p_lane text, p_owner_id uuid, p_cost double precision, p_place uuid, p_key text, p_job_id uuid) RETURNS TABLE(id uuid, is_open boolean, told_s double precision)
    LANGUAGE plpgsql STABLE
    AS $$
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


--
-- Name: finish_v1(uuid, uuid[], uuid[], integer[], text[], bytea[], text[], text[], jsonb[], double precision[], double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.finish_v1(p_session_id uuid, p_ids uuid[], p_tokens uuid[], p_attempts integer[], p_kinds text[], p_outputs bytea[], p_categories text[], p_messages text[], p_errors jsonb[], p_execution_s double precision[], p_result_ttl_s double precision) RETURNS TABLE(job_id uuid, state text)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET lock_timeout TO '2s'
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


--
-- Name: finish_v2(uuid, uuid[], uuid[], integer[], text[], bytea[], text[], text[], jsonb[], double precision[], double precision[], double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.finish_v2(p_session_id uuid, p_ids uuid[], p_tokens uuid[], p_attempts integer[], p_kinds text[], p_outputs bytea[], p_categories text[], p_messages text[], p_errors jsonb[], p_execution_s double precision[], p_waits_s double precision[], p_result_ttl_s double precision) RETURNS TABLE(job_id uuid, state text)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET lock_timeout TO '2s'
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


--
-- Name: flow_states_v1(public.lane_state, uuid[], double precision[], double precision[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.flow_states_v1(p_lane public.lane_state, p_owner_ids uuid[], p_weights double precision[], p_works double precision[]) RETURNS SETOF public.flow_state
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    v_state flow_state;
    v_size integer := cardinality(p_owner_ids);
    v_time double precision := coalesce((SELECT l.virtual_time FROM lane l WHERE l.name = p_lane.name), 0);
    v_tags double precision[];
    v_weights double precision[];
    v_aheads double precision[];
BEGIN
    WITH active AS MATERIALIZED (SELECT a.owner_id, a.weight FROM active_flows_v1(p_lane) a),
        others AS MATERIALIZED (SELECT coalesce(sum(a.weight), 0) AS weight FROM active a)
    SELECT array_agg(greatest(o.last_tag, v_time) ORDER BY u.n),
        array_agg(greatest(t.weight - coalesce(a.weight, 0), 0) + u.weight ORDER BY u.n)
    INTO v_tags, v_weights
    FROM unnest(p_owner_ids, p_weights) WITH ORDINALITY AS u (owner_id, weight, n)
        CROSS JOIN others t
        LEFT JOIN lane_owner o ON o.lane = p_lane.name AND o.owner_id = u.owner_id AND o.weight = u.weight
        LEFT JOIN active a ON a.owner_id = u.owner_id AND a.weight = u.weight;
    v_aheads := aheads_v1(p_lane.name, v_tags || ARRAY(
        SELECT u.tag + u.work / u.weight FROM unnest(v_tags, p_works, p_weights) WITH ORDINALITY
            AS u (tag, work, weight, n) ORDER BY u.n));
    FOR n IN 1 .. v_size LOOP
        v_state.owner_id := p_owner_ids[n];
        v_state.weight := p_weights[n];
        v_state.rate := p_lane.rate * p_weights[n] / v_weights[n];
        v_state.tag := v_tags[n];
        v_state.first_tag := v_tags[n];
        v_state.first_ahead := v_aheads[n];
        v_state.last_tag := v_tags[n] + p_works[n] / p_weights[n];
        v_state.last_ahead := v_aheads[v_size + n] + p_works[n];
        RETURN NEXT with_line_v1(p_lane, v_state);
    END LOOP;
END;
$$;


--
-- Name: forget_runners_v1(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.forget_runners_v1() RETURNS integer
    LANGUAGE sql
    AS $$
    WITH forgotten AS (
        DELETE FROM runner WHERE seen_at < clock_timestamp() - interval '7 days' RETURNING id
    ) SELECT count(*)::integer FROM forgotten
$$;


--
-- Name: forget_sessions_v1(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.forget_sessions_v1() RETURNS void
    LANGUAGE sql
    AS $$
    WITH gone AS (
        DELETE FROM lane_started s WHERE (s.lane, s.session_id) IN (
            SELECT o.lane, o.session_id FROM lane_started o
            WHERE o.at < clock_timestamp() - interval '1 hour'
                AND NOT EXISTS (SELECT FROM live_runners_v1() l WHERE l.id = o.session_id)
            FOR UPDATE OF o SKIP LOCKED)
        RETURNING s.lane, s.starts, s.work
    )
    UPDATE lane_pace p SET starts = p.starts - g.starts, work = p.work - g.work
    FROM (SELECT o.lane, sum(o.starts) AS starts, sum(o.work) AS work FROM gone o GROUP BY o.lane) AS g
    WHERE p.lane = g.lane
$$;


--
-- Name: gateway_seen_v1(uuid); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.gateway_seen_v1(p_id uuid) RETURNS integer
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    INSERT INTO gateway (id, seen_at) VALUES (p_id, v_now)
    ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at;
    DELETE FROM gateway WHERE id IN (
        SELECT id FROM gateway WHERE seen_at < v_now - interval '1 minute' FOR UPDATE SKIP LOCKED
    );
    RETURN (SELECT count(*) FROM gateway WHERE seen_at > v_now - interval '10 seconds');
END;
$$;


--
-- Name: give_place_v1(public.lane_state, public.flow_state, text, double precision, double precision, text, uuid, boolean, integer, boolean); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.give_place_v1(p_lane public.lane_state, p_flow public.flow_state, p_refusal text, p_cost double precision, p_limit_s double precision, p_key text, p_job_id uuid, p_in_front boolean, p_most_outstanding integer, p_with_place boolean) RETURNS TABLE(id uuid, due_s double precision, ends_at timestamp with time zone)
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: handover_v1(uuid, uuid, uuid[], uuid[], uuid[], uuid[], text[], text[], bytea[], bytea[], double precision[], double precision[], integer[], integer[], integer[], boolean[], double precision[], double precision[], double precision[], double precision[], text[], text[], double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.handover_v1(p_session_id uuid, p_claim_id uuid, p_ids uuid[], p_tokens uuid[], p_owner_ids uuid[], p_key_ids uuid[], p_functions text[], p_interfaces text[], p_inputs bytea[], p_digests bytea[], p_costs double precision[], p_weights double precision[], p_attempts integer[], p_attempt integer[], p_charged integer[], p_alone boolean[], p_waited_s double precision[], p_elapsed_s double precision[], p_remaining_s double precision[], p_queue_s double precision[], p_request_ids text[], p_traceparents text[], p_lease_s double precision) RETURNS TABLE(job_id uuid, verdict text, state text, created_at timestamp with time zone, queue_deadline_at timestamp with time zone, deadline_at timestamp with time zone)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET lock_timeout TO '2s'
    AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
    v_lease_until timestamptz := v_now + make_interval(secs => p_lease_s);
    v_tags double precision[] := array_fill(0::double precision, ARRAY[cardinality(p_ids)]);
    v_new integer[];
    v_owners uuid[];
    v_tag double precision;
    v_found record;
    n integer;
BEGIN
    -- Jobs before flows, as everywhere.
    WITH known AS (
        SELECT j.id FROM unnest(p_ids, p_tokens) AS u (id, token) JOIN job j ON j.id = u.id
        WHERE j.token = u.token AND j.session_id = p_session_id ORDER BY j.id FOR NO KEY UPDATE OF j
    )
    UPDATE job j SET lease_expires_at = v_lease_until, settle_at = least(v_lease_until, j.deadline_at)
    FROM known k WHERE j.id = k.id;

    SELECT array_agg(u.n ORDER BY u.id) INTO v_new FROM unnest(p_ids) WITH ORDINALITY AS u (id, n)
    WHERE NOT EXISTS (SELECT FROM job j WHERE j.id = u.id);
    -- Whoever submits the same call at this moment waits for this, or this for them, at the row of its flow:
    -- in one order everywhere. The flow isn't moved on: what runs takes nobody's turn. Should the job have to
    -- wait for another start, it has the place of one that is claimed now.
    FOR v_found IN
        SELECT p_functions[a.n] AS function, p_owner_ids[a.n] AS owner_id, p_weights[a.n] AS weight,
            array_agg(a.n) AS numbers
        FROM unnest(v_new) AS a (n) GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
    LOOP
        PERFORM reserve_tags_v1(v_found.function, v_found.owner_id, v_found.weight, 0);
        SELECT l.virtual_time INTO STRICT v_tag FROM lane l WHERE l.name = v_found.function;
        FOREACH n IN ARRAY v_found.numbers LOOP
            v_tags[n] := v_tag;
        END LOOP;
    END LOOP;

    WITH made AS (
        INSERT INTO job (
            id, owner_id, key_id, function, interface, digest, input, request_id, traceparent,
            state, attempt, charged, attempts, alone, token, session_id, claim_id, lease_expires_at,
            cost, weight, tag, created_at, queue_deadline_at, deadline_at, queued_at,
            first_started_at, started_at, settle_at, waited_s)
        SELECT p_ids[t.n], p_owner_ids[t.n], p_key_ids[t.n], p_functions[t.n], p_interfaces[t.n],
            p_digests[t.n], p_inputs[t.n], p_request_ids[t.n], p_traceparents[t.n],
            'running', p_attempt[t.n], p_charged[t.n], p_attempts[t.n], p_alone[t.n], p_tokens[t.n],
            p_session_id, p_claim_id, v_lease_until, p_costs[t.n], p_weights[t.n], v_tags[t.n], t.created_at,
            least(t.created_at + make_interval(secs => p_queue_s[t.n]), t.deadline_at), t.deadline_at,
            t.created_at, t.started_at, t.started_at, least(v_lease_until, t.deadline_at),
            greatest(p_waited_s[t.n], 0)
        FROM (
            SELECT s.n, s.started_at,
                s.started_at - make_interval(secs => greatest(p_waited_s[s.n], 0)) AS created_at,
                v_now + make_interval(secs => greatest(p_remaining_s[s.n], 0)) AS deadline_at
            FROM (
                SELECT a.n, v_now - make_interval(secs => greatest(p_elapsed_s[a.n], 0)) AS started_at
                FROM unnest(v_new) AS a (n)
            ) AS s
        ) AS t ORDER BY p_ids[t.n]
        ON CONFLICT (id) DO NOTHING
        RETURNING job.id, job.attempt, job.alone, job.owner_id
    ), noted AS (
        INSERT INTO job_event (job_id, sequence, at, from_state, state, attempt, actor, reason)
        SELECT m.id, 1, v_now, NULL, 'running', m.attempt, 'runner:' || p_session_id,
            CASE WHEN m.alone THEN 'handed over, running alone' ELSE 'handed over' END
        FROM made m
    ) SELECT array_agg(m.owner_id) INTO v_owners FROM made m;
    FOR v_found IN
        SELECT u.owner_id, count(*) AS made FROM unnest(v_owners) AS u (owner_id)
        GROUP BY u.owner_id ORDER BY u.owner_id
    LOOP
        UPDATE owner_load o SET unfinished = o.unfinished + v_found.made
        WHERE o.owner_id = v_found.owner_id;
    END LOOP;

    RETURN QUERY
    SELECT j.id, CASE WHEN j.token = u.token THEN 'committed' ELSE 'fenced' END, j.state, j.created_at,
        j.queue_deadline_at, j.deadline_at
    FROM unnest(p_ids, p_tokens) WITH ORDINALITY AS u (id, token, n) JOIN job j ON j.id = u.id
    ORDER BY u.n;
END;
$$;


--
-- Name: heartbeat_v1(uuid, jsonb, boolean); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.heartbeat_v1(p_id uuid, p_capacity jsonb, p_draining boolean) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_before runner;
BEGIN
    SELECT * INTO v_before FROM runner WHERE id = p_id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE runner SET seen_at = clock_timestamp(), capacity = p_capacity, draining = p_draining WHERE id = p_id;
    IF v_before.draining <> p_draining OR v_before.seen_at < clock_timestamp() - runner_silence_v1() THEN
        PERFORM pg_notify('headrace_registry', 'runners');
    END IF;
    RETURN true;
END;
$$;


--
-- Name: heartbeat_v2(uuid, jsonb, boolean, bytea); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.heartbeat_v2(p_id uuid, p_capacity jsonb, p_draining boolean, p_report bytea) RETURNS TABLE(known boolean, reported boolean)
    LANGUAGE plpgsql
    AS $$
BEGIN
    known := heartbeat_v1(p_id, p_capacity, p_draining);
    IF known AND p_report IS NOT NULL THEN
        INSERT INTO runner_report AS r (runner_id, reported_at, report)
        VALUES (p_id, clock_timestamp(), p_report)
        ON CONFLICT (runner_id) DO UPDATE
        SET reported_at = excluded.reported_at, report = excluded.report;
    END IF;
    reported := EXISTS (SELECT FROM runner_report r WHERE r.runner_id = p_id);
    RETURN NEXT;
END;
$$;


--
-- Name: held_sessions_v1(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.held_sessions_v1() RETURNS SETOF uuid
    LANGUAGE sql STABLE
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
    SELECT r.id FROM session_locks_v1() AS l (half) JOIN runner r ON session_lock_v1(r.id) = l.half
$$;


--
-- Name: hold_session_v1(uuid); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.hold_session_v1(p_session_id uuid) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    -- A machine that vanished without a word is noticed after 5 + 2 * 3 seconds, also with data in flight.
    PERFORM set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false),
        set_config('tcp_keepalives_count', '3', false), set_config('tcp_user_timeout', '11000', false);
    PERFORM pg_advisory_lock_shared(1751217778, session_lock_v1(p_session_id));
END;
$$;


--
-- Name: is_backlogged_v1(text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.is_backlogged_v1(p_lane text) RETURNS boolean
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    v_interfaces text[] := ARRAY(
        SELECT DISTINCT l.interfaces ->> p_lane FROM live_runners_v1() l WHERE l.interfaces ? p_lane);
BEGIN
    IF cardinality(v_interfaces) = 0 THEN
        v_interfaces := ARRAY(
            SELECT DISTINCT c.interface FROM (
                SELECT j.interface FROM job j WHERE j.function = p_lane AND j.state = 'queued'
                LIMIT 100) AS c);
    END IF;
    RETURN EXISTS (
        SELECT FROM unnest(v_interfaces) AS i (interface) WHERE EXISTS (
            SELECT FROM job j WHERE j.function = p_lane AND j.interface = i.interface AND j.state = 'queued'
                AND j.due_at IS NULL));
END;
$$;


--
-- Name: is_refusal_v1(text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.is_refusal_v1(p_outcome text) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT p_outcome IN ('quota-exceeded', 'backlog-full', 'backlog-costly', 'backlog-old', 'no-capacity')
$$;


--
-- Name: is_scarce_v1(public.lane_state, double precision, double precision, double precision, double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.is_scarce_v1(p_lane public.lane_state, p_count double precision, p_cost double precision, p_work double precision, p_least_s double precision) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT p_lane.is_lined OR p_lane.most <= 5000 OR p_lane.waiting + 4 * p_count > 0.8 * p_lane.most
        OR p_lane.cost + 4 * p_cost > 0.8 * p_lane.most_cost OR p_lane.age_s > 0.8 * p_lane.most_age_s
        OR coalesce((p_lane.work + p_work) / p_lane.rate > 0.5 * p_least_s, false)
$$;


--
-- Name: lane_pace; Type: TABLE; Schema: public; Owner: -
--

CREATE UNLOGGED TABLE public.lane_pace (
    lane text NOT NULL,
    waiting integer NOT NULL,
    waiting_work double precision NOT NULL,
    is_backlogged boolean DEFAULT false NOT NULL,
    rate double precision,
    is_measured boolean NOT NULL,
    span_s double precision DEFAULT 0 NOT NULL,
    span_starts double precision DEFAULT 0 NOT NULL,
    span_work double precision DEFAULT 0 NOT NULL,
    has_begun boolean DEFAULT false NOT NULL,
    gap_s double precision DEFAULT 0 NOT NULL,
    run_s double precision DEFAULT 0 NOT NULL,
    run_starts double precision DEFAULT 0 NOT NULL,
    run_work double precision DEFAULT 0 NOT NULL,
    measured_at timestamp with time zone,
    slots double precision,
    starts bigint NOT NULL,
    work double precision NOT NULL,
    refreshed_at timestamp with time zone NOT NULL,
    CONSTRAINT lane_pace_rate_check CHECK ((rate > (0)::double precision))
)
WITH (fillfactor='50');


--
-- Name: keep_pace_v1(public.lane_pace, public.lane_pace); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.keep_pace_v1(p_pace public.lane_pace, p_before public.lane_pace) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    p_before.refreshed_at := p_pace.refreshed_at;
    IF NOT p_pace.is_backlogged AND p_before IS NOT DISTINCT FROM p_pace THEN
        RETURN;
    END IF;
    INSERT INTO lane_pace SELECT p_pace.*
    ON CONFLICT (lane) DO UPDATE SET (
        waiting, waiting_work, is_backlogged, rate, is_measured, span_s, span_starts, span_work, has_begun,
        gap_s, run_s, run_starts, run_work, measured_at, slots, starts, work, refreshed_at
    ) = ROW (
        excluded.waiting, excluded.waiting_work, excluded.is_backlogged, excluded.rate, excluded.is_measured,
        excluded.span_s, excluded.span_starts, excluded.span_work, excluded.has_begun, excluded.gap_s,
        excluded.run_s, excluded.run_starts, excluded.run_work, excluded.measured_at, excluded.slots,
        excluded.starts, excluded.work, excluded.refreshed_at);
END;
$$;


--
-- Name: lane_backlog_v1(text, integer, double precision, double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.lane_backlog_v1(p_lane text, p_most integer, p_most_cost double precision, p_most_age_s double precision) RETURNS TABLE(waiting integer, cost double precision, work double precision, oldest_at timestamp with time zone)
    LANGUAGE plpgsql STABLE
    AS $$
#variable_conflict use_column
DECLARE
    v_kept record;
BEGIN
    SELECT count(*), coalesce(sum(c.cost) FILTER (WHERE c.cost >= 1e-9), 0),
        coalesce(sum(work_v1(c.cost)), 0), min(c.queued_at)
    INTO waiting, cost, work, oldest_at FROM (
        SELECT j.cost, j.queued_at FROM job j WHERE j.function = p_lane AND j.state = 'queued'
        LIMIT 501) AS c;
    IF waiting <= 500 THEN
        RETURN NEXT;
        RETURN;
    END IF;
    work := work / waiting;
    cost := cost / waiting;
    SELECT l.waiting, l.waiting_cost, l.oldest_at INTO v_kept FROM lane l WHERE l.name = p_lane;
    IF p_most > 5000 AND v_kept.waiting > 500 AND v_kept.waiting < p_most THEN
        waiting := v_kept.waiting;
    ELSIF p_most > 500 THEN
        SELECT count(*) INTO waiting FROM (
            SELECT FROM job j WHERE j.function = p_lane AND j.state = 'queued' LIMIT p_most) AS c;
    END IF;
    work := work * waiting;
    IF p_most_cost IS NULL AND p_most_age_s IS NULL THEN
        cost := cost * waiting;
        oldest_at := NULL;
    ELSIF v_kept.waiting > 500 AND v_kept.waiting_cost IS NOT NULL THEN
        cost := v_kept.waiting_cost;
        oldest_at := v_kept.oldest_at;
    ELSE
        SELECT coalesce(sum(j.cost) FILTER (WHERE j.cost >= 1e-9), 0), min(j.queued_at)
        INTO cost, oldest_at FROM job j
        WHERE j.function = p_lane AND j.state = 'queued';
    END IF;
    RETURN NEXT;
END;
$$;


--
-- Name: lane_started; Type: TABLE; Schema: public; Owner: -
--

CREATE UNLOGGED TABLE public.lane_started (
    lane text NOT NULL,
    session_id uuid NOT NULL,
    starts bigint NOT NULL,
    work double precision NOT NULL,
    short_at timestamp with time zone,
    at timestamp with time zone NOT NULL
)
WITH (fillfactor='50');


--
-- Name: lane_pace_v1(text, double precision, double precision, boolean, boolean, public.lane_started, public.lane_pace); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.lane_pace_v1(p_lane text, p_slots double precision, p_reported double precision, p_is_served boolean, p_is_counted boolean, p_started public.lane_started, p_before public.lane_pace) RETURNS public.lane_pace
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_pace lane_pace;
    v_rate double precision;
BEGIN
    v_pace.lane := p_lane;
    SELECT b.waiting, b.work INTO v_pace.waiting, v_pace.waiting_work
    FROM lane_backlog_v1(p_lane, 2147483647, NULL, NULL) b;
    v_pace.is_backlogged := v_pace.waiting > 0 AND is_backlogged_v1(p_lane);
    v_pace.slots := p_slots;
    v_pace.starts := coalesce(p_started.starts, 0);
    v_pace.work := coalesce(p_started.work, 0);
    v_pace.span_s := 0;
    v_pace.span_starts := 0;
    v_pace.span_work := 0;
    v_pace.run_s := 0;
    v_pace.run_starts := 0;
    v_pace.run_work := 0;
    v_pace.gap_s := 0;
    v_pace.has_begun := false;
    v_pace.refreshed_at := v_now;
    IF p_before.lane IS NOT NULL THEN
        v_pace := measured_v1(v_pace, p_is_served, p_started.short_at, p_before);
    END IF;
    -- Counts that have been multiplied are a little less than whole.
    v_pace.is_measured := p_is_counted AND v_pace.span_starts > 3.9
        AND coalesce(v_pace.measured_at > v_now - interval '10 minutes', false)
        AND coalesce(p_is_served OR p_started.at > v_now - interval '30 seconds', false);
    v_rate := p_reported;
    IF v_pace.is_measured THEN
        v_rate := v_pace.span_work / (v_pace.span_s + v_pace.gap_s);
        -- So soon after a beginning, or a stall, reports know better.
        IF v_pace.run_s < 20 AND v_rate < p_reported / 4 THEN
            v_rate := p_reported;
        END IF;
    END IF;
    -- A little low: whoever is told a little late finds room, whoever is told early doesn't.
    v_pace.rate := 0.95 * bounded_rate_v1(v_rate);
    RETURN v_pace;
END;
$$;


--
-- Name: lane_room_v1(text, integer, double precision, double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.lane_room_v1(p_lane text, p_most integer, p_most_cost double precision, p_most_age_s double precision) RETURNS TABLE(room integer, room_cost double precision, refusal text)
    LANGUAGE plpgsql STABLE
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
    v_lane lane;
    v_count integer;
    v_cost double precision;
    v_oldest_at timestamptz;
BEGIN
    SELECT l.* INTO v_lane FROM lane l WHERE l.name = p_lane;
    p_most := coalesce(v_lane.most_waiting, p_most);
    p_most_cost := coalesce(v_lane.most_cost, p_most_cost, 'infinity');
    p_most_age_s := coalesce(v_lane.most_age_s, p_most_age_s, 'infinity');
    IF p_most_cost < 'infinity' OR p_most_age_s < 'infinity' THEN
        SELECT count(*), coalesce(sum(c.cost), 0), min(c.queued_at) INTO v_count, v_cost, v_oldest_at FROM (
            SELECT j.cost, j.queued_at FROM job j WHERE j.function = p_lane AND j.state = 'queued'
            LIMIT least(p_most, 501)) AS c;
        IF v_count > 500 AND v_lane.waiting > 500 AND v_lane.waiting_cost IS NOT NULL THEN
            v_cost := v_lane.waiting_cost;
            v_oldest_at := v_lane.oldest_at;
        ELSIF v_count > 500 THEN
            SELECT sum(j.cost), min(j.queued_at) INTO v_cost, v_oldest_at FROM job j
            WHERE j.function = p_lane AND j.state = 'queued';
        END IF;
    ELSE
        SELECT count(*) INTO v_count FROM (
            SELECT FROM job j WHERE j.function = p_lane AND j.state = 'queued' LIMIT least(p_most, 501)) AS c;
    END IF;
    IF v_count > 500 AND v_count < p_most THEN
        IF v_lane.waiting > 500 AND v_lane.waiting < p_most THEN
            v_count := v_lane.waiting;
        ELSE
            SELECT count(*) INTO v_count FROM (
                SELECT FROM job j WHERE j.function = p_lane AND j.state = 'queued' LIMIT p_most) AS c;
        END IF;
    END IF;
    room := p_most - v_count;
    room_cost := p_most_cost - coalesce(v_cost, 0);
    refusal := CASE WHEN room <= 0 THEN 'backlog-full' WHEN room_cost <= 0 THEN 'backlog-costly'
        WHEN extract(epoch FROM v_now - v_oldest_at) > p_most_age_s THEN 'backlog-old' END;
    RETURN NEXT;
END;
$$;


--
-- Name: lane_state_v1(text, integer, double precision, double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.lane_state_v1(p_lane text, p_most integer, p_most_cost double precision, p_most_age_s double precision) RETURNS public.lane_state
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_state lane_state;
    v_oldest_at timestamptz;
    v_own record;
BEGIN
    SELECT l.most_waiting, l.most_cost, l.most_age_s INTO v_own FROM lane l WHERE l.name = p_lane;
    p_most := coalesce(v_own.most_waiting, p_most);
    p_most_cost := coalesce(v_own.most_cost, p_most_cost);
    p_most_age_s := coalesce(v_own.most_age_s, p_most_age_s);
    v_state.name := p_lane;
    v_state.most := p_most;
    v_state.most_cost := coalesce(p_most_cost, 'infinity');
    v_state.most_age_s := coalesce(p_most_age_s, 'infinity');
    SELECT b.waiting, b.cost, b.work, b.oldest_at
    INTO v_state.waiting, v_state.cost, v_state.work, v_oldest_at
    FROM lane_backlog_v1(p_lane, p_most, p_most_cost, p_most_age_s) b;
    v_state.age_s := coalesce(extract(epoch FROM v_now - v_oldest_at), 0);
    SELECT p.rate INTO v_state.rate FROM lane_pace p WHERE p.lane = p_lane;
    SELECT count(*), coalesce(bool_or(p.for_room), false),
        coalesce(sum(n.share) FILTER (WHERE p.for_room AND p.due_at <= v_now + place_early_v1()), 0),
        coalesce(sum(n.share * p.cost) FILTER (WHERE p.for_room AND p.due_at <= v_now + place_early_v1()), 0)
    INTO v_state.places, v_state.is_lined, v_state.kept, v_state.kept_cost
    FROM place p JOIN line n ON n.lane = p.lane AND n.owner_id = p.owner_id AND n.weight = p.weight
    WHERE p.lane = p_lane AND p.told_at >= v_now - place_late_v1();
    RETURN v_state;
END;
$$;


--
-- Name: lanes_v1(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.lanes_v1() RETURNS TABLE(name text, waiting integer, waiting_cost double precision, rate double precision, is_measured boolean, places integer, line_s double precision)
    LANGUAGE sql STABLE
    AS $$
    SELECT p.lane, p.waiting, p.waiting_work, p.rate, p.is_measured, coalesce(o.places, 0)::integer,
        coalesce(greatest(extract(epoch FROM o.end_at - clock_timestamp()), 0), 0)::double precision
    FROM lane_pace p LEFT JOIN (
        SELECT c.lane, count(*) AS places, max(c.due_at) AS end_at FROM place c
        WHERE c.told_at >= clock_timestamp() - place_late_v1() GROUP BY c.lane
    ) AS o ON o.lane = p.lane
    WHERE EXISTS (SELECT FROM lane_look l WHERE l.at > clock_timestamp() - interval '10 seconds')
    ORDER BY p.lane
$$;


--
-- Name: line_lock_v1(text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.line_lock_v1(p_lane text) RETURNS bigint
    LANGUAGE sql IMMUTABLE
    AS $$ SELECT hashtextextended('headrace.line.' || p_lane, 0) $$;


--
-- Name: live_runners_v1(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.live_runners_v1() RETURNS TABLE(id uuid, interfaces jsonb, report bytea)
    LANGUAGE sql STABLE
    AS $$
    SELECT u.id, u.interfaces, r.report FROM runner u LEFT JOIN runner_report r ON r.runner_id = u.id
    WHERE u.left_at IS NULL AND NOT u.draining AND u.seen_at > clock_timestamp() - runner_silence_v1()
$$;


--
-- Name: lost_start_v1(public.job, text, text, text, text, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.lost_start_v1(p_job public.job, p_kind text, p_category text, p_message text, p_actor text, p_reason text) RETURNS text
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: lost_start_v2(public.job, text, text, text, text, text, double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.lost_start_v2(p_job public.job, p_kind text, p_category text, p_message text, p_actor text, p_reason text, p_wait_s double precision) RETURNS text
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: measured_v1(public.lane_pace, boolean, timestamp with time zone, public.lane_pace); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.measured_v1(p_pace public.lane_pace, p_is_served boolean, p_short_at timestamp with time zone, p_before public.lane_pace) RETURNS public.lane_pace
    LANGUAGE plpgsql IMMUTABLE
    AS $$
DECLARE
    v_s double precision := extract(epoch FROM p_pace.refreshed_at - p_before.refreshed_at);
    v_starts double precision := p_pace.starts - p_before.starts;
    v_change double precision := coalesce(p_pace.slots / nullif(p_before.slots, 0), 1);
    v_kept double precision := 1;
BEGIN
    IF v_change NOT BETWEEN 0.8 AND 1.25 THEN
        v_kept := least(1, greatest(
            2 / nullif(p_before.span_s, 0), 4 / nullif(p_before.span_starts, 0)));
        p_before.span_work := p_before.span_work * v_change;
        p_before.run_s := 0;
        p_before.run_starts := 0;
        p_before.run_work := 0;
    ELSE
        p_pace.slots := coalesce(p_before.slots, p_pace.slots); -- many small changes are a large one
    END IF;
    p_pace.span_s := v_kept * p_before.span_s;
    p_pace.span_starts := v_kept * p_before.span_starts;
    p_pace.span_work := v_kept * p_before.span_work;
    p_pace.run_s := p_before.run_s;
    p_pace.run_starts := p_before.run_starts;
    p_pace.run_work := p_before.run_work;
    p_pace.measured_at := p_before.measured_at;
    p_pace.gap_s := 0;
    p_pace.has_begun := p_pace.span_starts > 0;
    IF v_s BETWEEN 0.001 AND 10 AND p_before.is_backlogged AND p_pace.is_backlogged AND v_starts >= 0
        AND (p_is_served OR v_starts > 0)
        AND coalesce(p_short_at < least(p_before.refreshed_at, p_pace.refreshed_at - interval '1.5 seconds'),
            true) THEN
        p_pace.has_begun := p_before.has_begun OR v_starts > 0;
        IF p_before.has_begun THEN
            p_pace.gap_s := p_before.gap_s + v_s;
        END IF;
        IF p_before.has_begun AND v_starts > 0 THEN
            p_pace := with_starts_v1(p_pace, v_starts, p_pace.work - p_before.work);
        END IF;
    END IF;
    RETURN p_pace;
END;
$$;


--
-- Name: merge_buckets_v1(jsonb, jsonb); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.merge_buckets_v1(p_one jsonb, p_other jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT coalesce(jsonb_object_agg(m.bucket, m.number), '{}') FROM (
        SELECT e.key AS bucket, sum(e.value::bigint) AS number FROM (
            SELECT o.key, o.value FROM jsonb_each_text(p_one) AS o
            UNION ALL
            SELECT o.key, o.value FROM jsonb_each_text(p_other) AS o
        ) AS e GROUP BY e.key
    ) AS m
$$;


--
-- Name: move_v1(uuid[], text, text, text, uuid); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.move_v1(p_ids uuid[], p_from text, p_to text, p_actor text, p_command_id uuid) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_interface text;
    v_ids uuid[];
    v_flow record;
    v_tag double precision;
BEGIN
    SELECT f.interface INTO v_interface FROM function f WHERE f.name = p_to AND f.retired_at IS NULL;
    IF p_from = p_to THEN
        RETURN 0;
    END IF;
    -- First all jobs, in the order of cancels, then all flows, in the order of submissions: nobody waits in a
    -- circle.
    SELECT array_agg(l.id) INTO v_ids FROM (
        SELECT j.id FROM job j
        WHERE j.id = ANY (p_ids) AND j.state = 'queued' AND j.function = p_from
            AND j.interface = v_interface
        ORDER BY j.id FOR UPDATE) AS l;
    IF v_ids IS NULL THEN
        RETURN 0;
    END IF;
    -- The entries' locks are taken second, as claims take them; claims never wait for them.
    DELETE FROM procrastinate_jobs e USING job j WHERE j.id = ANY (v_ids) AND e.id = j.entry_id;
    FOR v_flow IN
        SELECT j.owner_id, j.weight, sum(tag_step_v1(j.cost, j.weight)) AS total FROM job j
        WHERE j.id = ANY (v_ids)
        GROUP BY j.owner_id, j.weight ORDER BY j.owner_id, j.weight
    LOOP
        v_tag := reserve_tags_v1(p_to, v_flow.owner_id, v_flow.weight, v_flow.total);
        UPDATE job j SET function = p_to, tag = v_tag + t.steps, entry_id = enqueue_v1(p_to, j.id, j.due_at),
            sequence = j.sequence + 1
        FROM (
            SELECT k.id, sum(tag_step_v1(k.cost, k.weight)) OVER (ORDER BY k.tag, k.id)
                - tag_step_v1(k.cost, k.weight) AS steps FROM job k
            WHERE k.id = ANY (v_ids) AND k.owner_id = v_flow.owner_id AND k.weight = v_flow.weight
        ) AS t
        WHERE j.id = t.id;
    END LOOP;
    INSERT INTO job_event (job_id, sequence, at, from_state, state, attempt, actor, reason)
    SELECT j.id, j.sequence, v_now, 'queued', 'queued', j.attempt, p_actor,
        'moved from lane ' || p_from || ' to ' || p_to
    FROM job j WHERE j.id = ANY (v_ids);
    PERFORM tell_waiters_v1(v_ids);
    PERFORM audit_jobs_v1(p_actor, 'jobs.move', p_command_id, v_ids);
    RETURN cardinality(v_ids);
END;
$$;


--
-- Name: open_batch_v1(uuid, uuid, uuid, text, integer, text, text, bytea, double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.open_batch_v1(p_id uuid, p_owner_id uuid, p_key_id uuid, p_function text, p_size integer, p_request_id text, p_idempotency_key text, p_digest bytea, p_key_ttl_s double precision) RETURNS TABLE(batch_id uuid, outcome text)
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: outstanding_v1(uuid, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.outstanding_v1(p_owner_id uuid, p_most integer) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_count integer;
    v_kept integer;
BEGIN
    SELECT count(*) INTO v_count FROM (
        SELECT FROM job j
        WHERE j.owner_id = p_owner_id AND j.state IN ('queued', 'running', 'cancel_requested')
        LIMIT least(p_most, 501)) AS counted;
    IF v_count <= 500 OR v_count >= p_most THEN
        RETURN v_count;
    END IF;
    SELECT o.unfinished INTO v_kept FROM owner_load o WHERE o.owner_id = p_owner_id;
    IF v_kept < p_most THEN
        RETURN greatest(v_kept, v_count);
    END IF;
    SELECT count(*) INTO v_count FROM (
        SELECT FROM job j
        WHERE j.owner_id = p_owner_id AND j.state IN ('queued', 'running', 'cancel_requested')
        LIMIT p_most) AS counted;
    INSERT INTO owner_load AS o (owner_id, unfinished)
    SELECT p_owner_id, v_count WHERE v_kept IS NULL ON CONFLICT DO NOTHING;
    RETURN v_count;
END;
$$;


--
-- Name: pause_v1(text, text, double precision, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.pause_v1(p_function text, p_reason text, p_retry_after_s double precision, p_actor text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF p_function <> '' AND NOT EXISTS (SELECT FROM function f WHERE f.name = p_function) THEN
        RETURN false;
    END IF;
    PERFORM change_intake_v1();
    INSERT INTO intake (function, open, reason, retry_after_s, changed_at, changed_by)
    VALUES (p_function, false, p_reason, p_retry_after_s, clock_timestamp(), p_actor)
    ON CONFLICT (function) DO UPDATE SET open = false, reason = excluded.reason,
        retry_after_s = excluded.retry_after_s, changed_at = excluded.changed_at,
        changed_by = excluded.changed_by;
    PERFORM audit_v1(p_actor, 'intake.pause', coalesce(nullif(p_function, ''), '*'), jsonb_strip_nulls(
        jsonb_build_object('reason', nullif(p_reason, ''), 'retry_after_s', p_retry_after_s)));
    RETURN true;
END;
$$;


--
-- Name: place_early_v1(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.place_early_v1() RETURNS interval
    LANGUAGE sql IMMUTABLE
    AS $$ SELECT interval '1 second' $$;


--
-- Name: place_late_v1(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.place_late_v1() RETURNS interval
    LANGUAGE sql IMMUTABLE
    AS $$ SELECT interval '5 seconds' $$;


--
-- Name: procrastinate_cancel_job_v1(bigint, boolean, boolean); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.procrastinate_cancel_job_v1(job_id bigint, abort boolean, delete_job boolean) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    _job_id bigint;
BEGIN
    IF delete_job THEN
        DELETE FROM procrastinate_jobs
        WHERE id = job_id AND status = 'todo'
        RETURNING id INTO _job_id;
    END IF;
    IF _job_id IS NULL THEN
        IF abort THEN
            UPDATE procrastinate_jobs
            SET abort_requested = true,
                status = CASE status
                    WHEN 'todo' THEN 'cancelled'::procrastinate_job_status ELSE status
                END
            WHERE id = job_id AND status IN ('todo', 'doing')
            RETURNING id INTO _job_id;
        ELSE
            UPDATE procrastinate_jobs
            SET status = 'cancelled'::procrastinate_job_status
            WHERE id = job_id AND status = 'todo'
            RETURNING id INTO _job_id;
        END IF;
    END IF;
    RETURN _job_id;
END;
$$;


--
-- Name: procrastinate_defer_jobs_v1(public.procrastinate_job_to_defer_v1[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.procrastinate_defer_jobs_v1(jobs public.procrastinate_job_to_defer_v1[]) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
DECLARE
    job_ids bigint[];
BEGIN
    WITH inserted_jobs AS (
        INSERT INTO procrastinate_jobs (queue_name, task_name, priority, lock, queueing_lock, args, scheduled_at)
        SELECT (job).queue_name,
               (job).task_name,
               (job).priority,
               (job).lock,
               (job).queueing_lock,
               (job).args,
               (job).scheduled_at
        FROM unnest(jobs) AS job
        RETURNING id
    )
    SELECT array_agg(id) FROM inserted_jobs INTO job_ids;

    RETURN job_ids;
END;
$$;


--
-- Name: procrastinate_defer_periodic_job_v2(character varying, character varying, character varying, character varying, integer, character varying, bigint, jsonb); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.procrastinate_defer_periodic_job_v2(_queue_name character varying, _lock character varying, _queueing_lock character varying, _task_name character varying, _priority integer, _periodic_id character varying, _defer_timestamp bigint, _args jsonb) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
	_job_id bigint;
	_defer_id bigint;
BEGIN
    INSERT
        INTO procrastinate_periodic_defers (task_name, periodic_id, defer_timestamp)
        VALUES (_task_name, _periodic_id, _defer_timestamp)
        ON CONFLICT DO NOTHING
        RETURNING id into _defer_id;

    IF _defer_id IS NULL THEN
        RETURN NULL;
    END IF;

    UPDATE procrastinate_periodic_defers
        SET job_id = (
            SELECT COALESCE((
                SELECT unnest(procrastinate_defer_jobs_v1(
                    ARRAY[
                        ROW(
                            _queue_name,
                            _task_name,
                            _priority,
                            _lock,
                            _queueing_lock,
                            _args,
                            NULL::timestamptz
                        )
                    ]::procrastinate_job_to_defer_v1[]
                ))
            ), NULL)
        )
        WHERE id = _defer_id
        RETURNING job_id INTO _job_id;

    DELETE
        FROM procrastinate_periodic_defers
        USING (
            SELECT id
            FROM procrastinate_periodic_defers
            WHERE procrastinate_periodic_defers.task_name = _task_name
            AND procrastinate_periodic_defers.periodic_id = _periodic_id
            AND procrastinate_periodic_defers.defer_timestamp < _defer_timestamp
            ORDER BY id
            FOR UPDATE
        ) to_delete
        WHERE procrastinate_periodic_defers.id = to_delete.id;

    RETURN _job_id;
END;
$$;


--
-- Name: procrastinate_jobs; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.procrastinate_jobs (
    id bigint NOT NULL,
    queue_name character varying(128) NOT NULL,
    task_name character varying(128) NOT NULL,
    priority integer DEFAULT 0 NOT NULL,
    lock text,
    queueing_lock text,
    args jsonb DEFAULT '{}'::jsonb NOT NULL,
    status public.procrastinate_job_status DEFAULT 'todo'::public.procrastinate_job_status NOT NULL,
    scheduled_at timestamp with time zone,
    attempts integer DEFAULT 0 NOT NULL,
    abort_requested boolean DEFAULT false NOT NULL,
    worker_id bigint,
    CONSTRAINT check_not_todo_abort_requested CHECK ((NOT ((status = 'todo'::public.procrastinate_job_status) AND (abort_requested = true))))
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='500');


--
-- Name: procrastinate_fetch_job_v2(character varying[], bigint); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.procrastinate_fetch_job_v2(target_queue_names character varying[], p_worker_id bigint) RETURNS public.procrastinate_jobs
    LANGUAGE plpgsql
    AS $$
DECLARE
	found_jobs procrastinate_jobs;
BEGIN
    WITH candidate AS (
        SELECT jobs.*
            FROM procrastinate_jobs AS jobs
            WHERE
                -- reject the job if its lock has earlier or higher priority jobs
                NOT EXISTS (
                    SELECT 1
                        FROM procrastinate_jobs AS other_jobs
                        WHERE
                            jobs.lock IS NOT NULL
                            AND other_jobs.lock = jobs.lock
                            AND (
                                -- job with same lock is already running
                                other_jobs.status = 'doing'
                                OR
                                -- job with same lock is waiting and has higher priority (or same priority but was queued first)
                                (
                                    other_jobs.status = 'todo'
                                    AND (
                                        other_jobs.priority > jobs.priority
                                        OR (
                                        other_jobs.priority = jobs.priority
                                        AND other_jobs.id < jobs.id
                                        )
                                    )
                                )
                            )
                )
                AND jobs.status = 'todo'
                AND (target_queue_names IS NULL OR jobs.queue_name = ANY( target_queue_names ))
                AND (jobs.scheduled_at IS NULL OR jobs.scheduled_at <= now())
            ORDER BY jobs.priority DESC, jobs.id ASC LIMIT 1
            FOR UPDATE OF jobs SKIP LOCKED
    )
    UPDATE procrastinate_jobs
        SET status = 'doing', worker_id = p_worker_id
        FROM candidate
        WHERE procrastinate_jobs.id = candidate.id
        RETURNING procrastinate_jobs.* INTO found_jobs;

 RETURN found_jobs;
END;
$$;


--
-- Name: procrastinate_finish_job_v1(bigint, public.procrastinate_job_status, boolean); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.procrastinate_finish_job_v1(job_id bigint, end_status public.procrastinate_job_status, delete_job boolean) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    _job_id bigint;
BEGIN
    IF end_status NOT IN ('succeeded', 'failed', 'aborted') THEN
        RAISE 'End status should be either "succeeded", "failed" or "aborted" (job id: %)', job_id;
    END IF;
    IF delete_job THEN
        DELETE FROM procrastinate_jobs
        WHERE id = job_id AND status IN ('todo', 'doing')
        RETURNING id INTO _job_id;
    ELSE
        UPDATE procrastinate_jobs
        SET status = end_status,
            abort_requested = false,
            attempts = CASE status
                WHEN 'doing' THEN attempts + 1 ELSE attempts
            END
        WHERE id = job_id AND status IN ('todo', 'doing')
        RETURNING id INTO _job_id;
    END IF;
    IF _job_id IS NULL THEN
        RAISE 'Job was not found or not in "doing" or "todo" status (job id: %)', job_id;
    END IF;
END;
$$;


--
-- Name: procrastinate_notify_queue_abort_job_v1(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.procrastinate_notify_queue_abort_job_v1() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    payload TEXT;
BEGIN
    SELECT json_build_object('type', 'abort_job_requested', 'job_id', NEW.id)::text INTO payload;
	PERFORM pg_notify('procrastinate_queue_v1#' || NEW.queue_name, payload);
	PERFORM pg_notify('procrastinate_any_queue_v1', payload);
	RETURN NEW;
END;
$$;


--
-- Name: procrastinate_notify_queue_job_inserted_v1(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.procrastinate_notify_queue_job_inserted_v1() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    payload TEXT;
BEGIN
    SELECT json_build_object('type', 'job_inserted', 'job_id', NEW.id)::text INTO payload;
	PERFORM pg_notify('procrastinate_queue_v1#' || NEW.queue_name, payload);
	PERFORM pg_notify('procrastinate_any_queue_v1', payload);
	RETURN NEW;
END;
$$;


--
-- Name: procrastinate_prune_stalled_workers_v1(double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.procrastinate_prune_stalled_workers_v1(seconds_since_heartbeat double precision) RETURNS TABLE(worker_id bigint)
    LANGUAGE plpgsql
    AS $$
BEGIN
    RETURN QUERY
    DELETE FROM procrastinate_workers
    WHERE last_heartbeat < NOW() - (seconds_since_heartbeat || 'SECOND')::INTERVAL
    RETURNING procrastinate_workers.id;
END;
$$;


--
-- Name: procrastinate_register_worker_v1(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.procrastinate_register_worker_v1() RETURNS TABLE(worker_id bigint)
    LANGUAGE plpgsql
    AS $$
BEGIN
    RETURN QUERY
    INSERT INTO procrastinate_workers DEFAULT VALUES
    RETURNING procrastinate_workers.id;
END;
$$;


--
-- Name: procrastinate_retry_job_v1(bigint, timestamp with time zone, integer, character varying, character varying); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.procrastinate_retry_job_v1(job_id bigint, retry_at timestamp with time zone, new_priority integer, new_queue_name character varying, new_lock character varying) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    _job_id bigint;
    _abort_requested boolean;
BEGIN
    SELECT abort_requested FROM procrastinate_jobs
    WHERE id = job_id AND status = 'doing'
    FOR UPDATE
    INTO _abort_requested;
    IF _abort_requested THEN
        UPDATE procrastinate_jobs
        SET status = 'failed'::procrastinate_job_status
        WHERE id = job_id AND status = 'doing'
        RETURNING id INTO _job_id;
    ELSE
        UPDATE procrastinate_jobs
        SET status = 'todo'::procrastinate_job_status,
            attempts = attempts + 1,
            scheduled_at = retry_at,
            priority = COALESCE(new_priority, priority),
            queue_name = COALESCE(new_queue_name, queue_name),
            lock = COALESCE(new_lock, lock)
        WHERE id = job_id AND status = 'doing'
        RETURNING id INTO _job_id;
    END IF;

    IF _job_id IS NULL THEN
        RAISE 'Job was not found or not in "doing" status (job id: %)', job_id;
    END IF;
END;
$$;


--
-- Name: procrastinate_retry_job_v2(bigint, timestamp with time zone, integer, character varying, character varying); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.procrastinate_retry_job_v2(job_id bigint, retry_at timestamp with time zone, new_priority integer, new_queue_name character varying, new_lock character varying) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    _job_id bigint;
    _abort_requested boolean;
    _current_status procrastinate_job_status;
BEGIN
    SELECT status, abort_requested FROM procrastinate_jobs
    WHERE id = job_id AND status IN ('doing', 'failed')
    FOR UPDATE
    INTO _current_status, _abort_requested;
    IF _current_status = 'doing' AND _abort_requested THEN
        UPDATE procrastinate_jobs
        SET status = 'failed'::procrastinate_job_status
        WHERE id = job_id AND status = 'doing'
        RETURNING id INTO _job_id;
    ELSE
        UPDATE procrastinate_jobs
        SET status = 'todo'::procrastinate_job_status,
            attempts = attempts + 1,
            scheduled_at = retry_at,
            priority = COALESCE(new_priority, priority),
            queue_name = COALESCE(new_queue_name, queue_name),
            lock = COALESCE(new_lock, lock)
        WHERE id = job_id AND status IN ('doing', 'failed')
        RETURNING id INTO _job_id;
    END IF;

    IF _job_id IS NULL THEN
        RAISE 'Job was not found or has an invalid status to retry (job id: %)', job_id;
    END IF;

END;
$$;


--
-- Name: procrastinate_trigger_abort_requested_events_procedure_v1(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.procrastinate_trigger_abort_requested_events_procedure_v1() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO procrastinate_events(job_id, type)
        VALUES (NEW.id, 'abort_requested'::procrastinate_job_event_type);
    RETURN NEW;
END;
$$;


--
-- Name: procrastinate_trigger_function_scheduled_events_v1(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.procrastinate_trigger_function_scheduled_events_v1() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO procrastinate_events(job_id, type, at)
        VALUES (NEW.id, 'scheduled'::procrastinate_job_event_type, NEW.scheduled_at);

	RETURN NEW;
END;
$$;


--
-- Name: procrastinate_trigger_function_status_events_insert_v1(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.procrastinate_trigger_function_status_events_insert_v1() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO procrastinate_events(job_id, type)
        VALUES (NEW.id, 'deferred'::procrastinate_job_event_type);
	RETURN NEW;
END;
$$;


--
-- Name: procrastinate_trigger_function_status_events_update_v1(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.procrastinate_trigger_function_status_events_update_v1() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    WITH t AS (
        SELECT CASE
            WHEN OLD.status = 'todo'::procrastinate_job_status
                AND NEW.status = 'doing'::procrastinate_job_status
                THEN 'started'::procrastinate_job_event_type
            WHEN OLD.status = 'doing'::procrastinate_job_status
                AND NEW.status = 'todo'::procrastinate_job_status
                THEN 'deferred_for_retry'::procrastinate_job_event_type
            WHEN OLD.status = 'doing'::procrastinate_job_status
                AND NEW.status = 'failed'::procrastinate_job_status
                THEN 'failed'::procrastinate_job_event_type
            WHEN OLD.status = 'doing'::procrastinate_job_status
                AND NEW.status = 'succeeded'::procrastinate_job_status
                THEN 'succeeded'::procrastinate_job_event_type
            WHEN OLD.status = 'todo'::procrastinate_job_status
                AND (
                    NEW.status = 'cancelled'::procrastinate_job_status
                    OR NEW.status = 'failed'::procrastinate_job_status
                    OR NEW.status = 'succeeded'::procrastinate_job_status
                )
                THEN 'cancelled'::procrastinate_job_event_type
            WHEN OLD.status = 'doing'::procrastinate_job_status
                AND NEW.status = 'aborted'::procrastinate_job_status
                THEN 'aborted'::procrastinate_job_event_type
            WHEN OLD.status = 'failed'::procrastinate_job_status
                AND NEW.status = 'todo'::procrastinate_job_status
                THEN 'retried'::procrastinate_job_event_type
            ELSE NULL
        END as event_type
    )
    INSERT INTO procrastinate_events(job_id, type)
        SELECT NEW.id, t.event_type
        FROM t
        WHERE t.event_type IS NOT NULL;
	RETURN NEW;
END;
$$;


--
-- Name: procrastinate_unlink_periodic_defers_v1(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.procrastinate_unlink_periodic_defers_v1() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    UPDATE procrastinate_periodic_defers
    SET job_id = NULL
    WHERE job_id = OLD.id;
    RETURN OLD;
END;
$$;


--
-- Name: procrastinate_unregister_worker_v1(bigint); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.procrastinate_unregister_worker_v1(worker_id bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    DELETE FROM procrastinate_workers
    WHERE id = worker_id;
END;
$$;


--
-- Name: procrastinate_update_heartbeat_v1(bigint); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.procrastinate_update_heartbeat_v1(worker_id bigint) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    UPDATE procrastinate_workers
    SET last_heartbeat = NOW()
    WHERE id = worker_id;
END;
$$;


--
-- Name: progress_v1(uuid[], uuid[], integer[], double precision[], text[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.progress_v1(p_ids uuid[], p_tokens uuid[], p_attempts integer[], p_fractions double precision[], p_messages text[]) RETURNS void
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
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


--
-- Name: prune_audit_v1(double precision, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.prune_audit_v1(p_after_s double precision, p_limit integer) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_until timestamptz := clock_timestamp() - make_interval(secs => p_after_s);
    v_ids bigint[] := ARRAY(SELECT a.id FROM audit a ORDER BY a.id LIMIT p_limit);
BEGIN
    v_ids := ARRAY(
        SELECT a.id FROM audit a
        WHERE a.id = ANY (v_ids) AND a.at <= v_until FOR UPDATE SKIP LOCKED);
    DELETE FROM audit a WHERE a.id = ANY (v_ids);
    RETURN cardinality(v_ids);
END;
$$;


--
-- Name: prune_batches_v1(double precision, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.prune_batches_v1(p_after_s double precision, p_limit integer) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_until timestamptz := clock_timestamp() - make_interval(secs => p_after_s);
    v_ids uuid[] := ARRAY(
        SELECT b.id FROM batch b
        WHERE b.created_at <= v_until
            AND (SELECT j.id FROM job j WHERE j.batch_id = b.id LIMIT 1) IS NULL
        ORDER BY b.created_at LIMIT p_limit FOR UPDATE OF b SKIP LOCKED);
BEGIN
    DELETE FROM batch b WHERE b.id = ANY (v_ids);
    RETURN cardinality(v_ids);
END;
$$;


--
-- Name: prune_flows_v1(integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.prune_flows_v1(p_limit integer) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_flows lane_owner[] := ARRAY(
        SELECT o FROM lane_owner o JOIN lane l ON l.name = o.lane
        WHERE o.last_tag <= l.virtual_time LIMIT p_limit FOR UPDATE OF o SKIP LOCKED);
BEGIN
    DELETE FROM lane_owner o USING unnest(v_flows) AS k
    WHERE o.lane = k.lane AND o.owner_id = k.owner_id AND o.weight = k.weight;
    RETURN cardinality(v_flows);
END;
$$;


--
-- Name: prune_items_v1(double precision, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.prune_items_v1(p_after_s double precision, p_limit integer) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_until timestamptz := clock_timestamp() - make_interval(secs => p_after_s);
    v_before uuid := rpad(
        lpad(to_hex(greatest(0, floor(extract(epoch FROM v_until) * 1000))::bigint), 12, '0'), 32, '0');
    v_ids uuid[] := ARRAY(
        WITH RECURSIVE known AS (
            SELECT (
                SELECT i.job_id FROM job_items i WHERE i.job_id < v_before
                ORDER BY i.job_id LIMIT 1) AS id
            UNION ALL
            SELECT (
                SELECT i.job_id FROM job_items i WHERE i.job_id > k.id AND i.job_id < v_before
                ORDER BY i.job_id LIMIT 1)
            FROM known k WHERE k.id IS NOT NULL
        )
        SELECT k.id FROM known k
        WHERE k.id IS NOT NULL AND (SELECT j.id FROM job j WHERE j.id = k.id LIMIT 1) IS NULL
        LIMIT p_limit);
BEGIN
    DELETE FROM job_items i WHERE i.job_id = ANY (v_ids);
    RETURN cardinality(v_ids);
END;
$$;


--
-- Name: prune_jobs_v1(double precision, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.prune_jobs_v1(p_after_s double precision, p_limit integer) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_ids uuid[] := ARRAY(
        SELECT j.id FROM job j
        WHERE j.finished_at <= v_now - make_interval(secs => p_after_s)
            AND coalesce(j.result_expires_at <= v_now, true)
            -- With a LIMIT it is looked up row by row, never joined. By the job: it may be in another lane
            -- than the one that its key is for.
            AND (j.idempotency_key IS NULL OR (
                SELECT i.job_id FROM idempotency i
                WHERE i.job_id = j.id AND i.expires_at > v_now LIMIT 1) IS NULL)
        ORDER BY j.finished_at LIMIT p_limit FOR UPDATE OF j SKIP LOCKED);
BEGIN
    DELETE FROM job_event v WHERE v.job_id = ANY (v_ids);
    DELETE FROM job j WHERE j.id = ANY (v_ids);
    RETURN cardinality(v_ids);
END;
$$;


--
-- Name: prune_jobs_v2(double precision, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.prune_jobs_v2(p_after_s double precision, p_limit integer) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_ids uuid[] := ARRAY(
        SELECT j.id FROM job j
        WHERE j.finished_at <= v_now - make_interval(secs => p_after_s)
            AND coalesce(j.result_expires_at <= v_now, true)
            AND (j.idempotency_key IS NULL OR (
                SELECT i.job_id FROM idempotency i
                WHERE i.job_id = j.id AND i.expires_at > v_now LIMIT 1) IS NULL)
        ORDER BY j.finished_at LIMIT p_limit FOR UPDATE OF j SKIP LOCKED);
BEGIN
    DELETE FROM job_items i WHERE i.job_id = ANY (v_ids);
    DELETE FROM job_event v WHERE v.job_id = ANY (v_ids);
    DELETE FROM job j WHERE j.id = ANY (v_ids);
    RETURN cardinality(v_ids);
END;
$$;


--
-- Name: prune_keys_v1(integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.prune_keys_v1(p_limit integer) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_keys idempotency[] := ARRAY(
        SELECT i FROM idempotency i
        WHERE i.expires_at <= v_now ORDER BY i.expires_at LIMIT p_limit FOR UPDATE SKIP LOCKED);
BEGIN
    DELETE FROM idempotency i USING unnest(v_keys) AS k
    WHERE i.owner_id = k.owner_id AND i.function = k.function AND i.key = k.key;
    RETURN cardinality(v_keys);
END;
$$;


--
-- Name: prune_results_v1(integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.prune_results_v1(p_limit integer) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_ids uuid[] := ARRAY(
        SELECT j.id FROM job j
        WHERE j.result_place = 'row' AND j.result_expires_at <= v_now
        ORDER BY j.result_expires_at LIMIT p_limit FOR UPDATE SKIP LOCKED);
BEGIN
    UPDATE job j SET result_place = 'gone', result = NULL WHERE j.id = ANY (v_ids);
    RETURN cardinality(v_ids);
END;
$$;


--
-- Name: prune_results_v2(integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.prune_results_v2(p_limit integer) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_ids uuid[] := ARRAY(
        SELECT j.id FROM job j
        WHERE j.result_place = 'row' AND j.result_expires_at <= v_now
        ORDER BY j.result_expires_at LIMIT p_limit FOR UPDATE SKIP LOCKED);
BEGIN
    UPDATE job j SET result_place = 'gone', result = NULL WHERE j.id = ANY (v_ids);
    DELETE FROM job_items i WHERE i.job_id = ANY (v_ids);
    RETURN cardinality(v_ids);
END;
$$;


--
-- Name: prune_usage_hours_v1(double precision, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.prune_usage_hours_v1(p_after_s double precision, p_limit integer) RETURNS integer
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_until timestamptz := clock_timestamp() - make_interval(secs => p_after_s);
    v_rows usage_hour[] := ARRAY(
        SELECT h FROM usage_hour h WHERE h.at < v_until
        ORDER BY h.at LIMIT p_limit FOR UPDATE SKIP LOCKED);
BEGIN
    DELETE FROM usage_hour h USING unnest(v_rows) AS k
    WHERE (h.at, h.function, h.kind, h.reason, h.device, h.cost)
        = (k.at, k.function, k.kind, k.reason, k.device, k.cost);
    RETURN cardinality(v_rows);
END;
$$;


--
-- Name: prune_usage_minutes_v1(double precision, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.prune_usage_minutes_v1(p_after_s double precision, p_limit integer) RETURNS integer
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_until timestamptz := clock_timestamp() - make_interval(secs => p_after_s);
    v_rows usage_minute[] := ARRAY(
        SELECT m FROM usage_minute m
        WHERE m.at < v_until
            AND NOT EXISTS (SELECT FROM usage_changed c WHERE c.hour = date_trunc('hour', m.at, 'UTC'))
        ORDER BY m.at LIMIT p_limit FOR UPDATE OF m SKIP LOCKED);
BEGIN
    -- A process that has been silent for so long won't send anything again.
    DELETE FROM usage_source s WHERE s.seen_at < v_until;
    DELETE FROM usage_minute m USING unnest(v_rows) AS k
    WHERE (m.at, m.function, m.kind, m.reason, m.device, m.cost)
        = (k.at, k.function, k.kind, k.reason, k.device, k.cost);
    RETURN cardinality(v_rows);
END;
$$;


--
-- Name: read_usage_v1(text, timestamp with time zone, timestamp with time zone, double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.read_usage_v1(p_function text, p_since timestamp with time zone, p_until timestamp with time zone, p_step_s double precision) RETURNS TABLE(at timestamp with time zone, function text, kind text, reason text, device text, cost bigint, number bigint, total double precision, buckets jsonb)
    LANGUAGE plpgsql STABLE
    SET jit TO 'off'
    SET enable_sort TO 'off'
    SET work_mem TO '64MB'
    AS $$
#variable_conflict use_column
BEGIN
    IF p_step_s = 60 THEN
        RETURN QUERY SELECT m.* FROM usage_minute m
            WHERE m.at >= p_since AND m.at < p_until AND (p_function IS NULL OR m.function = p_function)
            ORDER BY m.at, m.function, m.kind, m.reason, m.device, m.cost;
        RETURN;
    END IF;
    RETURN QUERY WITH whole AS MATERIALIZED (
        -- Hours that lie in the span whole, and aren't finer than what is wanted.
        SELECT h.* FROM usage_hour h
        WHERE h.at >= p_since AND h.at + interval '1 hour' <= p_until
            AND (p_step_s IS NULL OR p_step_s >= 3600)
            AND (p_function IS NULL OR h.function = p_function)
            AND NOT EXISTS (SELECT FROM usage_changed c WHERE c.hour = h.at)
    ), hours AS (
        -- The others that may have minutes.
        SELECT g.hour FROM generate_series(
            date_trunc('hour', greatest(p_since, (SELECT min(m.at) FROM usage_minute m)), 'UTC'),
            p_until, interval '1 hour') AS g (hour)
        WHERE g.hour NOT IN (SELECT w.at FROM whole w)
    ), parts AS MATERIALIZED (
        SELECT CASE WHEN p_step_s IS NULL THEN p_since
                ELSE to_timestamp(floor(extract(epoch FROM p.at) / p_step_s) * p_step_s) END AS step, p.*
        FROM (
            SELECT w.* FROM whole w WHERE p_step_s IS DISTINCT FROM 3600
            UNION ALL
            SELECT m.* FROM hours g JOIN usage_minute m
                ON m.at >= g.hour AND m.at < g.hour + interval '1 hour'
            WHERE m.at >= p_since AND m.at < p_until AND (p_function IS NULL OR m.function = p_function)
        ) AS p
    ), counts AS (
        SELECT p.step, p.function, p.kind, p.reason, p.device, p.cost, sum(p.number)::bigint AS number,
            sum(p.total) AS total
        FROM parts p GROUP BY p.step, p.function, p.kind, p.reason, p.device, p.cost
    ), buckets AS (
        SELECT b.step, b.function, b.kind, b.reason, b.device, b.cost,
            jsonb_object_agg(b.bucket, b.number) AS buckets
        FROM (
            SELECT p.step, p.function, p.kind, p.reason, p.device, p.cost, e.key AS bucket,
                sum(e.value::bigint) AS number
            FROM parts p CROSS JOIN jsonb_each_text(p.buckets) AS e
            GROUP BY p.step, p.function, p.kind, p.reason, p.device, p.cost, e.key
        ) AS b GROUP BY b.step, b.function, b.kind, b.reason, b.device, b.cost
    )
    SELECT n.step, n.function, n.kind, n.reason, n.device, n.cost, n.number, n.total,
        coalesce(b.buckets, '{}')
    FROM counts n LEFT JOIN buckets b USING (step, function, kind, reason, device, cost)
    UNION ALL
    SELECT w.* FROM whole w WHERE p_step_s = 3600
    ORDER BY 1, 2, 3, 4, 5, 6;
END;
$$;


--
-- Name: reap_session_v1(uuid, timestamp with time zone, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.reap_session_v1(p_session_id uuid, p_mark timestamp with time zone, p_actor text) RETURNS integer
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    SET lock_timeout TO '100ms'
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


--
-- Name: refresh_lanes_v1(double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.refresh_lanes_v1(p_every_s double precision) RETURNS boolean
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_found record;
    v_before lane_pace;
    v_names text[] := '{}';
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('headrace.refresh', 0)) OR EXISTS (
        SELECT FROM lane_look l
        WHERE l.at BETWEEN v_now - make_interval(secs => p_every_s) AND v_now) THEN
        RETURN false;
    END IF;
    INSERT INTO lane_look (at) VALUES (v_now) ON CONFLICT (is_only) DO UPDATE SET at = excluded.at;
    FOR v_found IN
        WITH reported AS MATERIALIZED (
            SELECT r.lane, sum(r.slots) AS slots, sum(r.rate) AS rate, bool_and(r.is_counted) AS is_counted
            FROM reported_rates_v1() r GROUP BY r.lane
        ), started AS MATERIALIZED (
            SELECT s.lane, sum(s.starts)::bigint AS starts, sum(s.work) AS work, max(s.short_at) AS short_at,
                max(s.at) AS at
            FROM lane_started s GROUP BY s.lane
        )
        SELECT n.name, r.lane IS NOT NULL AS is_served, r.slots, r.rate,
            coalesce(r.is_counted, true) AS is_counted,
            ROW (n.name, NULL::uuid, s.starts, s.work, s.short_at, s.at)::lane_started AS started
        FROM (SELECT l.name FROM lane l UNION SELECT r.lane FROM reported r) AS n
            LEFT JOIN reported r ON r.lane = n.name LEFT JOIN started s ON s.lane = n.name
        ORDER BY n.name
    LOOP
        SELECT p.* INTO v_before FROM lane_pace p WHERE p.lane = v_found.name;
        BEGIN
            PERFORM keep_pace_v1(lane_pace_v1(v_found.name, v_found.slots, v_found.rate, v_found.is_served,
                v_found.is_counted, v_found.started, v_before), v_before);
            v_names := v_names || v_found.name;
        EXCEPTION WHEN data_exception OR integrity_constraint_violation THEN
            RAISE WARNING 'the rate of lane % can''t be told: %', v_found.name, SQLERRM;
        END;
    END LOOP;
    DELETE FROM lane_pace p WHERE p.lane <> ALL (v_names);
    PERFORM forget_sessions_v1();
    PERFORM expire_places_v1();
    RETURN true;
END;
$$;


--
-- Name: refusal_v1(public.lane_state, public.flow_state, double precision, boolean); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.refusal_v1(p_lane public.lane_state, p_flow public.flow_state, p_limit_s double precision, p_is_placed boolean) RETURNS text
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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


--
-- Name: register_function_v1(text, text, text, bytea); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.register_function_v1(p_name text, p_interface text, p_revision text, p_manifest bytea) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    INSERT INTO function AS f (name, interface, revision, manifest)
    VALUES (p_name, p_interface, p_revision, p_manifest)
    ON CONFLICT (name) DO UPDATE
    SET interface = excluded.interface, revision = excluded.revision, manifest = excluded.manifest,
        registered_at = clock_timestamp(), retired_at = NULL
    WHERE f.retired_at IS NOT NULL OR f.manifest <> excluded.manifest
        OR f.interface <> excluded.interface OR f.revision <> excluded.revision;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('headrace_registry', 'functions');
    RETURN true;
END;
$$;


--
-- Name: register_runner_v1(uuid, text, text, jsonb, text, text[], text[], text[], bytea[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.register_runner_v1(p_id uuid, p_address text, p_pool text, p_served jsonb, p_metrics_address text, p_names text[], p_interfaces text[], p_revisions text[], p_manifests bytea[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_function record;
BEGIN
    -- In one order everywhere: two runners that start together would deadlock otherwise.
    FOR v_function IN
        SELECT u.* FROM unnest(p_names, p_interfaces, p_revisions, p_manifests)
            AS u (name, interface, revision, manifest)
        ORDER BY u.name
    LOOP
        PERFORM register_function_v1(
            v_function.name, v_function.interface, v_function.revision, v_function.manifest);
    END LOOP;

    DELETE FROM runner WHERE seen_at < v_now - interval '1 hour' AND id <> p_id;

    INSERT INTO runner AS r (id, address, pool, interfaces, metrics_address, started_at, seen_at)
    VALUES (p_id, p_address, p_pool, p_served, p_metrics_address, v_now, v_now)
    ON CONFLICT (id) DO UPDATE
    SET address = excluded.address, pool = excluded.pool, interfaces = excluded.interfaces,
        metrics_address = excluded.metrics_address, draining = false, seen_at = clock_timestamp();
    PERFORM pg_notify('headrace_registry', 'runners');
END;
$$;


--
-- Name: register_runner_v2(uuid, text, text, jsonb, text, text[], text[], text[], bytea[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.register_runner_v2(p_id uuid, p_address text, p_pool text, p_served jsonb, p_metrics_address text, p_names text[], p_interfaces text[], p_revisions text[], p_manifests bytea[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_function record;
BEGIN
    -- In one order everywhere: two runners that start together would deadlock otherwise.
    FOR v_function IN
        SELECT u.* FROM unnest(p_names, p_interfaces, p_revisions, p_manifests)
            AS u (name, interface, revision, manifest)
        ORDER BY u.name
    LOOP
        PERFORM register_function_v1(
            v_function.name, v_function.interface, v_function.revision, v_function.manifest);
    END LOOP;

    INSERT INTO runner AS r (id, address, pool, interfaces, metrics_address, started_at, seen_at)
    VALUES (p_id, p_address, p_pool, p_served, p_metrics_address, v_now, v_now)
    ON CONFLICT (id) DO UPDATE
    SET address = excluded.address, pool = excluded.pool, interfaces = excluded.interfaces,
        metrics_address = excluded.metrics_address, draining = false, seen_at = clock_timestamp(),
        left_at = NULL;
    PERFORM pg_notify('headrace_registry', 'runners');
END;
$$;


--
-- Name: register_runner_v3(uuid, text, text, jsonb, jsonb, text, text[], text[], text[], bytea[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.register_runner_v3(p_id uuid, p_address text, p_pool text, p_labels jsonb, p_served jsonb, p_metrics_address text, p_names text[], p_interfaces text[], p_revisions text[], p_manifests bytea[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_function record;
BEGIN
    -- In one order everywhere: two runners that start together would deadlock otherwise.
    FOR v_function IN
        SELECT u.* FROM unnest(p_names, p_interfaces, p_revisions, p_manifests)
            AS u (name, interface, revision, manifest)
        ORDER BY u.name
    LOOP
        PERFORM register_function_v1(
            v_function.name, v_function.interface, v_function.revision, v_function.manifest);
    END LOOP;

    INSERT INTO runner AS r (id, address, pool, labels, interfaces, metrics_address, started_at, seen_at)
    VALUES (p_id, p_address, p_pool, p_labels, p_served, p_metrics_address, v_now, v_now)
    ON CONFLICT (id) DO UPDATE
    SET address = excluded.address, pool = excluded.pool, labels = excluded.labels,
        interfaces = excluded.interfaces, metrics_address = excluded.metrics_address, draining = false,
        seen_at = clock_timestamp(), left_at = NULL;
    PERFORM pg_notify('headrace_registry', 'runners');
END;
$$;


--
-- Name: release_tags_v1(text, uuid, double precision, double precision, double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.release_tags_v1(p_lane text, p_owner_id uuid, p_weight double precision, p_tag double precision, p_total double precision) RETURNS void
    LANGUAGE sql
    AS $$
    UPDATE lane_owner o SET last_tag = p_tag
    WHERE o.lane = p_lane AND o.owner_id = p_owner_id AND o.weight = p_weight AND o.last_tag - p_total = p_tag
$$;


--
-- Name: renew_v1(uuid, uuid[], uuid[], integer[], uuid[], double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.renew_v1(p_session_id uuid, p_ids uuid[], p_tokens uuid[], p_attempts integer[], p_claiming uuid[], p_lease_s double precision) RETURNS TABLE(job_id uuid, verdict text)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
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


--
-- Name: reported_rates_v1(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.reported_rates_v1() RETURNS TABLE(lane text, slots double precision, rate double precision, is_counted boolean)
    LANGUAGE plpgsql STABLE
    AS $$
DECLARE
    v_runner record;
BEGIN
    FOR v_runner IN SELECT l.id, l.report FROM live_runners_v1() l WHERE l.report IS NOT NULL LOOP
        BEGIN
            RETURN QUERY
            SELECT c.name, least(c.slots, 1e6),
                bounded_rate_v1(c.slots / nullif(coalesce(nullif(c.cost_s, 0), c.mean_s), 0)),
                EXISTS (SELECT FROM lane_started s WHERE s.lane = c.name AND s.session_id = v_runner.id)
            FROM (
                SELECT e.key AS name, (e.value ->> 'slots')::double precision AS slots,
                    (e.value ->> 'cost_s')::double precision AS cost_s,
                    (e.value ->> 'mean_s')::double precision AS mean_s
                FROM json_each(convert_from(v_runner.report, 'UTF8')::json -> 'functions') AS e
            ) AS c WHERE c.slots > 0;
        EXCEPTION WHEN data_exception OR invalid_text_representation OR untranslatable_character THEN
            NULL; -- another version's, or with a character that Postgres' text can't hold
        END;
    END LOOP;
END;
$$;


--
-- Name: reserve_tags_v1(text, uuid, double precision, double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.reserve_tags_v1(p_lane text, p_owner_id uuid, p_weight double precision, p_total double precision) RETURNS double precision
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: resume_v1(text, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.resume_v1(p_function text, p_actor text) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_site_is_off boolean;
    v_is_off boolean;
BEGIN
    IF p_function <> '' AND NOT EXISTS (SELECT FROM function f WHERE f.name = p_function) THEN
        RETURN 'unknown-function';
    END IF;
    PERFORM change_intake_v1();
    v_site_is_off := EXISTS (SELECT FROM intake i WHERE i.function = '');
    SELECT NOT i.open INTO v_is_off FROM intake i WHERE i.function = p_function;
    IF NOT coalesce(v_is_off, v_site_is_off) THEN
        RETURN 'was-on';
    END IF;
    IF p_function = '' THEN
        DELETE FROM intake i WHERE i.function = '' OR i.open;
    ELSIF v_site_is_off THEN
        INSERT INTO intake (function, open, reason, changed_at, changed_by)
        VALUES (p_function, true, '', clock_timestamp(), p_actor)
        ON CONFLICT (function) DO UPDATE SET open = true, reason = '', retry_after_s = NULL,
            changed_at = excluded.changed_at, changed_by = excluded.changed_by;
    ELSE
        DELETE FROM intake i WHERE i.function = p_function;
    END IF;
    PERFORM audit_v1(p_actor, 'intake.resume', coalesce(nullif(p_function, ''), '*'), '{}');
    RETURN 'resumed';
END;
$$;


--
-- Name: retire_function_v1(text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.retire_function_v1(p_name text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    UPDATE function SET retired_at = clock_timestamp() WHERE name = p_name AND retired_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('headrace_registry', 'functions');
    RETURN true;
END;
$$;


--
-- Name: retire_function_v2(text, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.retire_function_v2(p_name text, p_actor text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF NOT retire_function_v1(p_name) THEN
        RETURN false;
    END IF;
    PERFORM audit_v1(p_actor, 'function.retire', p_name, '{}');
    RETURN true;
END;
$$;


--
-- Name: revoke_key_v1(text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.revoke_key_v1(p_key text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_key_id uuid;
BEGIN
    UPDATE api_key SET revoked_at = clock_timestamp()
    WHERE (id::text = lower(p_key) OR prefix = p_key) AND revoked_at IS NULL
    RETURNING id INTO v_key_id;
    IF v_key_id IS NULL THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('headrace_keys', v_key_id::text);
    RETURN true;
END;
$$;


--
-- Name: revoke_key_v2(text, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.revoke_key_v2(p_key text, p_actor text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_key record;
BEGIN
    UPDATE api_key k SET revoked_at = clock_timestamp() FROM owner o
    WHERE (k.id::text = lower(p_key) OR k.prefix = p_key) AND k.revoked_at IS NULL AND o.id = k.owner_id
    RETURNING k.id, k.prefix, k.name, o.name AS owner INTO v_key;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM audit_v1(p_actor, 'key.revoke', v_key.prefix,
        jsonb_build_object('key_id', v_key.id, 'owner', v_key.owner, 'name', v_key.name));
    PERFORM pg_notify('headrace_keys', v_key.id::text);
    RETURN true;
END;
$$;


--
-- Name: room_v1(uuid, text, integer, integer, double precision, double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.room_v1(p_owner_id uuid, p_function text, p_most_outstanding integer, p_most_waiting integer, p_most_cost double precision, p_most_age_s double precision) RETURNS TABLE(outstanding integer, refusal text, most_waiting integer, most_cost double precision, due_s double precision)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
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


--
-- Name: runner_silence_v1(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.runner_silence_v1() RETURNS interval
    LANGUAGE sql IMMUTABLE
    AS $$ SELECT interval '10 seconds' $$;


--
-- Name: secret_v1(text, bytea); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.secret_v1(p_name text, p_proposed bytea) RETURNS bytea
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_value bytea;
BEGIN
    INSERT INTO secret (name, value) VALUES (p_name, p_proposed) ON CONFLICT (name) DO NOTHING;
    SELECT value INTO STRICT v_value FROM secret WHERE name = p_name;
    RETURN v_value;
END;
$$;


--
-- Name: selected_jobs_v1(text, text, text, uuid, text, text, uuid, timestamp with time zone, uuid); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.selected_jobs_v1(p_kind text, p_function text, p_interface text, p_owner_id uuid, p_state text, p_category text, p_batch_id uuid, p_before timestamp with time zone, p_after uuid) RETURNS SETOF public.job
    LANGUAGE sql STABLE
    AS $$
    SELECT j.* FROM job j
    WHERE (p_kind <> 'cancel' OR j.state IN ('queued', 'running'))
        AND (p_kind <> 'move' OR j.state = 'queued')
        AND (p_kind <> 'retry' OR j.retried_as IS NULL)
        AND (p_kind <> 'retry' OR p_state = 'cancelled' OR j.state IN ('failed', 'expired'))
        AND (p_function IS NULL OR j.function = p_function)
        AND (p_interface IS NULL OR j.interface = p_interface)
        AND (p_owner_id IS NULL OR j.owner_id = p_owner_id)
        AND (p_state IS NULL OR j.state = p_state)
        AND (p_category IS NULL OR j.error_category = p_category)
        AND (p_batch_id IS NULL OR j.batch_id = p_batch_id)
        AND j.created_at <= p_before
        AND (p_after IS NULL OR j.id > p_after)
$$;


--
-- Name: session_lock_v1(uuid); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.session_lock_v1(p_session_id uuid) RETURNS integer
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT ('x' || substr(md5(p_session_id::text), 1, 8))::bit(32)::integer
$$;


--
-- Name: session_locks_v1(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.session_locks_v1() RETURNS SETOF integer
    LANGUAGE sql STABLE
    AS $$
    SELECT l.objid::bigint::bit(32)::integer FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.classid = 1751217778 AND l.objsubid = 2 AND l.granted
        AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
$$;


--
-- Name: session_mark_v1(uuid); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.session_mark_v1(p_session_id uuid) RETURNS timestamp with time zone
    LANGUAGE sql STABLE
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
    AS $$
    SELECT max(j.lease_expires_at) FROM job j WHERE j.session_id = p_session_id
$$;


--
-- Name: set_lane_v1(text, jsonb, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.set_lane_v1(p_name text, p_changes jsonb, p_actor text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_lane lane;
BEGIN
    IF NOT EXISTS (SELECT FROM function f WHERE f.name = p_name) THEN
        RETURN false;
    END IF;
    INSERT INTO lane (name) VALUES (p_name) ON CONFLICT (name) DO NOTHING;
    -- Not FOR UPDATE, for which submissions would have to wait.
    SELECT l.* INTO STRICT v_lane FROM lane l WHERE l.name = p_name FOR NO KEY UPDATE;
    v_lane := jsonb_populate_record(v_lane, p_changes);
    UPDATE lane l
    SET most_waiting = v_lane.most_waiting, most_cost = v_lane.most_cost, most_age_s = v_lane.most_age_s
    WHERE l.name = p_name;
    PERFORM audit_v1(p_actor, 'function.limit', p_name, p_changes);
    RETURN true;
END;
$$;


--
-- Name: set_owner_v1(text, jsonb, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.set_owner_v1(p_name text, p_changes jsonb, p_actor text) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_owner owner;
BEGIN
    -- Not FOR UPDATE, for which rows that refer to the owner would have to wait.
    SELECT * INTO v_owner FROM owner WHERE name = p_name FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 'unknown';
    END IF;
    v_owner := jsonb_populate_record(v_owner, p_changes);
    IF v_owner.rate IS NULL THEN
        IF p_changes ->> 'burst' IS NOT NULL THEN
            RETURN 'no-rate';
        END IF;
        v_owner.burst := NULL;
    END IF;
    UPDATE owner
    SET most_outstanding = v_owner.most_outstanding, rate = v_owner.rate, burst = v_owner.burst,
        highest_priority = v_owner.highest_priority
    WHERE name = p_name;
    IF p_changes <> '{}' THEN
        PERFORM audit_v1(p_actor, 'owner.set', p_name, p_changes);
    END IF;
    -- Gateways remember the quota with each key.
    PERFORM pg_notify('headrace_keys', v_owner.id::text);
    RETURN 'changed';
END;
$$;


--
-- Name: settle_job_v1(uuid, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.settle_job_v1(p_id uuid, p_actor text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: settle_job_v2(uuid, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.settle_job_v2(p_id uuid, p_actor text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_job job;
BEGIN
    -- Whoever has it locked moves it on; a reader doesn't wait for that.
    SELECT j.* INTO v_job FROM job j
    WHERE j.id = p_id AND j.settle_at <= clock_timestamp() FOR UPDATE SKIP LOCKED;
    -- Leases are maintenance's: it knows whether runners could renew them.
    RETURN FOUND AND settle_one_v2(v_job, false, p_actor) IS NOT NULL;
END;
$$;


--
-- Name: settle_one_v1(public.job, boolean, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.settle_one_v1(p_job public.job, p_reap boolean, p_actor text) RETURNS text
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: settle_one_v2(public.job, boolean, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.settle_one_v2(p_job public.job, p_reap boolean, p_actor text) RETURNS text
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    IF p_job.settle_at IS NULL OR p_job.settle_at > v_now THEN
        RETURN NULL;
    END IF;
    IF p_job.state = 'queued' AND p_job.attempt = 0 THEN
        PERFORM expire_v2(ARRAY[p_job.id], p_actor);
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


--
-- Name: settle_v1(text, timestamp with time zone, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.settle_v1(p_actor text, p_reap_until timestamp with time zone, p_limit integer) RETURNS TABLE(now timestamp with time zone, expired integer, failed integer, cancelled integer, requeued integer)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
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


--
-- Name: settle_v2(text, timestamp with time zone, integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.settle_v2(p_actor text, p_reap_until timestamp with time zone, p_limit integer) RETURNS TABLE(now timestamp with time zone, expired integer, failed integer, cancelled integer, requeued integer)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
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
        PERFORM expire_v2(v_ids, p_actor);
    END IF;
    FOR v_job IN
        SELECT j.* FROM job j
        WHERE j.settle_at <= v_now AND NOT (j.state = 'queued' AND j.attempt = 0)
            AND (j.settle_at <= p_reap_until OR j.state = 'queued' OR j.deadline_at <= v_now)
        ORDER BY j.settle_at LIMIT p_limit FOR UPDATE SKIP LOCKED
    LOOP
        v_state := settle_one_v2(v_job, coalesce(v_job.settle_at <= p_reap_until, false), p_actor);
        expired := expired + (v_state IS NOT DISTINCT FROM 'expired')::integer;
        failed := failed + (v_state IS NOT DISTINCT FROM 'failed')::integer;
        cancelled := cancelled + (v_state IS NOT DISTINCT FROM 'cancelled')::integer;
        requeued := requeued + (v_state IS NOT DISTINCT FROM 'queued')::integer;
    END LOOP;
    RETURN NEXT;
END;
$$;


--
-- Name: submit_v1(uuid[], uuid[], uuid[], text[], text[], bytea[], bytea[], double precision[], double precision[], integer[], integer[], integer[], double precision[], double precision[], integer[], integer[], double precision[], double precision[], text[], text[], text[], uuid[], text[], text[], double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.submit_v1(p_ids uuid[], p_owner_ids uuid[], p_key_ids uuid[], p_functions text[], p_interfaces text[], p_inputs bytea[], p_digests bytea[], p_costs double precision[], p_weights double precision[], p_attempts integer[], p_started integer[], p_charged integer[], p_queue_s double precision[], p_total_s double precision[], p_most_outstanding integer[], p_most_waiting integer[], p_most_costs double precision[], p_most_ages_s double precision[], p_request_ids text[], p_traceparents text[], p_idempotency_keys text[], p_retries_of uuid[], p_actors text[], p_waiters text[], p_key_ttl_s double precision) RETURNS TABLE(job_id uuid, outcome text, state text, created_at timestamp with time zone, queue_deadline_at timestamp with time zone, deadline_at timestamp with time zone, outstanding integer)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
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


--
-- Name: submit_v2(uuid[], uuid[], uuid[], text[], text[], bytea[], bytea[], double precision[], double precision[], integer[], integer[], integer[], boolean[], double precision[], double precision[], integer[], integer[], double precision[], double precision[], text[], text[], text[], uuid[], text[], text[], double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.submit_v2(p_ids uuid[], p_owner_ids uuid[], p_key_ids uuid[], p_functions text[], p_interfaces text[], p_inputs bytea[], p_digests bytea[], p_costs double precision[], p_weights double precision[], p_attempts integer[], p_started integer[], p_charged integer[], p_alone boolean[], p_queue_s double precision[], p_total_s double precision[], p_most_outstanding integer[], p_most_waiting integer[], p_most_costs double precision[], p_most_ages_s double precision[], p_request_ids text[], p_traceparents text[], p_idempotency_keys text[], p_retries_of uuid[], p_actors text[], p_waiters text[], p_key_ttl_s double precision) RETURNS TABLE(job_id uuid, outcome text, state text, created_at timestamp with time zone, queue_deadline_at timestamp with time zone, deadline_at timestamp with time zone, outstanding integer)
    LANGUAGE plpgsql
    AS $$
#variable_conflict use_column
DECLARE
    n integer := 0;
BEGIN
    FOR job_id, outcome, state, created_at, queue_deadline_at, deadline_at, outstanding IN
        SELECT s.* FROM submit_v1(
            p_ids, p_owner_ids, p_key_ids, p_functions, p_interfaces, p_inputs, p_digests, p_costs, p_weights,
            p_attempts, p_started, p_charged, p_queue_s, p_total_s, p_most_outstanding, p_most_waiting,
            p_most_costs, p_most_ages_s, p_request_ids, p_traceparents, p_idempotency_keys, p_retries_of,
            p_actors, p_waiters, p_key_ttl_s) s
    LOOP
        n := n + 1;
        IF p_alone[n] AND outcome = 'accepted' THEN
            UPDATE job j SET alone = true WHERE j.id = p_ids[n];
            UPDATE job_event v SET reason = 'lost with its process on the direct path'
            WHERE v.job_id = p_ids[n] AND v.sequence = 1;
        END IF;
        RETURN NEXT;
    END LOOP;
END;
$$;


--
-- Name: submit_v3(uuid[], uuid[], uuid[], text[], text[], bytea[], bytea[], double precision[], double precision[], integer[], integer[], integer[], boolean[], double precision[], double precision[], integer[], integer[], double precision[], double precision[], text[], text[], text[], uuid[], text[], text[], double precision, uuid[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.submit_v3(p_ids uuid[], p_owner_ids uuid[], p_key_ids uuid[], p_functions text[], p_interfaces text[], p_inputs bytea[], p_digests bytea[], p_costs double precision[], p_weights double precision[], p_attempts integer[], p_started integer[], p_charged integer[], p_alone boolean[], p_queue_s double precision[], p_total_s double precision[], p_most_outstanding integer[], p_most_waiting integer[], p_most_costs double precision[], p_most_ages_s double precision[], p_request_ids text[], p_traceparents text[], p_idempotency_keys text[], p_retries_of uuid[], p_actors text[], p_waiters text[], p_key_ttl_s double precision, p_places uuid[]) RETURNS TABLE(job_id uuid, outcome text, state text, created_at timestamp with time zone, queue_deadline_at timestamp with time zone, deadline_at timestamp with time zone, outstanding integer, wait_s double precision, place uuid, due_s double precision, is_placed boolean)
    LANGUAGE plpgsql
    SET enable_seqscan TO 'off'
    SET enable_bitmapscan TO 'off'
    SET jit TO 'off'
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


--
-- Name: sum_usage_v1(integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.sum_usage_v1(p_limit integer) RETURNS integer
    LANGUAGE plpgsql
    SET jit TO 'off'
    SET enable_sort TO 'off'
    SET work_mem TO '64MB'
    AS $$
DECLARE
    v_hours timestamptz[] := ARRAY(
        SELECT c.hour FROM usage_changed c WHERE c.hour < date_trunc('hour', clock_timestamp(), 'UTC')
        ORDER BY c.hour LIMIT p_limit FOR UPDATE SKIP LOCKED);
    v_hour timestamptz;
BEGIN
    FOREACH v_hour IN ARRAY v_hours LOOP
        INSERT INTO usage_hour AS u (at, function, kind, reason, device, cost, number, total, buckets)
        WITH minutes AS MATERIALIZED (
            SELECT m.* FROM usage_minute m WHERE m.at >= v_hour AND m.at < v_hour + interval '1 hour'
        ), counts AS (
            SELECT m.function, m.kind, m.reason, m.device, m.cost, sum(m.number)::bigint AS number,
                sum(m.total) AS total
            FROM minutes m GROUP BY m.function, m.kind, m.reason, m.device, m.cost
        ), buckets AS (
            SELECT b.function, b.kind, b.reason, b.device, b.cost,
                jsonb_object_agg(b.bucket, b.number) AS buckets
            FROM (
                SELECT m.function, m.kind, m.reason, m.device, m.cost, e.key AS bucket,
                    sum(e.value::bigint) AS number
                FROM minutes m CROSS JOIN jsonb_each_text(m.buckets) AS e
                GROUP BY m.function, m.kind, m.reason, m.device, m.cost, e.key
            ) AS b GROUP BY b.function, b.kind, b.reason, b.device, b.cost
        )
        SELECT v_hour, n.function, n.kind, n.reason, n.device, n.cost, n.number, n.total,
            coalesce(b.buckets, '{}')
        FROM counts n LEFT JOIN buckets b USING (function, kind, reason, device, cost)
        ON CONFLICT (at, function, kind, reason, device, cost) DO UPDATE
        SET number = excluded.number, total = excluded.total, buckets = excluded.buckets
        WHERE u.number <= excluded.number;  -- else its minutes are forgotten, and something came very late
    END LOOP;
    DELETE FROM usage_changed c WHERE c.hour = ANY (v_hours);
    RETURN cardinality(v_hours);
END;
$$;


--
-- Name: sweep_v1(integer); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.sweep_v1(p_limit integer) RETURNS TABLE(entries_deleted integer, entries_made integer)
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: tag_step_v1(double precision, double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.tag_step_v1(p_cost double precision, p_weight double precision) RETURNS double precision
    LANGUAGE sql IMMUTABLE
    AS $$ SELECT least(greatest(p_cost, 1), 1e6) / p_weight $$;


--
-- Name: runner_request; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.runner_request (
    id uuid NOT NULL,
    runner_id uuid NOT NULL,
    kind text NOT NULL,
    job_id uuid,
    asked_by text NOT NULL,
    asked_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    answered_at timestamp with time zone,
    answer bytea,
    subject text,
    CONSTRAINT runner_request_asked_by_check CHECK ((asked_by <> ''::text)),
    CONSTRAINT runner_request_check CHECK (((job_id IS NOT NULL) = (kind = 'stack'::text))),
    CONSTRAINT runner_request_check1 CHECK (((answer IS NOT NULL) = (answered_at IS NOT NULL))),
    CONSTRAINT runner_request_kind_check CHECK ((kind = ANY (ARRAY['drain'::text, 'stack'::text, 'load'::text, 'unload'::text]))),
    CONSTRAINT runner_request_subject_check CHECK ((subject <> ''::text)),
    CONSTRAINT runner_request_subject_of_kind CHECK (((subject IS NOT NULL) = (kind = ANY (ARRAY['load'::text, 'unload'::text]))))
);


--
-- Name: take_requests_v1(uuid); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.take_requests_v1(p_runner_id uuid) RETURNS SETOF public.runner_request
    LANGUAGE sql
    AS $$
    SELECT r.* FROM runner_request r
    WHERE r.runner_id = p_runner_id AND r.answered_at IS NULL AND r.expires_at > clock_timestamp()
    ORDER BY r.asked_at, r.id
$$;


--
-- Name: tell_waiters_v1(uuid[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.tell_waiters_v1(p_ids uuid[]) RETURNS void
    LANGUAGE sql
    AS $$
    SELECT pg_notify(waiter_channel_v1(w.gateway), j.id::text)
    FROM job j, unnest(j.waiters) AS w (gateway)
    WHERE j.id = ANY (p_ids) AND (j.followed OR j.finished_at IS NOT NULL)
$$;


--
-- Name: unregister_runner_v1(uuid); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.unregister_runner_v1(p_id uuid) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    DELETE FROM runner WHERE id = p_id;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('headrace_registry', 'runners');
    RETURN true;
END;
$$;


--
-- Name: unregister_runner_v2(uuid); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.unregister_runner_v2(p_id uuid) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    UPDATE runner SET left_at = clock_timestamp() WHERE id = p_id AND left_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('headrace_registry', 'runners');
    RETURN true;
END;
$$;


--
-- Name: unregister_runner_v3(uuid); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.unregister_runner_v3(p_id uuid) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
    -- First, as in a heartbeat: locked the other way round, the two could deadlock.
    v_known boolean := unregister_runner_v2(p_id);
BEGIN
    DELETE FROM runner_report r WHERE r.runner_id = p_id;
    RETURN v_known;
END;
$$;


--
-- Name: until_room_v1(public.lane_state, public.flow_state, double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.until_room_v1(p_lane public.lane_state, p_flow public.flow_state, p_limit_s double precision) RETURNS double precision
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT greatest(
        0,
        (p_lane.waiting - 0.5 * p_lane.most) * p_lane.work / greatest(p_lane.waiting, 1) / p_lane.rate,
        CASE WHEN p_lane.cost > 0
            THEN (p_lane.cost - 0.5 * p_lane.most_cost) * p_lane.work
                / greatest(p_lane.cost, 1e-6) / p_lane.rate ELSE 0 END,
        p_lane.age_s - 0.5 * p_lane.most_age_s,
        ahead_of_next_v1(p_lane, p_flow) / p_lane.rate - 0.5 * p_limit_s)
$$;


--
-- Name: place; Type: TABLE; Schema: public; Owner: -
--

CREATE UNLOGGED TABLE public.place (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    lane text NOT NULL,
    owner_id uuid NOT NULL,
    weight double precision NOT NULL,
    cost double precision NOT NULL,
    idempotency_key text,
    job_id uuid NOT NULL,
    in_front boolean NOT NULL,
    for_room boolean NOT NULL,
    limit_s double precision NOT NULL,
    due_at timestamp with time zone NOT NULL,
    told_at timestamp with time zone NOT NULL,
    CONSTRAINT place_cost_check CHECK (((cost = (0)::double precision) OR (cost >= (0.000000001)::double precision)))
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='500');


--
-- Name: use_place_v1(uuid); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.use_place_v1(p_id uuid) RETURNS public.place
    LANGUAGE plpgsql
    AS $$
DECLARE
    v_place place;
BEGIN
    DELETE FROM place p WHERE p.id = p_id RETURNING p.* INTO STRICT v_place;
    UPDATE line n SET share = least(1, 0.9 * n.share + 0.1), used_at = clock_timestamp()
    WHERE n.lane = v_place.lane AND n.owner_id = v_place.owner_id AND n.weight = v_place.weight;
    RETURN v_place;
END;
$$;


--
-- Name: value_bucket_v1(double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.value_bucket_v1(p_value double precision) RETURNS integer
    LANGUAGE sql IMMUTABLE
    AS $$
    SELECT CASE WHEN p_value > power(2, -20)
        THEN least(127, floor(4 * ln(p_value) / ln(2::double precision) + 1e-9))::integer ELSE -80 END
$$;


--
-- Name: waiter_channel_v1(text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.waiter_channel_v1(p_gateway text) RETURNS text
    LANGUAGE sql IMMUTABLE
    AS $$ SELECT 'headrace_jobs_' || replace(p_gateway, '-', '') $$;


--
-- Name: waits_v1(text, double precision, double precision[], double precision[], double precision[]); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.waits_v1(p_lane text, p_rate double precision, p_tags double precision[], p_works double precision[], p_costs double precision[]) RETURNS double precision[]
    LANGUAGE sql STABLE
    AS $$
    -- Behind others a job also waits for the end of what runs: half of one, as a mean.
    SELECT array_agg(
        CASE WHEN least(u.work, u.ahead) > 0
            THEN (least(u.work, u.ahead) + work_v1(u.cost) / 2) / p_rate ELSE 0 END ORDER BY u.n)
    FROM unnest(aheads_v1(p_lane, p_tags), p_works, p_costs) WITH ORDINALITY AS u (ahead, work, cost, n)
$$;


--
-- Name: with_line_v1(public.lane_state, public.flow_state); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.with_line_v1(p_lane public.lane_state, p_flow public.flow_state) RETURNS public.flow_state
    LANGUAGE plpgsql STABLE
    AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    SELECT coalesce(max(n.share), 1) INTO p_flow.share FROM line n
    WHERE n.lane = p_lane.name AND n.owner_id = p_flow.owner_id AND n.weight = p_flow.weight;
    SELECT count(*), count(*) FILTER (WHERE c.is_own),
        max(c.due_at) FILTER (WHERE c.is_own AND NOT c.in_front),
        max(c.due_at) FILTER (WHERE c.is_own AND c.in_front),
        max(c.limit_s) FILTER (WHERE c.is_own),
        coalesce(sum(work_v1(c.cost)) FILTER (WHERE c.is_own), 0) * p_flow.share,
        coalesce(sum(work_v1(c.cost)) FILTER (WHERE c.is_own AND c.due_at <= v_now + place_early_v1()), 0)
            * p_flow.share
    INTO p_flow.owned, p_flow.places, p_flow.end_at, p_flow.front_at, p_flow.limit_s, p_flow.line_work,
        p_flow.kept_work
    FROM (
        SELECT p.*, p.weight = p_flow.weight AS is_own FROM place p
        WHERE p.lane = p_lane.name AND p.owner_id = p_flow.owner_id AND p.told_at >= v_now - place_late_v1()
    ) AS c;
    RETURN p_flow;
END;
$$;


--
-- Name: with_starts_v1(public.lane_pace, double precision, double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.with_starts_v1(p_pace public.lane_pace, p_starts double precision, p_work double precision) RETURNS public.lane_pace
    LANGUAGE plpgsql IMMUTABLE
    AS $$
DECLARE
    v_start_s double precision := p_pace.span_s / nullif(p_pace.span_starts, 0);
    v_kept double precision := exp(-least(p_pace.gap_s / least(greatest(20, 300 * v_start_s), 600), 50));
    v_least double precision := greatest(20, 2 * p_pace.slots);
    v_had double precision := p_pace.run_starts;
BEGIN
    IF p_pace.gap_s > greatest(5, 20 * v_start_s) THEN
        p_pace.run_s := 0;
        p_pace.run_starts := 0;
        p_pace.run_work := 0;
    ELSE
        p_pace.run_s := p_pace.run_s + p_pace.gap_s;
        p_pace.run_starts := p_pace.run_starts + p_starts;
        p_pace.run_work := p_pace.run_work + p_work;
    END IF;
    p_pace.span_s := v_kept * p_pace.span_s + p_pace.gap_s;
    p_pace.span_starts := v_kept * p_pace.span_starts + p_starts;
    p_pace.span_work := v_kept * p_pace.span_work + p_work;
    p_pace.gap_s := 0;
    p_pace.measured_at := p_pace.refreshed_at;
    IF v_had < v_least AND p_pace.run_starts >= v_least
        AND p_pace.run_starts * p_pace.span_s > 2 * p_pace.span_starts * p_pace.run_s THEN
        p_pace.span_s := p_pace.run_s;
        p_pace.span_starts := p_pace.run_starts;
        p_pace.span_work := p_pace.run_work;
    END IF;
    RETURN p_pace;
END;
$$;


--
-- Name: without_late_v1(uuid[], timestamp with time zone, text); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.without_late_v1(p_ids uuid[], p_before timestamp with time zone, p_actor text) RETURNS uuid[]
    LANGUAGE plpgsql
    AS $$
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


--
-- Name: without_place_v1(public.place, public.lane_state, public.flow_state); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.without_place_v1(p_place public.place, INOUT lane public.lane_state, INOUT flow public.flow_state) RETURNS record
    LANGUAGE plpgsql STABLE
    AS $$
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


--
-- Name: work_v1(double precision); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.work_v1(p_cost double precision) RETURNS double precision
    LANGUAGE sql IMMUTABLE
    AS $$ SELECT tag_step_v1(p_cost, 1) $$;


--
-- Name: api_key; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.api_key (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    owner_id uuid NOT NULL,
    name text NOT NULL,
    prefix text NOT NULL,
    hash bytea NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    revoked_at timestamp with time zone,
    scopes text[] DEFAULT '{call,read}'::text[] NOT NULL,
    functions text[],
    CONSTRAINT api_key_functions_check CHECK ((((cardinality(functions) >= 1) AND (cardinality(functions) <= 1000)) AND (cardinality(functions) = cardinality(string_to_array(array_to_string(functions, ','::text), ','::text))) AND (array_to_string(functions, ','::text) ~ '^[a-z][a-z0-9_-]{0,39}(,[a-z][a-z0-9_-]{0,39})*$'::text))),
    CONSTRAINT api_key_hash_check CHECK ((octet_length(hash) = 32)),
    CONSTRAINT api_key_name_check CHECK ((name ~ '^[^[:cntrl:]]{0,100}$'::text)),
    CONSTRAINT api_key_prefix_check CHECK (((char_length(prefix) >= 8) AND (char_length(prefix) <= 16))),
    CONSTRAINT api_key_scopes_check CHECK ((((cardinality(scopes) >= 1) AND (cardinality(scopes) <= 3)) AND (scopes <@ '{call,read,admin}'::text[])))
);


--
-- Name: audit; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.audit (
    id bigint NOT NULL,
    at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    detail jsonb DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT audit_action_check CHECK ((action ~ '^[a-z]+\.[a-z-]+$'::text)),
    CONSTRAINT audit_actor_check CHECK ((actor <> ''::text)),
    CONSTRAINT audit_detail_check CHECK ((jsonb_typeof(detail) = 'object'::text))
);


--
-- Name: audit_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

ALTER TABLE public.audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: batch; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.batch (
    id uuid NOT NULL,
    owner_id uuid NOT NULL,
    key_id uuid,
    function text NOT NULL,
    size integer NOT NULL,
    request_id text DEFAULT ''::text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT batch_size_check CHECK ((size > 0))
);


--
-- Name: function; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.function (
    name text NOT NULL,
    interface text NOT NULL,
    revision text NOT NULL,
    manifest bytea NOT NULL,
    registered_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    retired_at timestamp with time zone,
    CONSTRAINT function_interface_check CHECK ((interface <> ''::text)),
    CONSTRAINT function_name_check CHECK ((name ~ '^[a-z][a-z0-9_-]{0,39}$'::text)),
    CONSTRAINT function_revision_check CHECK ((revision <> ''::text))
);


--
-- Name: gateway; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.gateway (
    id uuid NOT NULL,
    seen_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);


--
-- Name: idempotency; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.idempotency (
    owner_id uuid NOT NULL,
    function text NOT NULL,
    key text NOT NULL,
    job_id uuid NOT NULL,
    digest bytea NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    CONSTRAINT idempotency_digest_check CHECK ((octet_length(digest) = 32)),
    CONSTRAINT idempotency_key_check CHECK (((char_length(key) >= 1) AND (char_length(key) <= 255)))
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000');


--
-- Name: intake; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.intake (
    function text NOT NULL,
    open boolean NOT NULL,
    reason text NOT NULL,
    retry_after_s double precision,
    changed_at timestamp with time zone NOT NULL,
    changed_by text NOT NULL,
    CONSTRAINT intake_check CHECK (((NOT open) OR (function <> ''::text))),
    CONSTRAINT intake_retry_after_s_check CHECK (((retry_after_s >= (1)::double precision) AND (retry_after_s <= (600)::double precision)))
);


--
-- Name: job_event; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.job_event (
    job_id uuid NOT NULL,
    sequence integer NOT NULL,
    at timestamp with time zone NOT NULL,
    from_state text,
    state text NOT NULL,
    attempt integer NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    CONSTRAINT job_event_actor_check CHECK ((actor <> ''::text)),
    CONSTRAINT job_event_reason_check CHECK ((reason <> ''::text)),
    CONSTRAINT job_event_sequence_check CHECK ((sequence > 0)),
    CONSTRAINT job_event_transition CHECK (
CASE
    WHEN (from_state IS NULL) THEN (state = ANY (ARRAY['queued'::text, 'running'::text]))
    WHEN (from_state = 'queued'::text) THEN (state = ANY (ARRAY['queued'::text, 'running'::text, 'failed'::text, 'expired'::text, 'cancelled'::text]))
    WHEN (from_state = 'running'::text) THEN (state = ANY (ARRAY['queued'::text, 'succeeded'::text, 'failed'::text, 'cancel_requested'::text]))
    WHEN (from_state = 'cancel_requested'::text) THEN (state = 'cancelled'::text)
    ELSE false
END)
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000');


--
-- Name: job_items; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.job_items (
    job_id uuid NOT NULL,
    sequence integer NOT NULL,
    attempt integer NOT NULL,
    number integer NOT NULL,
    bytes bigint NOT NULL,
    items bytea[] NOT NULL,
    CONSTRAINT job_items_attempt_check CHECK ((attempt > 0)),
    CONSTRAINT job_items_bytes_check CHECK ((bytes > 0)),
    CONSTRAINT job_items_check CHECK (((cardinality(items) >= 1) AND (cardinality(items) <= number))),
    CONSTRAINT job_items_number_check CHECK ((number > 0)),
    CONSTRAINT job_items_sequence_check CHECK ((sequence > 0))
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05', toast.autovacuum_vacuum_scale_factor='0.02', toast.autovacuum_vacuum_threshold='1000');


--
-- Name: lane; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.lane (
    name text NOT NULL,
    virtual_time double precision DEFAULT 0 NOT NULL,
    waiting integer DEFAULT 0 NOT NULL,
    waiting_cost double precision,
    oldest_at timestamp with time zone,
    counted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    most_waiting integer,
    most_cost double precision,
    most_age_s double precision,
    CONSTRAINT lane_most_age_s_check CHECK (((most_age_s >= (0.001)::double precision) AND (most_age_s <= ('1000000000'::numeric)::double precision))),
    CONSTRAINT lane_most_cost_check CHECK (((most_cost >= (0.000001)::double precision) AND (most_cost <= ('1000000000000000000'::numeric)::double precision))),
    CONSTRAINT lane_most_waiting_check CHECK ((most_waiting > 0)),
    CONSTRAINT lane_name_check CHECK ((name ~ '^[a-z][a-z0-9_-]{0,39}$'::text)),
    CONSTRAINT lane_virtual_time_check CHECK ((virtual_time >= (0)::double precision)),
    CONSTRAINT lane_waiting_check CHECK ((waiting >= 0)),
    CONSTRAINT lane_waiting_cost_check CHECK ((waiting_cost >= (0)::double precision))
)
WITH (fillfactor='50');


--
-- Name: lane_look; Type: TABLE; Schema: public; Owner: -
--

CREATE UNLOGGED TABLE public.lane_look (
    is_only boolean DEFAULT true NOT NULL,
    at timestamp with time zone NOT NULL,
    CONSTRAINT lane_look_is_only_check CHECK (is_only)
)
WITH (fillfactor='50');


--
-- Name: lane_owner; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.lane_owner (
    lane text NOT NULL,
    owner_id uuid NOT NULL,
    weight double precision NOT NULL,
    last_tag double precision NOT NULL,
    CONSTRAINT lane_owner_last_tag_check CHECK ((last_tag >= (0)::double precision)),
    CONSTRAINT lane_owner_weight_check CHECK (((weight >= (0.000001)::double precision) AND (weight <= ('1000000'::numeric)::double precision)))
)
WITH (fillfactor='50');


--
-- Name: line; Type: TABLE; Schema: public; Owner: -
--

CREATE UNLOGGED TABLE public.line (
    lane text NOT NULL,
    owner_id uuid NOT NULL,
    weight double precision NOT NULL,
    share double precision DEFAULT 1 NOT NULL,
    used_at timestamp with time zone NOT NULL,
    CONSTRAINT line_share_check CHECK (((share >= (0.05)::double precision) AND (share <= (1)::double precision)))
)
WITH (fillfactor='50');


--
-- Name: owner; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.owner (
    id uuid DEFAULT gen_random_uuid() NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    most_outstanding integer,
    rate double precision,
    burst integer,
    highest_priority text DEFAULT 'high'::text NOT NULL,
    CONSTRAINT owner_burst_check CHECK ((burst > 0)),
    CONSTRAINT owner_burst_has_rate CHECK (((burst IS NULL) OR (rate IS NOT NULL))),
    CONSTRAINT owner_highest_priority_check CHECK ((highest_priority = ANY (ARRAY['low'::text, 'normal'::text, 'high'::text]))),
    CONSTRAINT owner_most_outstanding_check CHECK ((most_outstanding > 0)),
    CONSTRAINT owner_name_check CHECK ((name ~ '^[^[:cntrl:]]{1,100}$'::text)),
    CONSTRAINT owner_rate_check CHECK (((rate >= (0.00001)::double precision) AND (rate <= (1000000)::double precision)))
);


--
-- Name: owner_load; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.owner_load (
    owner_id uuid NOT NULL,
    unfinished integer NOT NULL,
    counted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT owner_load_unfinished_check CHECK ((unfinished >= 0))
)
WITH (fillfactor='50');


--
-- Name: procrastinate_events; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.procrastinate_events (
    id bigint NOT NULL,
    job_id bigint NOT NULL,
    type public.procrastinate_job_event_type,
    at timestamp with time zone DEFAULT now()
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='500');


--
-- Name: procrastinate_events_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

CREATE SEQUENCE public.procrastinate_events_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


--
-- Name: procrastinate_events_id_seq; Type: SEQUENCE OWNED BY; Schema: public; Owner: -
--

ALTER SEQUENCE public.procrastinate_events_id_seq OWNED BY public.procrastinate_events.id;


--
-- Name: procrastinate_jobs_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

CREATE SEQUENCE public.procrastinate_jobs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


--
-- Name: procrastinate_jobs_id_seq; Type: SEQUENCE OWNED BY; Schema: public; Owner: -
--

ALTER SEQUENCE public.procrastinate_jobs_id_seq OWNED BY public.procrastinate_jobs.id;


--
-- Name: procrastinate_periodic_defers; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.procrastinate_periodic_defers (
    id bigint NOT NULL,
    task_name character varying(128) NOT NULL,
    defer_timestamp bigint,
    job_id bigint,
    periodic_id character varying(128) DEFAULT ''::character varying NOT NULL
);


--
-- Name: procrastinate_periodic_defers_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

CREATE SEQUENCE public.procrastinate_periodic_defers_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


--
-- Name: procrastinate_periodic_defers_id_seq; Type: SEQUENCE OWNED BY; Schema: public; Owner: -
--

ALTER SEQUENCE public.procrastinate_periodic_defers_id_seq OWNED BY public.procrastinate_periodic_defers.id;


--
-- Name: procrastinate_workers; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.procrastinate_workers (
    id bigint NOT NULL,
    last_heartbeat timestamp with time zone DEFAULT now() NOT NULL
);


--
-- Name: procrastinate_workers_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

ALTER TABLE public.procrastinate_workers ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.procrastinate_workers_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: runner; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.runner (
    id uuid NOT NULL,
    address text,
    pool text NOT NULL,
    interfaces jsonb NOT NULL,
    metrics_address text,
    capacity jsonb DEFAULT '{}'::jsonb NOT NULL,
    draining boolean DEFAULT false NOT NULL,
    started_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    seen_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    left_at timestamp with time zone,
    labels jsonb DEFAULT '{}'::jsonb NOT NULL,
    CONSTRAINT runner_address_check CHECK ((address ~ '^(tcp://.+:[0-9]+|unix:/.+)$'::text)),
    CONSTRAINT runner_capacity_check CHECK ((jsonb_typeof(capacity) = 'object'::text)),
    CONSTRAINT runner_interfaces_check CHECK ((jsonb_typeof(interfaces) = 'object'::text)),
    CONSTRAINT runner_labels_check CHECK ((jsonb_typeof(labels) = 'object'::text)),
    CONSTRAINT runner_metrics_address_check CHECK ((metrics_address <> ''::text)),
    CONSTRAINT runner_pool_check CHECK ((pool <> ''::text))
);


--
-- Name: runner_report; Type: TABLE; Schema: public; Owner: -
--

CREATE UNLOGGED TABLE public.runner_report (
    runner_id uuid NOT NULL,
    reported_at timestamp with time zone NOT NULL,
    report bytea NOT NULL,
    CONSTRAINT runner_report_report_check CHECK ((octet_length(report) <= 1048576))
);


--
-- Name: schema_component; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.schema_component (
    name text NOT NULL,
    version text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);


--
-- Name: schema_migration; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.schema_migration (
    version integer NOT NULL,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT schema_migration_checksum_check CHECK ((checksum ~ '^[0-9a-f]{64}$'::text)),
    CONSTRAINT schema_migration_version_check CHECK ((version > 0))
);


--
-- Name: secret; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.secret (
    name text NOT NULL,
    value bytea NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT secret_value_check CHECK ((octet_length(value) = 32))
);


--
-- Name: usage_changed; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.usage_changed (
    hour timestamp with time zone NOT NULL
);


--
-- Name: usage_expired; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.usage_expired (
    id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    function text NOT NULL,
    cost bigint NOT NULL,
    bucket integer NOT NULL,
    number bigint NOT NULL,
    total double precision NOT NULL,
    CONSTRAINT usage_expired_cost_check CHECK ((cost >= 0)),
    CONSTRAINT usage_expired_number_check CHECK ((number > 0))
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_threshold='1000');


--
-- Name: usage_expired_id_seq; Type: SEQUENCE; Schema: public; Owner: -
--

ALTER TABLE public.usage_expired ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.usage_expired_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);


--
-- Name: usage_hour; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.usage_hour (
    at timestamp with time zone NOT NULL,
    function text NOT NULL,
    kind text NOT NULL,
    reason text NOT NULL,
    device text NOT NULL,
    cost bigint NOT NULL,
    number bigint NOT NULL,
    total double precision NOT NULL,
    buckets jsonb NOT NULL,
    CONSTRAINT usage_hour_buckets_check CHECK ((jsonb_typeof(buckets) = 'object'::text)),
    CONSTRAINT usage_hour_cost_check CHECK ((cost >= 0)),
    CONSTRAINT usage_hour_kind_check CHECK ((kind <> ''::text)),
    CONSTRAINT usage_hour_number_check CHECK ((number > 0))
);


--
-- Name: usage_minute; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.usage_minute (
    at timestamp with time zone NOT NULL,
    function text NOT NULL,
    kind text NOT NULL,
    reason text NOT NULL,
    device text NOT NULL,
    cost bigint NOT NULL,
    number bigint NOT NULL,
    total double precision NOT NULL,
    buckets jsonb NOT NULL,
    CONSTRAINT usage_minute_buckets_check CHECK ((jsonb_typeof(buckets) = 'object'::text)),
    CONSTRAINT usage_minute_cost_check CHECK ((cost >= 0)),
    CONSTRAINT usage_minute_kind_check CHECK ((kind <> ''::text)),
    CONSTRAINT usage_minute_number_check CHECK ((number > 0))
);


--
-- Name: usage_source; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.usage_source (
    id uuid NOT NULL,
    sequence bigint NOT NULL,
    seen_at timestamp with time zone NOT NULL
);


--
-- Name: procrastinate_events id; Type: DEFAULT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.procrastinate_events ALTER COLUMN id SET DEFAULT nextval('public.procrastinate_events_id_seq'::regclass);


--
-- Name: procrastinate_jobs id; Type: DEFAULT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.procrastinate_jobs ALTER COLUMN id SET DEFAULT nextval('public.procrastinate_jobs_id_seq'::regclass);


--
-- Name: procrastinate_periodic_defers id; Type: DEFAULT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.procrastinate_periodic_defers ALTER COLUMN id SET DEFAULT nextval('public.procrastinate_periodic_defers_id_seq'::regclass);


--
-- Name: api_key api_key_hash_key; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.api_key
    ADD CONSTRAINT api_key_hash_key UNIQUE (hash);


--
-- Name: api_key api_key_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.api_key
    ADD CONSTRAINT api_key_pkey PRIMARY KEY (id);


--
-- Name: api_key api_key_prefix_key; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.api_key
    ADD CONSTRAINT api_key_prefix_key UNIQUE (prefix);


--
-- Name: audit audit_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);


--
-- Name: batch batch_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.batch
    ADD CONSTRAINT batch_pkey PRIMARY KEY (id);


--
-- Name: function function_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.function
    ADD CONSTRAINT function_pkey PRIMARY KEY (name);


--
-- Name: gateway gateway_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.gateway
    ADD CONSTRAINT gateway_pkey PRIMARY KEY (id);


--
-- Name: idempotency idempotency_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.idempotency
    ADD CONSTRAINT idempotency_pkey PRIMARY KEY (owner_id, function, key);


--
-- Name: intake intake_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.intake
    ADD CONSTRAINT intake_pkey PRIMARY KEY (function);


--
-- Name: job_event job_event_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.job_event
    ADD CONSTRAINT job_event_pkey PRIMARY KEY (job_id, sequence);


--
-- Name: job_items job_items_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.job_items
    ADD CONSTRAINT job_items_pkey PRIMARY KEY (job_id, sequence);


--
-- Name: job job_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.job
    ADD CONSTRAINT job_pkey PRIMARY KEY (id);


--
-- Name: lane_look lane_look_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.lane_look
    ADD CONSTRAINT lane_look_pkey PRIMARY KEY (is_only);


--
-- Name: lane_owner lane_owner_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.lane_owner
    ADD CONSTRAINT lane_owner_pkey PRIMARY KEY (lane, owner_id, weight);


--
-- Name: lane_pace lane_pace_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.lane_pace
    ADD CONSTRAINT lane_pace_pkey PRIMARY KEY (lane);


--
-- Name: lane lane_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.lane
    ADD CONSTRAINT lane_pkey PRIMARY KEY (name);


--
-- Name: lane_started lane_started_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.lane_started
    ADD CONSTRAINT lane_started_pkey PRIMARY KEY (lane, session_id);


--
-- Name: line line_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.line
    ADD CONSTRAINT line_pkey PRIMARY KEY (lane, owner_id, weight);


--
-- Name: owner_load owner_load_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.owner_load
    ADD CONSTRAINT owner_load_pkey PRIMARY KEY (owner_id);


--
-- Name: owner owner_name_key; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.owner
    ADD CONSTRAINT owner_name_key UNIQUE (name);


--
-- Name: owner owner_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.owner
    ADD CONSTRAINT owner_pkey PRIMARY KEY (id);


--
-- Name: place place_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.place
    ADD CONSTRAINT place_pkey PRIMARY KEY (id);


--
-- Name: procrastinate_events procrastinate_events_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.procrastinate_events
    ADD CONSTRAINT procrastinate_events_pkey PRIMARY KEY (id);


--
-- Name: procrastinate_jobs procrastinate_jobs_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.procrastinate_jobs
    ADD CONSTRAINT procrastinate_jobs_pkey PRIMARY KEY (id);


--
-- Name: procrastinate_periodic_defers procrastinate_periodic_defers_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.procrastinate_periodic_defers
    ADD CONSTRAINT procrastinate_periodic_defers_pkey PRIMARY KEY (id);


--
-- Name: procrastinate_periodic_defers procrastinate_periodic_defers_unique; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.procrastinate_periodic_defers
    ADD CONSTRAINT procrastinate_periodic_defers_unique UNIQUE (task_name, periodic_id, defer_timestamp);


--
-- Name: procrastinate_workers procrastinate_workers_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.procrastinate_workers
    ADD CONSTRAINT procrastinate_workers_pkey PRIMARY KEY (id);


--
-- Name: runner runner_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.runner
    ADD CONSTRAINT runner_pkey PRIMARY KEY (id);


--
-- Name: runner_report runner_report_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.runner_report
    ADD CONSTRAINT runner_report_pkey PRIMARY KEY (runner_id);


--
-- Name: runner_request runner_request_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.runner_request
    ADD CONSTRAINT runner_request_pkey PRIMARY KEY (id);


--
-- Name: schema_component schema_component_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.schema_component
    ADD CONSTRAINT schema_component_pkey PRIMARY KEY (name);


--
-- Name: schema_migration schema_migration_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.schema_migration
    ADD CONSTRAINT schema_migration_pkey PRIMARY KEY (version);


--
-- Name: secret secret_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.secret
    ADD CONSTRAINT secret_pkey PRIMARY KEY (name);


--
-- Name: usage_changed usage_changed_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.usage_changed
    ADD CONSTRAINT usage_changed_pkey PRIMARY KEY (hour);


--
-- Name: usage_expired usage_expired_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.usage_expired
    ADD CONSTRAINT usage_expired_pkey PRIMARY KEY (id);


--
-- Name: usage_hour usage_hour_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.usage_hour
    ADD CONSTRAINT usage_hour_pkey PRIMARY KEY (at, function, kind, reason, device, cost);


--
-- Name: usage_minute usage_minute_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.usage_minute
    ADD CONSTRAINT usage_minute_pkey PRIMARY KEY (at, function, kind, reason, device, cost);


--
-- Name: usage_source usage_source_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.usage_source
    ADD CONSTRAINT usage_source_pkey PRIMARY KEY (id);


--
-- Name: api_key_owner_id; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX api_key_owner_id ON public.api_key USING btree (owner_id);


--
-- Name: audit_action; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX audit_action ON public.audit USING btree (action, id);


--
-- Name: audit_actor; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX audit_actor ON public.audit USING btree (actor, id);


--
-- Name: audit_subject; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX audit_subject ON public.audit USING btree (subject, id);


--
-- Name: batch_age; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX batch_age ON public.batch USING btree (created_at);


--
-- Name: batch_owner; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX batch_owner ON public.batch USING btree (owner_id, id);


--
-- Name: idempotency_expiry; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX idempotency_expiry ON public.idempotency USING btree (expires_at);


--
-- Name: idempotency_job; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX idempotency_job ON public.idempotency USING btree (job_id);


--
-- Name: idx_procrastinate_jobs_worker_not_null; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX idx_procrastinate_jobs_worker_not_null ON public.procrastinate_jobs USING btree (worker_id) WHERE ((worker_id IS NOT NULL) AND (status = 'doing'::public.procrastinate_job_status));


--
-- Name: idx_procrastinate_workers_last_heartbeat; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX idx_procrastinate_workers_last_heartbeat ON public.procrastinate_workers USING btree (last_heartbeat);


--
-- Name: job_all_dead; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX job_all_dead ON public.job USING btree (id) WHERE ((state = ANY (ARRAY['failed'::text, 'expired'::text])) AND (retried_as IS NULL));


--
-- Name: job_batch; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX job_batch ON public.job USING btree (batch_id, batch_index) WHERE (batch_id IS NOT NULL);


--
-- Name: job_batch_open; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX job_batch_open ON public.job USING btree (batch_id) WHERE ((batch_id IS NOT NULL) AND (finished_at IS NULL));


--
-- Name: job_claim; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX job_claim ON public.job USING btree (function, interface, ((due_at IS NULL)), alone, tag, id) WHERE (state = 'queued'::text);


--
-- Name: job_dead; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX job_dead ON public.job USING btree (owner_id, id) WHERE ((state = ANY (ARRAY['failed'::text, 'expired'::text])) AND (retried_as IS NULL));


--
-- Name: job_due; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX job_due ON public.job USING btree (function, due_at) WHERE (due_at IS NOT NULL);


--
-- Name: job_entry_id; Type: INDEX; Schema: public; Owner: -
--

CREATE UNIQUE INDEX job_entry_id ON public.job USING btree (entry_id) WHERE (entry_id IS NOT NULL);


--
-- Name: job_finished; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX job_finished ON public.job USING btree (finished_at) WHERE (finished_at IS NOT NULL);


--
-- Name: job_owner; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX job_owner ON public.job USING btree (owner_id, id);


--
-- Name: job_owner_state; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX job_owner_state ON public.job USING btree (owner_id, state, id);


--
-- Name: job_result_expiry; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX job_result_expiry ON public.job USING btree (result_expires_at) WHERE (result_place = 'row'::text);


--
-- Name: job_session; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX job_session ON public.job USING btree (session_id) WHERE (session_id IS NOT NULL);


--
-- Name: job_settle; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX job_settle ON public.job USING btree (settle_at) WHERE (settle_at IS NOT NULL);


--
-- Name: place_due; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX place_due ON public.place USING btree (lane, due_at);


--
-- Name: place_flow; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX place_flow ON public.place USING btree (lane, owner_id, weight, due_at);


--
-- Name: place_job; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX place_job ON public.place USING btree (job_id);


--
-- Name: place_key; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX place_key ON public.place USING btree (owner_id, lane, idempotency_key) WHERE (idempotency_key IS NOT NULL);


--
-- Name: place_told; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX place_told ON public.place USING btree (told_at);


--
-- Name: procrastinate_events_job_id_fkey_v1; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX procrastinate_events_job_id_fkey_v1 ON public.procrastinate_events USING btree (job_id);


--
-- Name: procrastinate_jobs_id_lock_idx_v1; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX procrastinate_jobs_id_lock_idx_v1 ON public.procrastinate_jobs USING btree (id, lock) WHERE (status = ANY (ARRAY['todo'::public.procrastinate_job_status, 'doing'::public.procrastinate_job_status]));


--
-- Name: procrastinate_jobs_lock_idx_v1; Type: INDEX; Schema: public; Owner: -
--

CREATE UNIQUE INDEX procrastinate_jobs_lock_idx_v1 ON public.procrastinate_jobs USING btree (lock) WHERE (status = 'doing'::public.procrastinate_job_status);


--
-- Name: procrastinate_jobs_priority_idx_v1; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX procrastinate_jobs_priority_idx_v1 ON public.procrastinate_jobs USING btree (priority DESC, id) WHERE (status = 'todo'::public.procrastinate_job_status);


--
-- Name: procrastinate_jobs_queue_name_idx_v1; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX procrastinate_jobs_queue_name_idx_v1 ON public.procrastinate_jobs USING btree (queue_name);


--
-- Name: procrastinate_jobs_queueing_lock_idx_v1; Type: INDEX; Schema: public; Owner: -
--

CREATE UNIQUE INDEX procrastinate_jobs_queueing_lock_idx_v1 ON public.procrastinate_jobs USING btree (queueing_lock) WHERE (status = 'todo'::public.procrastinate_job_status);


--
-- Name: procrastinate_periodic_defers_job_id_fkey_v1; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX procrastinate_periodic_defers_job_id_fkey_v1 ON public.procrastinate_periodic_defers USING btree (job_id);


--
-- Name: runner_lock; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX runner_lock ON public.runner USING btree (public.session_lock_v1(id));


--
-- Name: runner_request_open; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX runner_request_open ON public.runner_request USING btree (runner_id, asked_at) WHERE (answered_at IS NULL);


--
-- Name: procrastinate_jobs procrastinate_jobs_notify_queue_job_aborted_v1; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER procrastinate_jobs_notify_queue_job_aborted_v1 AFTER UPDATE OF abort_requested ON public.procrastinate_jobs FOR EACH ROW WHEN (((old.abort_requested = false) AND (new.abort_requested = true) AND (new.status = 'doing'::public.procrastinate_job_status))) EXECUTE FUNCTION public.procrastinate_notify_queue_abort_job_v1();


--
-- Name: procrastinate_jobs procrastinate_jobs_notify_queue_job_inserted_v1; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER procrastinate_jobs_notify_queue_job_inserted_v1 AFTER INSERT ON public.procrastinate_jobs FOR EACH ROW WHEN ((new.status = 'todo'::public.procrastinate_job_status)) EXECUTE FUNCTION public.procrastinate_notify_queue_job_inserted_v1();


--
-- Name: procrastinate_jobs procrastinate_trigger_abort_requested_events_v1; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER procrastinate_trigger_abort_requested_events_v1 AFTER UPDATE OF abort_requested ON public.procrastinate_jobs FOR EACH ROW WHEN ((new.abort_requested = true)) EXECUTE FUNCTION public.procrastinate_trigger_abort_requested_events_procedure_v1();


--
-- Name: procrastinate_jobs procrastinate_trigger_delete_jobs_v1; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER procrastinate_trigger_delete_jobs_v1 BEFORE DELETE ON public.procrastinate_jobs FOR EACH ROW EXECUTE FUNCTION public.procrastinate_unlink_periodic_defers_v1();


--
-- Name: procrastinate_jobs procrastinate_trigger_scheduled_events_v1; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER procrastinate_trigger_scheduled_events_v1 AFTER INSERT OR UPDATE ON public.procrastinate_jobs FOR EACH ROW WHEN (((new.scheduled_at IS NOT NULL) AND (new.status = 'todo'::public.procrastinate_job_status))) EXECUTE FUNCTION public.procrastinate_trigger_function_scheduled_events_v1();


--
-- Name: procrastinate_jobs procrastinate_trigger_status_events_insert_v1; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER procrastinate_trigger_status_events_insert_v1 AFTER INSERT ON public.procrastinate_jobs FOR EACH ROW WHEN ((new.status = 'todo'::public.procrastinate_job_status)) EXECUTE FUNCTION public.procrastinate_trigger_function_status_events_insert_v1();


--
-- Name: procrastinate_jobs procrastinate_trigger_status_events_update_v1; Type: TRIGGER; Schema: public; Owner: -
--

CREATE TRIGGER procrastinate_trigger_status_events_update_v1 AFTER UPDATE OF status ON public.procrastinate_jobs FOR EACH ROW EXECUTE FUNCTION public.procrastinate_trigger_function_status_events_update_v1();


--
-- Name: api_key api_key_owner_id_fkey; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.api_key
    ADD CONSTRAINT api_key_owner_id_fkey FOREIGN KEY (owner_id) REFERENCES public.owner(id);


--
-- Name: batch batch_owner_id_fkey; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.batch
    ADD CONSTRAINT batch_owner_id_fkey FOREIGN KEY (owner_id) REFERENCES public.owner(id);


--
-- Name: idempotency idempotency_owner_id_fkey; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.idempotency
    ADD CONSTRAINT idempotency_owner_id_fkey FOREIGN KEY (owner_id) REFERENCES public.owner(id);


--
-- Name: job job_batch_id_fkey; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.job
    ADD CONSTRAINT job_batch_id_fkey FOREIGN KEY (batch_id) REFERENCES public.batch(id);


--
-- Name: job job_owner_id_fkey; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.job
    ADD CONSTRAINT job_owner_id_fkey FOREIGN KEY (owner_id) REFERENCES public.owner(id);


--
-- Name: lane_owner lane_owner_lane_fkey; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.lane_owner
    ADD CONSTRAINT lane_owner_lane_fkey FOREIGN KEY (lane) REFERENCES public.lane(name);


--
-- Name: lane_owner lane_owner_owner_id_fkey; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.lane_owner
    ADD CONSTRAINT lane_owner_owner_id_fkey FOREIGN KEY (owner_id) REFERENCES public.owner(id);


--
-- Name: owner_load owner_load_owner_id_fkey; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.owner_load
    ADD CONSTRAINT owner_load_owner_id_fkey FOREIGN KEY (owner_id) REFERENCES public.owner(id);


--
-- Name: procrastinate_events procrastinate_events_job_id_fkey; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.procrastinate_events
    ADD CONSTRAINT procrastinate_events_job_id_fkey FOREIGN KEY (job_id) REFERENCES public.procrastinate_jobs(id) ON DELETE CASCADE;


--
-- Name: procrastinate_jobs procrastinate_jobs_worker_id_fkey; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.procrastinate_jobs
    ADD CONSTRAINT procrastinate_jobs_worker_id_fkey FOREIGN KEY (worker_id) REFERENCES public.procrastinate_workers(id) ON DELETE SET NULL;


--
-- Name: procrastinate_periodic_defers procrastinate_periodic_defers_job_id_fkey; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.procrastinate_periodic_defers
    ADD CONSTRAINT procrastinate_periodic_defers_job_id_fkey FOREIGN KEY (job_id) REFERENCES public.procrastinate_jobs(id);


--
-- Name: runner_report runner_report_runner_id_fkey; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.runner_report
    ADD CONSTRAINT runner_report_runner_id_fkey FOREIGN KEY (runner_id) REFERENCES public.runner(id) ON DELETE CASCADE;


--
-- PostgreSQL database dump complete
--

\unrestrict headrace

