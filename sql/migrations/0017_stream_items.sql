-- What the functions of jobs yield while they run, kept for whoever follows a job or comes back to it.
--
-- Items take their numbers from the job's `sequence`, as its events and its progress do: so one number says
-- what a reader has, whatever it was. The items of one attempt are kept at a time, the present one's or the
-- last one's; while a job waits for another start, its readers see none. They are forgotten with the result,
-- or, where there is none, with the job.

-- A row for each group that was written at once. No foreign key, as with job_event: a group is written by the
-- statement that holds the job's row.
CREATE TABLE job_items (
    job_id uuid NOT NULL,
    -- The number of the group's last item; those before it have the numbers before it.
    sequence integer NOT NULL CHECK (sequence > 0),
    attempt integer NOT NULL CHECK (attempt > 0),
    -- How many items of this attempt there are up to here.
    number integer NOT NULL CHECK (number > 0),
    bytes bigint NOT NULL CHECK (bytes > 0),
    items bytea[] NOT NULL CHECK (cardinality(items) BETWEEN 1 AND number),
    PRIMARY KEY (job_id, sequence)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05,
    toast.autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_threshold = 1000
);

-- Adds groups of items to what running jobs have yielded; at most one group of each job. The arrays p_ids,
-- p_tokens, p_attempts, p_before and p_counts are parallel: p_before is how many items of the attempt come
-- before the group, p_counts how many of p_items are its own. Items that are there already, as the reply to
-- their writing was lost, aren't written again. The first of an attempt take the place of what an earlier one
-- has yielded.
--
-- A row for each job: `written`; `lost`: it isn't the runner's any more, or is about to be cancelled, and
-- nothing more of it will be taken; or `busy`: its row is locked, and isn't waited for, as all others would
-- wait too.
CREATE FUNCTION add_items_v1(
    p_ids uuid[], p_tokens uuid[], p_attempts integer[], p_before integer[], p_counts integer[],
    p_items bytea[]
)
RETURNS TABLE (job_id uuid, verdict text)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
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

-- As prune_results_v1, with the items that the results were made of.
CREATE FUNCTION prune_results_v2(p_limit integer)
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
    DELETE FROM job_items i WHERE i.job_id = ANY (v_ids);
    RETURN cardinality(v_ids);
END;
$$;

-- As prune_jobs_v1, with the items of those that have ended without a result.
CREATE FUNCTION prune_jobs_v2(p_after_s double precision, p_limit integer)
RETURNS integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
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

-- Items whose job is gone, of at most p_limit jobs: prune_jobs_v1 of a gateway of the last release leaves
-- them. Returns of how many. Such a job was p_after_s old at least. Ids begin with the time they were made
-- at, so those that came later needn't be looked at; of the others, a job is looked at once, not each group.
CREATE FUNCTION prune_items_v1(p_after_s double precision, p_limit integer)
RETURNS integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
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
