-- Jobs that expire before they start are counted as demand: once each, whoever moves them on.

-- What has expired, and isn't in usage_minute yet: written by the transaction that ends the jobs, taken from
-- here by the one that adds it there, so none is lost and none counts twice. Nobody waits for a row of it. In
-- usage_minute itself all expiries of a minute would wait for one row, and for whoever adds to its hour.
-- `cost` and `bucket` are those of usage_minute, of the jobs' cost and of the seconds that they waited.
CREATE TABLE usage_expired (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    function text NOT NULL,
    cost bigint NOT NULL CHECK (cost >= 0),
    bucket integer NOT NULL,
    number bigint NOT NULL CHECK (number > 0),
    total double precision NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- As cost_bucket in headrace.histograms: the power of two that a cost doesn't exceed, from 1, at most 2^40; 0
-- where there is none. By digits, as logarithms are off at powers of two.
CREATE FUNCTION cost_bucket_v1(p_cost double precision)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_cost <= 0 THEN 0 WHEN p_cost >= 1::bigint << 40 THEN 1::bigint << 40
        ELSE 1::bigint << length(ltrim((ceil(p_cost)::bigint - 1)::bit(40)::text, '0')) END
$$;

-- As Histogram.observe in headrace.histograms: the bucket of a value. The summand keeps the logarithm of a
-- power of two from falling short of its bucket.
CREATE FUNCTION value_bucket_v1(p_value double precision)
RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN p_value > power(2, -20)
        THEN least(127, floor(4 * ln(p_value) / ln(2::double precision) + 1e-9))::integer ELSE -80 END
$$;

-- As expire_v1, and counted.
CREATE FUNCTION expire_v2(p_ids uuid[], p_actor text)
RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
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

-- As settle_one_v1, with expire_v2.
CREATE FUNCTION settle_one_v2(p_job job, p_reap boolean, p_actor text)
RETURNS text LANGUAGE plpgsql AS $$
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

-- As settle_job_v1, with settle_one_v2.
CREATE FUNCTION settle_job_v2(p_id uuid, p_actor text)
RETURNS boolean LANGUAGE plpgsql AS $$
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

-- As settle_v1, with expire_v2 and settle_one_v2.
CREATE FUNCTION settle_v2(p_actor text, p_reap_until timestamptz, p_limit integer)
RETURNS TABLE (
    now timestamptz, expired integer, failed integer, cancelled integer, requeued integer
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
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

-- Adds what has expired to its minutes, at most p_limit rows of it, the oldest first; returns how many.
CREATE FUNCTION add_expired_v1(p_limit integer)
RETURNS integer LANGUAGE plpgsql AS $$
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
