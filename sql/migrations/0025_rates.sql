-- How fast lanes drain.

-- As claim_v1, and what is started is counted, in a row of the session's own: nobody waits for it. `short_at`
-- is written a few times a second at most, so that runners that look in vain write next to nothing.
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
    INSERT INTO lane_started AS s (lane, session_id, starts, work, at)
    SELECT u.name, p_session_id, sum(u.starts), sum(u.work), v_now
    FROM unnest(p_functions, v_starts, v_works) AS u (name, starts, work)
    WHERE u.starts > 0 GROUP BY u.name
    ON CONFLICT (lane, session_id) DO UPDATE
    SET starts = s.starts + excluded.starts, work = s.work + excluded.work, at = excluded.at;
    UPDATE lane_started s SET short_at = v_now
    WHERE s.lane = ANY (v_short) AND s.session_id = p_session_id
        AND (s.short_at IS NULL OR s.short_at < v_now - interval '0.2 seconds');
END;
$$;

-- The rates of lanes as live runners report them: work that their slots do in a second; NULL where they
-- can't tell yet. Of costed inputs by the time for a cost of 1, of others by an execution's.
CREATE FUNCTION reported_rates_v1()
RETURNS TABLE (lane text, slots double precision, rate double precision)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_report bytea;
BEGIN
    FOR v_report IN
        SELECT r.report FROM runner_report r JOIN runner u ON u.id = r.runner_id
        WHERE u.left_at IS NULL AND NOT u.draining AND u.seen_at > clock_timestamp() - runner_silence_v1()
    LOOP
        BEGIN
            RETURN QUERY
            SELECT c.name, c.slots, c.slots / nullif(coalesce(nullif(c.cost_s, 0), c.mean_s), 0)
            FROM (
                SELECT e.key AS name, (e.value ->> 'slots')::double precision AS slots,
                    (e.value ->> 'cost_s')::double precision AS cost_s,
                    (e.value ->> 'mean_s')::double precision AS mean_s
                FROM json_each(convert_from(v_report, 'UTF8')::json -> 'functions') AS e
            ) AS c WHERE c.slots > 0;
        EXCEPTION WHEN data_exception OR invalid_text_representation OR untranslatable_character THEN
            NULL; -- another version's, or with a character that Postgres' text can't hold
        END;
    END LOOP;
END;
$$;

-- What is measured of a lane since the last look. Only spans count in which jobs waited all the time, as in
-- others it is their arrival that is measured; older ones count for less, by 20 s or 300 starts, whichever is
-- longer: fewer starts would tell more of chance than of the rate. Where slots come or go, what was measured
-- is taken in proportion, and soon replaced.
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
    ELSE
        p_pace.slots := coalesce(p_before.slots, p_pace.slots); -- many small changes are a large one
    END IF;
    p_pace.span_s := v_kept * p_before.span_s;
    p_pace.span_starts := v_kept * p_before.span_starts;
    p_pace.span_work := v_kept * p_before.span_work;
    p_pace.measured_at := p_before.measured_at;
    IF v_s BETWEEN 0.001 AND 10 AND p_before.waiting > 0 AND p_pace.waiting > 0 AND v_starts >= 0
        AND (p_is_served OR v_starts > 0) AND coalesce(p_short_at < p_before.refreshed_at, true) THEN
        v_kept := exp(-v_s / least(greatest(20, 300 * p_pace.span_s / nullif(p_pace.span_starts, 0)), 600));
        p_pace.span_s := v_kept * p_pace.span_s + v_s;
        p_pace.span_starts := v_kept * p_pace.span_starts + v_starts;
        p_pace.span_work := v_kept * p_pace.span_work + p_pace.work - p_before.work;
        p_pace.measured_at := p_pace.refreshed_at;
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
        UPDATE line n SET share = greatest(0.05, n.share * 0.9 ^ g.places), used_at = v_now
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

