-- What can be called, and who serves it. Payloads of headrace_registry: `functions` or `runners`.

CREATE TABLE function (
    name text PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_-]{0,39}$'),
    interface text NOT NULL CHECK (interface <> ''),
    revision text NOT NULL CHECK (revision <> ''),
    -- JSON as bytes: jsonb would reorder a schema's properties and refuse \u0000.
    manifest bytea NOT NULL,
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    retired_at timestamptz
);

CREATE TABLE runner (
    id uuid PRIMARY KEY,
    -- NULL: gateways can't dial it, it serves jobs only.
    address text CHECK (address ~ '^(tcp://.+:[0-9]+|unix:/.+)$'),
    pool text NOT NULL CHECK (pool <> ''),
    -- Interface hash by function name.
    interfaces jsonb NOT NULL CHECK (jsonb_typeof(interfaces) = 'object'),
    metrics_address text CHECK (metrics_address <> ''),
    capacity jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(capacity) = 'object'),
    draining boolean NOT NULL DEFAULT false,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE secret (
    name text PRIMARY KEY,
    value bytea NOT NULL CHECK (octet_length(value) = 32),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- How long a silent runner counts as alive. One place, so that nobody disagrees.
CREATE FUNCTION runner_silence_v1() RETURNS interval LANGUAGE sql IMMUTABLE AS $$ SELECT interval '10 seconds' $$;

-- The newest registration is what gateways serve; it also brings a retired function back.
-- True when that changed anything.
CREATE FUNCTION register_function_v1(p_name text, p_interface text, p_revision text, p_manifest bytea)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO function AS f (name, interface, revision, manifest)
    VALUES (p_name, p_interface, p_revision, p_manifest)
    ON CONFLICT (name) DO UPDATE
    SET interface = excluded.interface, revision = excluded.revision, manifest = excluded.manifest,
        registered_at = clock_timestamp(), retired_at = NULL
    WHERE f.retired_at IS NOT NULL OR f.manifest <> excluded.manifest
        OR f.interface <> excluded.interface OR f.revision <> excluded.revision;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('headrace_registry', 'functions');
    RETURN true;
END;
$$;

-- True when the function was in service and now isn't.
CREATE FUNCTION retire_function_v1(p_name text)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE function SET retired_at = clock_timestamp() WHERE name = p_name AND retired_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('headrace_registry', 'functions');
    RETURN true;
END;
$$;

-- A runner and its functions in one transaction. The four arrays are parallel, one entry a function.
CREATE FUNCTION register_runner_v1(
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

    DELETE FROM runner WHERE seen_at < v_now - interval '1 hour' AND id <> p_id;

    INSERT INTO runner AS r (id, address, pool, interfaces, metrics_address, started_at, seen_at)
    VALUES (p_id, p_address, p_pool, p_served, p_metrics_address, v_now, v_now)
    ON CONFLICT (id) DO UPDATE
    SET address = excluded.address, pool = excluded.pool, interfaces = excluded.interfaces,
        metrics_address = excluded.metrics_address, draining = false, seen_at = clock_timestamp();
    PERFORM pg_notify('headrace_registry', 'runners');
END;
$$;

-- False when the runner is unknown: it must register again. Tells gateways only what they can't see
-- themselves: that a runner drains, or that one they had given up lives after all.
CREATE FUNCTION heartbeat_v1(p_id uuid, p_capacity jsonb, p_draining boolean)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_before runner;
BEGIN
    SELECT * INTO v_before FROM runner WHERE id = p_id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE runner SET seen_at = clock_timestamp(), capacity = p_capacity, draining = p_draining WHERE id = p_id;
    IF v_before.draining <> p_draining OR v_before.seen_at < clock_timestamp() - runner_silence_v1() THEN
        PERFORM pg_notify('headrace_registry', 'runners');
    END IF;
    RETURN true;
END;
$$;

-- Its functions stay listed: another runner may come.
CREATE FUNCTION unregister_runner_v1(p_id uuid)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM runner WHERE id = p_id;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('headrace_registry', 'runners');
    RETURN true;
END;
$$;

-- The secret of that name; the proposed one on the first call.
CREATE FUNCTION secret_v1(p_name text, p_proposed bytea)
RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
    v_value bytea;
BEGIN
    INSERT INTO secret (name, value) VALUES (p_name, p_proposed) ON CONFLICT (name) DO NOTHING;
    SELECT value INTO STRICT v_value FROM secret WHERE name = p_name;
    RETURN v_value;
END;
$$;
