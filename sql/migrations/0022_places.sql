-- Places in line: who is refused for want of room is told when there should be some, and has it kept.
--
-- What a job adds to its lane is its *work*: its cost as fairness counts it (tag_step_v1 at a weight of 1).
-- A lane's *rate* is the work of jobs that it starts in a second. Flows queue fairly, so each flow of a lane
-- has a *line* of its own: whoever is refused on purpose makes his own line longer.
--
-- Locks: jobs that are done again, keys, owner_load, then the lines' advisory locks in the order of lanes,
-- then rows of lane_owner in the order of flows. Rows of `line` and `place` are written only under the lock
-- of their lane's lines. Maintenance only tries these locks, and claims need none of them.

-- Unlogged, so that a refusal without a key waits for no disk; after a crash of Postgres everybody is fresh,
-- and the rates are those that runners report.

-- Work that each session has started in a lane, in all: a row that nobody else writes. `short_at`: when a
-- claim last brought less than it asked for; `at`: when it last brought something, or came short.
CREATE UNLOGGED TABLE lane_started (
    lane text NOT NULL,
    session_id uuid NOT NULL,
    starts bigint NOT NULL,
    work double precision NOT NULL,
    short_at timestamptz,
    at timestamptz NOT NULL,
    PRIMARY KEY (lane, session_id)
) WITH (fillfactor = 50);

