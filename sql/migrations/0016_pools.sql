-- A runner has a pool and labels; which functions it serves follows from both, and is its own business.

-- Value by key.
ALTER TABLE runner ADD COLUMN labels jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(labels) = 'object');

-- As register_runner_v2, with labels.
CREATE FUNCTION register_runner_v3(
    p_id uuid, p_address text, p_pool text, p_labels jsonb, p_served jsonb, p_metrics_address text,
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

    INSERT INTO runner AS r (id, address, pool, labels, interfaces, metrics_address, started_at, seen_at)
    VALUES (p_id, p_address, p_pool, p_labels, p_served, p_metrics_address, v_now, v_now)
    ON CONFLICT (id) DO UPDATE
    SET address = excluded.address, pool = excluded.pool, labels = excluded.labels,
        interfaces = excluded.interfaces, metrics_address = excluded.metrics_address, draining = false,
        seen_at = clock_timestamp(), left_at = NULL;
    PERFORM pg_notify('headrace_registry', 'runners');
END;
$$;
