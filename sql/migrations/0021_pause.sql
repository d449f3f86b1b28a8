-- Intake that is off: for the whole site, or for one function. What was accepted goes on.

-- `function` is '' for the whole site. `open` is a function's exception from the site's pause, and there only
-- while that lasts. Gateways read all of it, and are told of changes by `intake` on headrace_registry.
CREATE TABLE intake (
    function text PRIMARY KEY,
    open boolean NOT NULL,
    reason text NOT NULL,
    retry_after_s double precision CHECK (retry_after_s BETWEEN 1 AND 600),
    changed_at timestamptz NOT NULL,
    changed_by text NOT NULL,
    CHECK (NOT open OR function <> '')
);

-- One change at a time, as what one does depends on the others; gateways hear of it.
CREATE FUNCTION change_intake_v1()
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE intake IN SHARE ROW EXCLUSIVE MODE; -- whoever reads goes on
    PERFORM pg_notify('headrace_registry', 'intake');
END;
$$;

-- Turns intake off for a function, or for the site; repeated, it replaces why, and when callers should come
-- back. A pause of the site leaves exceptions that were made from it. False when there is no such function.
CREATE FUNCTION pause_v1(p_function text, p_reason text, p_retry_after_s double precision, p_actor text)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF p_function <> '' AND NOT EXISTS (SELECT FROM function f WHERE f.name = p_function) THEN
        RETURN false;
    END IF;
    PERFORM change_intake_v1();
    INSERT INTO intake (function, open, reason, retry_after_s, changed_at, changed_by)
    VALUES (p_function, false, p_reason, p_retry_after_s, clock_timestamp(), p_actor)
    ON CONFLICT (function) DO UPDATE SET open = false, reason = excluded.reason,
        retry_after_s = excluded.retry_after_s, changed_at = excluded.changed_at,
        changed_by = excluded.changed_by;
    PERFORM audit_v1(p_actor, 'intake.pause', coalesce(nullif(p_function, ''), '*'), jsonb_strip_nulls(
        jsonb_build_object('reason', nullif(p_reason, ''), 'retry_after_s', p_retry_after_s)));
    RETURN true;
END;
$$;

-- Turns intake on again: for the site, where functions that were paused by themselves stay so; or for a
-- function, also while the site's is off. `resumed`, `was-on`, where there was nothing to do, or
-- `unknown-function`.
CREATE FUNCTION resume_v1(p_function text, p_actor text)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_site_is_off boolean;
    v_is_off boolean;
BEGIN
    IF p_function <> '' AND NOT EXISTS (SELECT FROM function f WHERE f.name = p_function) THEN
        RETURN 'unknown-function';
    END IF;
    PERFORM change_intake_v1();
    v_site_is_off := EXISTS (SELECT FROM intake i WHERE i.function = '');
    SELECT NOT i.open INTO v_is_off FROM intake i WHERE i.function = p_function;
    IF NOT coalesce(v_is_off, v_site_is_off) THEN
        RETURN 'was-on';
    END IF;
    IF p_function = '' THEN
        DELETE FROM intake i WHERE i.function = '' OR i.open;
    ELSIF v_site_is_off THEN
        INSERT INTO intake (function, open, reason, changed_at, changed_by)
        VALUES (p_function, true, '', clock_timestamp(), p_actor)
        ON CONFLICT (function) DO UPDATE SET open = true, reason = '', retry_after_s = NULL,
            changed_at = excluded.changed_at, changed_by = excluded.changed_by;
    ELSE
        DELETE FROM intake i WHERE i.function = p_function;
    END IF;
    PERFORM audit_v1(p_actor, 'intake.resume', coalesce(nullif(p_function, ''), '*'), '{}');
    RETURN 'resumed';
END;
$$;
