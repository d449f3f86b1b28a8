-- How fast lanes drain.

-- As claim_v1, and what is started is counted, in a row of the session's own: nobody waits for it. That a
-- claim came short is written a few times a second at most, so that runners that look in vain write next to
-- nothing.
CREATE FUNCTION claim_v2(
    p_session_id uuid, p_claim_id uuid, p_functions text[], p_interfaces text[], p_groups integer[],
    p_expected_s double precision[], p_free integer[], p_lease_s double precision, p_alone integer
)
RETURNS TABLE (
    job_id uuid, token uuid, attempt integer, charged integer, function text, input bytea, owner_id uuid,
    remaining_s double precision, waited_s double precision, request_id text, traceparent text, alone boolean
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
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

-- Of live runners that don't drain: the lanes of their jobs.
CREATE FUNCTION live_runners_v1()
RETURNS TABLE (id uuid, interfaces jsonb, report bytea) LANGUAGE sql STABLE AS $$
    SELECT u.id, u.interfaces, r.report FROM runner u LEFT JOIN runner_report r ON r.runner_id = u.id
    WHERE u.left_at IS NULL AND NOT u.draining AND u.seen_at > clock_timestamp() - runner_silence_v1()
$$;

-- A rate that one can reckon with.
CREATE FUNCTION bounded_rate_v1(p_rate double precision)
RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_rate IS NOT NULL THEN least(greatest(p_rate, 1e-9), 1e12) END
$$;

-- The rates of lanes as live runners report them: work that their slots do in a second; NULL where they
-- can't tell yet. Of costed inputs by the time for a cost of 1, of others by an execution's. `is_counted`:
-- the runner claims by claim_v2; what one of an older release starts isn't known.
CREATE FUNCTION reported_rates_v1()
RETURNS TABLE (lane text, slots double precision, rate double precision, is_counted boolean)
LANGUAGE plpgsql STABLE AS $$
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

-- Whether jobs of a lane wait that a live runner could start now: not those whose retry isn't due, nor
-- those of an interface that nobody serves. Where no runner tells of the lane, all are taken to be such.
CREATE FUNCTION is_backlogged_v1(p_lane text)
RETURNS boolean LANGUAGE plpgsql STABLE AS $$
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

-- What is measured of a lane since the last look. Only spans count in which jobs waited all the time, and
-- no claim came short (idle runners look each second), as in others it is their arrival that is measured.
-- Older ones count for less, by 20 s or 300 starts, whichever is longer: fewer starts would tell more of
-- chance than of the rate. Where slots come or go, what was measured is taken in proportion, and soon
-- replaced.
--
-- The first starts fill the slots: only from then on is counted. Time without a start is counted when one
-- comes. After a stall, such as that of a model that loads, a new run begins; if its first starts come twice
-- as fast as what is measured, they replace it.
CREATE FUNCTION measured_v1(p_pace lane_pace, p_is_served boolean, p_short_at timestamptz, p_before lane_pace)
RETURNS lane_pace LANGUAGE plpgsql IMMUTABLE AS $$
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

-- Takes starts, and the time before them, into what is measured.
CREATE FUNCTION with_starts_v1(p_pace lane_pace, p_starts double precision, p_work double precision)
RETURNS lane_pace LANGUAGE plpgsql IMMUTABLE AS $$
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

-- Forgets places that nobody came back with, and has their lines' shares fall. A lane whose lines are locked
-- is left to the next time.
CREATE FUNCTION expire_places_v1()
RETURNS void LANGUAGE plpgsql AS $$
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

-- What a look finds of a lane. p_reported: what live runners report together, NULL for one that none does;
-- p_started: the sums of lane_started.
CREATE FUNCTION lane_pace_v1(
    p_lane text, p_slots double precision, p_reported double precision, p_is_served boolean,
    p_is_counted boolean, p_started lane_started, p_before lane_pace
)
RETURNS lane_pace LANGUAGE plpgsql STABLE AS $$
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

-- Writes what a look found, unless all is as it was: an idle lane costs no writes.
CREATE FUNCTION keep_pace_v1(p_pace lane_pace, p_before lane_pace)
RETURNS void LANGUAGE plpgsql AS $$
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

-- Forgets rows of sessions that have ended, with what they count for.
CREATE FUNCTION forget_sessions_v1()
RETURNS void LANGUAGE sql AS $$
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

-- Looks at what waits in each lane, at what was started and at what runners report; forgets places whose
-- time is over. For the loop of maintenance: it waits for nobody. False where it was done less than p_every_s
-- ago, or another process is at it. A lane whose numbers can't be reckoned with has no rate; the others do.
CREATE FUNCTION refresh_lanes_v1(p_every_s double precision)
RETURNS boolean LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
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

-- The lanes at a glance; none where nobody has looked at them of late. `line_s`: seconds to the end of the
-- longest line; 0: there is none.
CREATE FUNCTION lanes_v1()
RETURNS TABLE (
    name text, waiting integer, waiting_cost double precision, rate double precision, is_measured boolean,
    places integer, line_s double precision
)
LANGUAGE sql STABLE AS $$
    SELECT p.lane, p.waiting, p.waiting_work, p.rate, p.is_measured, coalesce(o.places, 0)::integer,
        coalesce(greatest(extract(epoch FROM o.end_at - clock_timestamp()), 0), 0)::double precision
    FROM lane_pace p LEFT JOIN (
        SELECT c.lane, count(*) AS places, max(c.due_at) AS end_at FROM place c
        WHERE c.told_at >= clock_timestamp() - place_late_v1() GROUP BY c.lane
    ) AS o ON o.lane = p.lane
    WHERE EXISTS (SELECT FROM lane_look l WHERE l.at > clock_timestamp() - interval '10 seconds')
    ORDER BY p.lane
$$;
