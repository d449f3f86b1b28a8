-- A runner that left stays known for a week: a job of a function that no runner serves now is accepted when
-- one did within the time that the job may wait.

ALTER TABLE runner ADD COLUMN left_at timestamptz;

-- As register_runner_v1, without forgetting others.
CREATE FUNCTION register_runner_v2(
    p_id uuid, p_address text, p_pool text, p_served jsonb, p_metrics_address text,
    p_names text[], p_interfaces text[], p_revisions text[], p_manifests bytea[]
)
RETURNS void LANGUAGE plpgsql AS $$
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

-- Its functions stay listed: another runner may come.
CREATE FUNCTION unregister_runner_v2(p_id uuid)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE runner SET left_at = clock_timestamp() WHERE id = p_id AND left_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('headrace_registry', 'runners');
    RETURN true;
END;
$$;

-- Forgets runners that have been silent for a week.
CREATE FUNCTION forget_runners_v1()
RETURNS integer LANGUAGE sql AS $$
    WITH forgotten AS (
        DELETE FROM runner WHERE seen_at < clock_timestamp() - interval '7 days' RETURNING id
    ) SELECT count(*)::integer FROM forgotten
$$;
