-- What an owner may use, what a key may do, who changed what, and which gateways there are, as each grants
-- its part of a rate.

ALTER TABLE owner
    -- Unfinished jobs; NULL: as many as the site's settings say.
    ADD COLUMN most_outstanding integer CHECK (most_outstanding > 0),
    -- Calls per second over all gateways; NULL: no bound. BETWEEN refuses NaN too.
    ADD COLUMN rate double precision CHECK (rate BETWEEN 0.00001 AND 1000000),
    -- Calls at once within that rate; NULL: one second's worth, at least one.
    ADD COLUMN burst integer CHECK (burst > 0),
    -- The most urgent class of jobs that it may ask for.
    ADD COLUMN highest_priority text NOT NULL DEFAULT 'high'
        CHECK (highest_priority IN ('low', 'normal', 'high')),
    ADD CONSTRAINT owner_burst_has_rate CHECK (burst IS NULL OR rate IS NOT NULL);

-- Keys that exist already get what they could do so far.
ALTER TABLE api_key
    ADD COLUMN scopes text[] NOT NULL DEFAULT '{call,read}'
        CHECK (cardinality(scopes) BETWEEN 1 AND 3 AND scopes <@ '{call,read,admin}'),
    -- The functions that it may call; NULL: all.
    ADD COLUMN functions text[]
        CHECK (
            cardinality(functions) BETWEEN 1 AND 1000
            -- None is NULL or holds a comma.
            AND cardinality(functions) = cardinality(string_to_array(array_to_string(functions, ','), ','))
            AND array_to_string(functions, ',') ~ '^[a-z][a-z0-9_-]{0,39}(,[a-z][a-z0-9_-]{0,39})*$'
        );

-- What people changed: who (as in job_event), what, of which thing, and how. Pruned much later than jobs.
CREATE TABLE audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor text NOT NULL CHECK (actor <> ''),
    action text NOT NULL CHECK (action ~ '^[a-z]+\.[a-z-]+$'),
    subject text NOT NULL,
    detail jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(detail) = 'object')
);

CREATE INDEX audit_subject ON audit (subject, id);
CREATE INDEX audit_actor ON audit (actor, id);
CREATE INDEX audit_action ON audit (action, id);

CREATE FUNCTION audit_v1(p_actor text, p_action text, p_subject text, p_detail jsonb)
RETURNS void LANGUAGE sql AS $$
    INSERT INTO audit (actor, action, subject, detail) VALUES (p_actor, p_action, p_subject, p_detail)
$$;

CREATE TABLE gateway (
    id uuid PRIMARY KEY,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Makes the owner on its first key. Payload of headrace_keys: the key's id, or that of an owner whose quota
-- was changed.
CREATE FUNCTION create_key_v2(
    p_owner text, p_name text, p_prefix text, p_hash bytea, p_scopes text[], p_functions text[], p_actor text
)
RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    v_owner_id uuid;
    v_key_id uuid;
BEGIN
    INSERT INTO owner (name) VALUES (p_owner) ON CONFLICT (name) DO NOTHING;
    IF FOUND THEN
        PERFORM audit_v1(p_actor, 'owner.create', p_owner, '{}');
    END IF;
    SELECT id INTO STRICT v_owner_id FROM owner WHERE name = p_owner;
    INSERT INTO api_key (owner_id, name, prefix, hash, scopes, functions)
    VALUES (v_owner_id, p_name, p_prefix, p_hash, p_scopes, p_functions)
    RETURNING id INTO v_key_id;
    PERFORM audit_v1(p_actor, 'key.create', p_prefix, jsonb_build_object(
        'key_id', v_key_id, 'owner', p_owner, 'name', p_name, 'scopes', p_scopes, 'functions', p_functions));
    -- A gateway may hold the key's hash as unknown.
    PERFORM pg_notify('headrace_keys', v_key_id::text);
    RETURN v_key_id;
END;
$$;

-- True when a key was in force and now isn't. p_key is an id or a prefix.
CREATE FUNCTION revoke_key_v2(p_key text, p_actor text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_key record;
BEGIN
    UPDATE api_key k SET revoked_at = clock_timestamp() FROM owner o
    WHERE (k.id::text = lower(p_key) OR k.prefix = p_key) AND k.revoked_at IS NULL AND o.id = k.owner_id
    RETURNING k.id, k.prefix, k.name, o.name AS owner INTO v_key;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM audit_v1(p_actor, 'key.revoke', v_key.prefix,
        jsonb_build_object('key_id', v_key.id, 'owner', v_key.owner, 'name', v_key.name));
    PERFORM pg_notify('headrace_keys', v_key.id::text);
    RETURN true;
END;
$$;

-- False when there is an owner of that name.
CREATE FUNCTION create_owner_v1(
    p_name text, p_most_outstanding integer, p_rate double precision, p_burst integer,
    p_highest_priority text, p_actor text
)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO owner (name, most_outstanding, rate, burst, highest_priority)
    VALUES (p_name, p_most_outstanding, p_rate, p_burst, p_highest_priority)
    ON CONFLICT (name) DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM audit_v1(p_actor, 'owner.create', p_name, jsonb_strip_nulls(jsonb_build_object(
        'most_outstanding', p_most_outstanding, 'rate', p_rate, 'burst', p_burst,
        'highest_priority', p_highest_priority)));
    RETURN true;
END;
$$;

-- p_changes holds new values by column: most_outstanding, rate, burst, highest_priority. What isn't in it
-- stays, but a burst goes with its rate. Returns `changed`, `unknown` (no such owner) or `no-rate` (a burst
-- of no rate).
CREATE FUNCTION set_owner_v1(p_name text, p_changes jsonb, p_actor text)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_owner owner;
BEGIN
    -- Not FOR UPDATE, for which rows that refer to the owner would have to wait.
    SELECT * INTO v_owner FROM owner WHERE name = p_name FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 'unknown';
    END IF;
    v_owner := jsonb_populate_record(v_owner, p_changes);
    IF v_owner.rate IS NULL THEN
        IF p_changes ->> 'burst' IS NOT NULL THEN
            RETURN 'no-rate';
        END IF;
        v_owner.burst := NULL;
    END IF;
    UPDATE owner
    SET most_outstanding = v_owner.most_outstanding, rate = v_owner.rate, burst = v_owner.burst,
        highest_priority = v_owner.highest_priority
    WHERE name = p_name;
    IF p_changes <> '{}' THEN
        PERFORM audit_v1(p_actor, 'owner.set', p_name, p_changes);
    END IF;
    -- Gateways remember the quota with each key.
    PERFORM pg_notify('headrace_keys', v_owner.id::text);
    RETURN 'changed';
END;
$$;

-- A gateway lives; returns how many do. Those that have been silent for over a minute are forgotten.
CREATE FUNCTION gateway_seen_v1(p_id uuid)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    INSERT INTO gateway (id, seen_at) VALUES (p_id, v_now)
    ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at;
    DELETE FROM gateway WHERE id IN (
        SELECT id FROM gateway WHERE seen_at < v_now - interval '1 minute' FOR UPDATE SKIP LOCKED
    );
    RETURN (SELECT count(*) FROM gateway WHERE seen_at > v_now - interval '10 seconds');
END;
$$;
