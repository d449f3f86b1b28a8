-- name: hold
SELECT hold_session_v1(%(session_id)s::uuid);

-- name: listen
-- Braces: a channel is an identifier, which can't be a parameter.
LISTEN {channel};

-- name: prove
SELECT pg_backend_pid() AS pid;

-- name: begin
BEGIN;
