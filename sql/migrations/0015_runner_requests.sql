-- What operators ask of single runners: to drain, or how a call stands that one runs. Payload of
-- headrace_ask_<id of the runner, without dashes>: the request's id. The answer is put into the row, where
-- whoever asked looks for it.

CREATE TABLE runner_request (
    id uuid PRIMARY KEY,
    runner_id uuid NOT NULL,
    kind text NOT NULL CHECK (kind IN ('drain', 'stack')),
    job_id uuid CHECK ((job_id IS NOT NULL) = (kind = 'stack')),
    asked_by text NOT NULL CHECK (asked_by <> ''),
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    answered_at timestamptz,
    -- JSON as bytes: jsonb would refuse \u0000.
    answer bytea CHECK ((answer IS NOT NULL) = (answered_at IS NOT NULL))
);

CREATE INDEX runner_request_open ON runner_request (runner_id, asked_at) WHERE answered_at IS NULL;

-- A runner that hears of it within p_valid_s answers. Requests that are an hour old are forgotten here.
CREATE FUNCTION ask_runner_v1(
    p_id uuid, p_runner_id uuid, p_kind text, p_job_id uuid, p_valid_s double precision, p_actor text
)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    DELETE FROM runner_request r WHERE r.id IN (
        SELECT o.id FROM runner_request o WHERE o.asked_at < v_now - interval '1 hour'
        LIMIT 500 FOR UPDATE SKIP LOCKED);
    INSERT INTO runner_request (id, runner_id, kind, job_id, asked_by, asked_at, expires_at)
    VALUES (p_id, p_runner_id, p_kind, p_job_id, p_actor, v_now, v_now + make_interval(secs => p_valid_s));
    IF p_kind = 'drain' THEN
        PERFORM audit_v1(p_actor, 'runner.drain', p_runner_id::text, '{}');
    END IF;
    PERFORM pg_notify('headrace_ask_' || replace(p_runner_id::text, '-', ''), p_id::text);
END;
$$;

-- What a runner has been asked and hasn't answered, in the order of asking.
CREATE FUNCTION take_requests_v1(p_runner_id uuid)
RETURNS SETOF runner_request LANGUAGE sql AS $$
    SELECT r.* FROM runner_request r
    WHERE r.runner_id = p_runner_id AND r.answered_at IS NULL AND r.expires_at > clock_timestamp()
    ORDER BY r.asked_at, r.id
$$;

-- False when there is no such request of this runner, or it was answered before.
CREATE FUNCTION answer_request_v1(p_id uuid, p_runner_id uuid, p_answer bytea)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    UPDATE runner_request r SET answered_at = clock_timestamp(), answer = p_answer
    WHERE r.id = p_id AND r.runner_id = p_runner_id AND r.answered_at IS NULL;
    RETURN FOUND;
END;
$$;
