-- What runners can do at this moment, and how much was done and asked for: minute by minute for a week, hour
-- by hour for two years.

-- ---------------------------------------------------------------------- what runners report

-- A row of its own beside `runner`, which gateways read whole: this is larger, and changes more often. Lost
-- in a crash of Postgres, as each runner says it all again within a second. JSON as bytes: jsonb would refuse
-- \u0000.
CREATE UNLOGGED TABLE runner_report (
    runner_id uuid PRIMARY KEY REFERENCES runner (id) ON DELETE CASCADE,
    reported_at timestamptz NOT NULL,
    report bytea NOT NULL CHECK (octet_length(report) <= 1048576)
);

-- As heartbeat_v1, with a report; NULL: as before. `reported` says whether there is one now: where there is
-- none, the next heartbeat should bring it.
CREATE FUNCTION heartbeat_v2(p_id uuid, p_capacity jsonb, p_draining boolean, p_report bytea)
RETURNS TABLE (known boolean, reported boolean) LANGUAGE plpgsql AS $$
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

-- As unregister_runner_v2, and its report is gone.
CREATE FUNCTION unregister_runner_v3(p_id uuid)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    -- First, as in a heartbeat: locked the other way round, the two could deadlock.
    v_known boolean := unregister_runner_v2(p_id);
BEGIN
    DELETE FROM runner_report r WHERE r.runner_id = p_id;
    RETURN v_known;
END;
$$;

-- ---------------------------------------------------------------------- how much was done and asked for

-- Counts of one minute, from all processes together. `kind` is what was counted, `reason` why, where there
-- are several; `device` is cpu or cuda, and empty where no device is concerned; `cost` is the power of two
-- that the input's cost doesn't exceed, 0 where it has none. `buckets` has counts by bucket: the bounds are
-- fixed, and documented in headrace.histograms.
CREATE TABLE usage_minute (
    at timestamptz NOT NULL,
    function text NOT NULL,
    kind text NOT NULL CHECK (kind <> ''),
    reason text NOT NULL,
    device text NOT NULL,
    cost bigint NOT NULL CHECK (cost >= 0),
    number bigint NOT NULL CHECK (number > 0),
    total double precision NOT NULL,
    buckets jsonb NOT NULL CHECK (jsonb_typeof(buckets) = 'object'),
    PRIMARY KEY (at, function, kind, reason, device, cost)
);

-- The same of one hour.
CREATE TABLE usage_hour (
    at timestamptz NOT NULL,
    function text NOT NULL,
    kind text NOT NULL CHECK (kind <> ''),
    reason text NOT NULL,
    device text NOT NULL,
    cost bigint NOT NULL CHECK (cost >= 0),
    number bigint NOT NULL CHECK (number > 0),
    total double precision NOT NULL,
    buckets jsonb NOT NULL CHECK (jsonb_typeof(buckets) = 'object'),
    PRIMARY KEY (at, function, kind, reason, device, cost)
);

-- The last group of counts that each process has stored: sent again, as its reply was lost, it counts once.
CREATE TABLE usage_source (
    id uuid PRIMARY KEY,
    sequence bigint NOT NULL,
    seen_at timestamptz NOT NULL
);

-- Hours of which minutes have changed since they were summed up.
CREATE TABLE usage_changed (
    hour timestamptz PRIMARY KEY
);

-- Of two. Many are merged by the bucket, in one statement: a call for each row takes 40 us.
CREATE FUNCTION merge_buckets_v1(p_one jsonb, p_other jsonb)
RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(jsonb_object_agg(m.bucket, m.number), '{}') FROM (
        SELECT e.key AS bucket, sum(e.value::bigint) AS number FROM (
            SELECT o.key, o.value FROM jsonb_each_text(p_one) AS o
            UNION ALL
            SELECT o.key, o.value FROM jsonb_each_text(p_other) AS o
        ) AS e GROUP BY e.key
    ) AS m
$$;

-- Adds what a process has counted in minutes that are over. False: it had been added before.
CREATE FUNCTION add_usage_v1(p_source uuid, p_sequence bigint, p_counts jsonb)
RETURNS boolean LANGUAGE plpgsql AS $$
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

-- Sums up hours that are over and have changed, the oldest first, each anew from its minutes. An hour is left
-- to the next time while somebody adds to it. Returns how many it has summed up.
CREATE FUNCTION sum_usage_v1(p_limit integer)
RETURNS integer LANGUAGE plpgsql
SET jit = off SET enable_sort = off SET work_mem = '64MB'
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

-- Forgets minutes that are p_after_s old and summed up: whole rows of the oldest first, at most p_limit.
CREATE FUNCTION prune_usage_minutes_v1(p_after_s double precision, p_limit integer)
RETURNS integer LANGUAGE plpgsql AS $$
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

CREATE FUNCTION prune_usage_hours_v1(p_after_s double precision, p_limit integer)
RETURNS integer LANGUAGE plpgsql AS $$
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

-- Counts from p_since until before p_until: hours that are over from the hours, and minutes where those
-- aren't summed up yet or only parts of them are wanted. With p_step_s they come in steps of that length,
-- counted from 1970; NULL: all in one. Minutes by the minute and hours by the hour are passed on as they are;
-- others are merged, by hashing: sorting by names is several times slower.
CREATE FUNCTION read_usage_v1(
    p_function text, p_since timestamptz, p_until timestamptz, p_step_s double precision
)
RETURNS TABLE (
    at timestamptz, function text, kind text, reason text, device text, cost bigint,
    number bigint, total double precision, buckets jsonb
)
LANGUAGE plpgsql STABLE
SET jit = off SET enable_sort = off SET work_mem = '64MB'
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

-- ---------------------------------------------------------------------- models

-- What is asked of a runner beside a drain and a stack names a model or a function.
ALTER TABLE runner_request ADD COLUMN subject text CHECK (subject <> '');
ALTER TABLE runner_request DROP CONSTRAINT runner_request_kind_check;
ALTER TABLE runner_request ADD CONSTRAINT runner_request_kind_check
    CHECK (kind IN ('drain', 'stack', 'load', 'unload'));
ALTER TABLE runner_request ADD CONSTRAINT runner_request_subject_of_kind
    CHECK ((subject IS NOT NULL) = (kind IN ('load', 'unload')));

-- As ask_runner_v1, of a model, or of all that a function uses.
CREATE FUNCTION ask_runner_v2(
    p_id uuid, p_runner_id uuid, p_kind text, p_job_id uuid, p_subject text, p_valid_s double precision,
    p_actor text
)
RETURNS void LANGUAGE plpgsql AS $$
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
