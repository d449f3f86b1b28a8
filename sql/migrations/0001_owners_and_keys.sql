-- Who may call: owners and their API keys. A key's secret is never stored, only its SHA-256.

CREATE TABLE owner (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name text NOT NULL UNIQUE CHECK (name ~ '^[^[:cntrl:]]{1,100}$'),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE api_key (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    owner_id uuid NOT NULL REFERENCES owner (id),
    name text NOT NULL CHECK (name ~ '^[^[:cntrl:]]{0,100}$'),
    -- The first characters of the secret, so that people can tell keys apart.
    prefix text NOT NULL UNIQUE CHECK (char_length(prefix) BETWEEN 8 AND 16),
    hash bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    revoked_at timestamptz
);

CREATE INDEX api_key_owner_id ON api_key (owner_id);

-- Makes the owner on its first key. Payload of headrace_keys: the key's id.
CREATE FUNCTION create_key_v1(p_owner text, p_name text, p_prefix text, p_hash bytea)
RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    v_owner_id uuid;
    v_key_id uuid;
BEGIN
    INSERT INTO owner (name) VALUES (p_owner) ON CONFLICT (name) DO NOTHING;
    SELECT id INTO STRICT v_owner_id FROM owner WHERE name = p_owner;
    INSERT INTO api_key (owner_id, name, prefix, hash) VALUES (v_owner_id, p_name, p_prefix, p_hash)
    RETURNING id INTO v_key_id;
    -- A gateway may hold the key's hash as unknown.
    PERFORM pg_notify('headrace_keys', v_key_id::text);
    RETURN v_key_id;
END;
$$;

-- True when a key was in force and now isn't. p_key is an id or a prefix.
CREATE FUNCTION revoke_key_v1(p_key text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_key_id uuid;
BEGIN
    UPDATE api_key SET revoked_at = clock_timestamp()
    WHERE (id::text = lower(p_key) OR prefix = p_key) AND revoked_at IS NULL
    RETURNING id INTO v_key_id;
    IF v_key_id IS NULL THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('headrace_keys', v_key_id::text);
    RETURN true;
END;
$$;
