-- Forgetting what was kept long enough, a small batch at a time.
--
-- Nothing here touches what isn't final, and nothing waits: what somebody holds is left to the next time.
-- Each function returns how many it has forgotten; fewer than p_limit means that nothing else was to be had.
-- What is doomed is found and locked first, as an array, so that the plans are the same whatever the
-- statistics say; and time stands still meanwhile, as an index isn't searched for what changes from row to
-- row.

-- Results past their time. The job stays, and says that it had one.
CREATE FUNCTION prune_results_v1(p_limit integer)
RETURNS integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
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

-- Jobs that ended p_after_s ago, with their events. One whose result is still kept, or that an idempotency
-- key still stands for, stays as long as that.
CREATE FUNCTION prune_jobs_v1(p_after_s double precision, p_limit integer)
RETURNS integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
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

-- Idempotency keys past their time: whoever sends one again makes a new job.
CREATE FUNCTION prune_keys_v1(p_limit integer)
RETURNS integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
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

-- Batches that were submitted p_after_s ago and of which no job is left.
CREATE FUNCTION prune_batches_v1(p_after_s double precision, p_limit integer)
RETURNS integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
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

-- Flows whose last tag lies behind their lane's virtual time: a new one would start from there just the same.
CREATE FUNCTION prune_flows_v1(p_limit integer)
RETURNS integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET jit = off
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

-- What was noted p_after_s ago of who changed what. Only the oldest rows are looked at: their ids rise with
-- time.
CREATE FUNCTION prune_audit_v1(p_after_s double precision, p_limit integer)
RETURNS integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
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