-- Looks at what waits in each lane, at what was started and at what runners report; forgets places whose
-- time is over. For the loop of maintenance: it waits for nobody. False where it was done less than p_every_s
-- ago, or another process is at it.
CREATE FUNCTION refresh_lanes_v1(p_every_s double precision)
RETURNS boolean LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_found record;
    v_before lane_pace;
    v_pace lane_pace;
    v_is_measured boolean;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('headrace.refresh', 0)) OR EXISTS (
        SELECT FROM lane_pace p
        WHERE p.refreshed_at BETWEEN v_now - make_interval(secs => p_every_s) AND v_now) THEN
        RETURN false;
    END IF;
    FOR v_found IN
        WITH reported AS MATERIALIZED (
            SELECT r.lane, sum(r.slots) AS slots, sum(r.rate) AS rate
            FROM reported_rates_v1() r GROUP BY r.lane
        ), started AS MATERIALIZED (
            SELECT s.lane, sum(s.starts)::bigint AS starts, sum(s.work) AS work, max(s.short_at) AS short_at,
                max(s.at) AS at
            FROM lane_started s GROUP BY s.lane
        )
        SELECT n.name, r.lane IS NOT NULL AS is_served, r.slots, r.rate, coalesce(s.starts, 0) AS starts,
            coalesce(s.work, 0) AS work, s.short_at, s.at, b.waiting, b.work AS waiting_work
        FROM (SELECT l.name FROM lane l UNION SELECT r.lane FROM reported r) AS n
            LEFT JOIN reported r ON r.lane = n.name LEFT JOIN started s ON s.lane = n.name
            CROSS JOIN LATERAL lane_backlog_v1(n.name, 2147483647, NULL, NULL) AS b
        ORDER BY n.name
    LOOP
        SELECT p.* INTO v_before FROM lane_pace p WHERE p.lane = v_found.name;
        v_pace.lane := v_found.name;
        v_pace.waiting := v_found.waiting;
        v_pace.waiting_work := v_found.waiting_work;
        v_pace.slots := v_found.slots;
        v_pace.starts := v_found.starts;
        v_pace.work := v_found.work;
        v_pace.span_s := 0;
        v_pace.span_starts := 0;
        v_pace.span_work := 0;
        v_pace.measured_at := NULL;
        v_pace.refreshed_at := clock_timestamp();
        IF v_before.lane IS NOT NULL THEN
            v_pace := measured_v1(v_pace, v_found.is_served, v_found.short_at, v_before);
        END IF;
        -- A little low: whoever is told a little late finds room, whoever is told early doesn't.
        v_pace.is_measured := v_pace.span_starts >= 4
            AND v_pace.measured_at > v_now - interval '10 minutes'
            AND (v_found.is_served OR v_found.at > v_now - interval '30 seconds');
        v_pace.is_measured := coalesce(v_pace.is_measured, false);
        v_pace.rate := 0.95 * CASE WHEN v_pace.is_measured
            THEN greatest(v_pace.span_work / v_pace.span_s, 1e-9) ELSE v_found.rate END;
        DELETE FROM lane_pace p WHERE p.lane = v_found.name;
        INSERT INTO lane_pace SELECT v_pace.*;
    END LOOP;
    DELETE FROM lane_pace p WHERE p.refreshed_at < v_now;
    -- Rows of sessions that have ended, with what they count for.
    WITH gone AS (
        DELETE FROM lane_started s WHERE (s.lane, s.session_id) IN (
            SELECT o.lane, o.session_id FROM lane_started o WHERE o.at < v_now - interval '1 hour'
            FOR UPDATE SKIP LOCKED)
        RETURNING s.lane, s.starts, s.work
    )
    UPDATE lane_pace p SET starts = p.starts - g.starts, work = p.work - g.work
    FROM (SELECT o.lane, sum(o.starts) AS starts, sum(o.work) AS work FROM gone o GROUP BY o.lane) AS g
    WHERE p.lane = g.lane;
    PERFORM expire_places_v1();
    RETURN true;
END;
$$;

-- The lanes at a glance. `line_s`: seconds to the end of the longest line; 0: there is none.
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
    ORDER BY p.lane
$$;