-- What refresh_lanes_v1 knows of each lane; written by nobody else, and locked by nobody.
CREATE UNLOGGED TABLE lane_pace (
    lane text PRIMARY KEY,
    waiting integer NOT NULL,
    waiting_work double precision NOT NULL,
    -- Some of it could be started now.
    is_backlogged boolean NOT NULL DEFAULT false,
    -- Work a second, leaning a little low; NULL: nothing is known.
    rate double precision CHECK (rate > 0),
    is_measured boolean NOT NULL,
    -- Seconds in which jobs waited all the time, and what was started in them: older ones count for less.
    span_s double precision NOT NULL DEFAULT 0,
    span_starts double precision NOT NULL DEFAULT 0,
    span_work double precision NOT NULL DEFAULT 0,
    -- There have been starts in this backlog, or what came before is known; and seconds since the last.
    has_begun boolean NOT NULL DEFAULT false,
    gap_s double precision NOT NULL DEFAULT 0,
    -- The same as of the span, since the last stall.
    run_s double precision NOT NULL DEFAULT 0,
    run_starts double precision NOT NULL DEFAULT 0,
    run_work double precision NOT NULL DEFAULT 0,
    measured_at timestamptz,
    -- Of live runners.
    slots double precision,
    -- The sums of lane_started at the last look.
    starts bigint NOT NULL,
    work double precision NOT NULL,
    refreshed_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- When refresh_lanes_v1 last looked.
CREATE UNLOGGED TABLE lane_look (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- The line of a flow. `share`: how many of its places are used, of late.
CREATE UNLOGGED TABLE line (
    lane text NOT NULL,
    owner_id uuid NOT NULL,
    weight double precision NOT NULL,
    share double precision NOT NULL DEFAULT 1 CHECK (share BETWEEN 0.05 AND 1),
    used_at timestamptz NOT NULL,
    PRIMARY KEY (lane, owner_id, weight)
) WITH (fillfactor = 50);

-- A place: good for one call, from a second before `due_at` to five seconds after `told_at`, which is what
-- its owner was told. The id is random, so nobody else knows it.
CREATE UNLOGGED TABLE place (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    lane text NOT NULL,
    owner_id uuid NOT NULL,
    weight double precision NOT NULL,
    cost double precision NOT NULL CHECK (cost = 0 OR cost >= 1e-9),
    idempotency_key text,
    -- The refused one's: whoever didn't hear of the refusal submits it again.
    job_id uuid NOT NULL,
    -- Of who came back when told, and was refused all the same.
    in_front boolean NOT NULL,
    -- Given for want of room in the lane; otherwise for the time that its call could wait, `limit_s`: whoever
    -- wants an answer at once is refused at any time, and must not narrow the lane for others.
    for_room boolean NOT NULL,
    limit_s double precision NOT NULL,
    due_at timestamptz NOT NULL,
    told_at timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

CREATE INDEX place_due ON place (lane, due_at);
CREATE INDEX place_flow ON place (lane, owner_id, weight, due_at);
CREATE INDEX place_key ON place (owner_id, lane, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX place_job ON place (job_id);
CREATE INDEX place_told ON place (told_at);

CREATE FUNCTION work_v1(p_cost double precision)
RETURNS double precision LANGUAGE sql IMMUTABLE AS $$ SELECT tag_step_v1(p_cost, 1) $$;

-- Costs as they are kept: products and quotients of what is tiny would underflow, which is an error.
CREATE FUNCTION costs_v1(p_costs double precision[])
RETURNS double precision[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY(SELECT CASE WHEN u.cost BETWEEN 0 AND 1e-9 THEN 0 ELSE u.cost END
        FROM unnest(p_costs) WITH ORDINALITY AS u (cost, n) ORDER BY u.n)
$$;

-- Before and after what it was told, a place is good for so long.
CREATE FUNCTION place_early_v1() RETURNS interval LANGUAGE sql IMMUTABLE AS $$ SELECT interval '1 second' $$;
CREATE FUNCTION place_late_v1() RETURNS interval LANGUAGE sql IMMUTABLE AS $$ SELECT interval '5 seconds' $$;

CREATE FUNCTION line_lock_v1(p_lane text)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT hashtextextended('headrace.line.' || p_lane, 0) $$;

-- ---------------------------------------------------------------------- what is in front of a job

-- A lane as a submission sees it: what waits, what may, and what is kept for those who have places.
CREATE TYPE lane_state AS (
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
    -- Somebody has one for want of room; what is kept for those that are due now, or within a second.
    is_lined boolean,
    kept double precision,
    kept_cost double precision,
    -- Its jobs are looked at one by one.
    is_scarce boolean
);

-- A flow as a submission sees it: its share of the rate, and the work ahead at the tags of the first of its
-- jobs in the submission and behind the last.
CREATE TYPE flow_state AS (
    owner_id uuid,
    weight double precision,
    rate double precision,
    tag double precision,
    first_tag double precision,
    first_ahead double precision,
    last_tag double precision,
    last_ahead double precision,
    -- Its line.
    share double precision,
    end_at timestamptz,
    front_at timestamptz,
    places bigint,
    -- Places of its owner in the lane, in all his flows.
    owned bigint,
    -- The longest time that one of them allows.
    limit_s double precision,
    -- Work of all its places, and of those that are due: as much of it as comes back.
    line_work double precision,
    kept_work double precision
);

-- Work in a lane that comes before a job with each of the tags: of each flow what lies before the tag. Of
-- its own flow that is all, once the tag is reserved. Tags tell it without a look at the jobs; but of what
-- has expired or was cancelled they know nothing, so it is at most what waits. One pass over the flows,
-- however many tags.
CREATE FUNCTION aheads_v1(p_lane text, p_tags double precision[])
RETURNS double precision[] LANGUAGE plpgsql STABLE AS $$
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

-- What waits in a lane: counted up to 500 jobs, and up to a bound of at most 5,000; of more, what is kept,
-- as in lane_room_v1. p_most_cost and p_most_age_s, where they are bounds, have cost and age known there too;
-- otherwise those are estimated, and NULL.
CREATE FUNCTION lane_backlog_v1(
    p_lane text, p_most integer, p_most_cost double precision, p_most_age_s double precision
)
RETURNS TABLE (waiting integer, cost double precision, work double precision, oldest_at timestamptz)
LANGUAGE plpgsql STABLE AS $$
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

-- p_most, p_most_cost and p_most_age_s bound what waits in a lane that has no bounds of its own.
CREATE FUNCTION lane_state_v1(
    p_lane text, p_most integer, p_most_cost double precision, p_most_age_s double precision
)
RETURNS lane_state LANGUAGE plpgsql STABLE AS $$
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

-- Whether so many more jobs of such cost and work can't simply all be let in: some bound is near, also if
-- four such submissions are under way, or it is so small that it is cheap to keep to it strictly. p_least_s
-- is the shortest time that one of them may wait.
CREATE FUNCTION is_scarce_v1(
    p_lane lane_state, p_count double precision, p_cost double precision, p_work double precision,
    p_least_s double precision
)
RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_lane.is_lined OR p_lane.most <= 5000 OR p_lane.waiting + 4 * p_count > 0.8 * p_lane.most
        OR p_lane.cost + 4 * p_cost > 0.8 * p_lane.most_cost OR p_lane.age_s > 0.8 * p_lane.most_age_s
        OR coalesce((p_lane.work + p_work) / p_lane.rate > 0.5 * p_least_s, false)
$$;

-- The flows that a lane's rate is shared by: those with jobs that wait, or with places that are due. Where
-- many wait, their tags tell, which stay for a while after jobs that were cancelled.
CREATE FUNCTION active_flows_v1(p_lane lane_state)
RETURNS TABLE (owner_id uuid, weight double precision) LANGUAGE plpgsql STABLE AS $$
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

-- A row for each of the flows, in their order. The arrays are parallel; p_works is the work of the
-- submission's jobs of the flow together. What others wait for is read once for all.
CREATE FUNCTION flow_states_v1(
    p_lane lane_state, p_owner_ids uuid[], p_weights double precision[], p_works double precision[]
)
RETURNS SETOF flow_state LANGUAGE plpgsql STABLE AS $$
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

-- A flow with what is known of its line.
CREATE FUNCTION with_line_v1(p_lane lane_state, p_flow flow_state)
RETURNS flow_state LANGUAGE plpgsql STABLE AS $$
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

-- The work ahead of the flow's next job: between two tags, in proportion.
CREATE FUNCTION ahead_of_next_v1(p_lane lane_state, p_flow flow_state)
RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT least(p_lane.work, p_flow.first_ahead + CASE WHEN p_flow.last_tag > p_flow.first_tag
        THEN (p_flow.last_ahead - p_flow.first_ahead) * (p_flow.tag - p_flow.first_tag)
            / (p_flow.last_tag - p_flow.first_tag) ELSE 0 END)
$$;
