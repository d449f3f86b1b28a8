-- How much waits, without a count at each submission: up to 500 are counted; of more, a figure is kept, which
-- maintenance sets right several times a second. Nobody is refused by a kept number of jobs alone.

-- How many unfinished jobs an owner has, at most p_most.
CREATE FUNCTION outstanding_v1(p_owner_id uuid, p_most integer)
RETURNS integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
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

-- What a lane still takes: jobs, their cost, and the reason for which it takes none now. The arguments bound
-- what may wait in a lane that has no bounds of its own; NULL is no bound. Cost and age in a long lane are
-- those of the last count: looking at every job for each refusal would cost most when there is least time.
CREATE FUNCTION lane_room_v1(
    p_lane text, p_most integer, p_most_cost double precision, p_most_age_s double precision
)
RETURNS TABLE (room integer, room_cost double precision, refusal text)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
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

-- Sets right what is kept; what is very long, once a second. A command of its own, that waits for nobody: a
-- claim whose reply isn't read keeps its lane's row. False while another process is at it. p_with_cost: cost
-- and age are bounded in lanes that have no bounds of their own; where they aren't, no row need be read.
CREATE FUNCTION count_backlogs_v1(p_with_cost boolean)
RETURNS boolean LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
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
