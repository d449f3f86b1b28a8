-- What operators do beyond single jobs: bounds of a lane, functions taken out of service, many jobs at a
-- time.

-- Dead letters, what ended without a result and wasn't done again: an owner's, and everybody's.
CREATE INDEX job_dead ON job (owner_id, id) WHERE state IN ('failed', 'expired') AND retried_as IS NULL;
CREATE INDEX job_all_dead ON job (id) WHERE state IN ('failed', 'expired') AND retried_as IS NULL;

-- True when the function was in service and now isn't.
CREATE FUNCTION retire_function_v2(p_name text, p_actor text)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF NOT retire_function_v1(p_name) THEN
        RETURN false;
    END IF;
    PERFORM audit_v1(p_actor, 'function.retire', p_name, '{}');
    RETURN true;
END;
$$;

-- p_changes holds new values by column: most_waiting, most_cost, most_age_s; NULL goes back to the site's
-- setting. What isn't in it stays. False when there is no such function.
CREATE FUNCTION set_lane_v1(p_name text, p_changes jsonb, p_actor text)
RETURNS boolean LANGUAGE plpgsql AS $$
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

-- The audit's entry of jobs that a command for many has just changed: an owner may ask long after they are
-- forgotten.
CREATE FUNCTION audit_jobs_v1(p_actor text, p_action text, p_command_id uuid, p_ids uuid[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(p_ids) > 0 THEN
        PERFORM audit_v1(p_actor, p_action, p_command_id::text,
            jsonb_build_object('stage', 'goes on', 'job_ids', p_ids));
    END IF;
END;
$$;

-- Cancels those that aren't finished, as an owner's cancel does. Returns how many it changed.
CREATE FUNCTION cancel_jobs_v1(p_ids uuid[], p_actor text, p_command_id uuid)
RETURNS integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
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

-- Puts those that wait in one lane into another: behind what their flows have there, in the order that they
-- had. What else was promised of them stays: deadlines, attempts, cost, when a retry is due. Left alone are
-- jobs that don't wait there any more, and those whose interface isn't the other function's. Returns how many
-- it moved.
CREATE FUNCTION move_v1(p_ids uuid[], p_from text, p_to text, p_actor text, p_command_id uuid)
RETURNS integer LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
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

-- The jobs that a command is for, by p_kind: `cancel`, those that aren't finished; `retry`, dead letters, or
-- cancelled ones where that state is asked for; `move`, those that wait. Of them, those that pass each filter
-- that isn't NULL. One plain query, so that it becomes part of the query that asks: as long as no argument is
-- volatile.
CREATE FUNCTION selected_jobs_v1(
    p_kind text, p_function text, p_interface text, p_owner_id uuid, p_state text, p_category text,
    p_batch_id uuid, p_before timestamptz, p_after uuid
)
RETURNS SETOF job LANGUAGE sql STABLE AS $$
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
