-- name: load
SELECT function, open, reason, retry_after_s, changed_at, changed_by FROM intake ORDER BY function;

-- name: pause
SELECT pause_v1(
    %(function)s, %(reason)s, %(retry_after_s)s::double precision, %(actor)s
) AS known;

-- name: resume
SELECT resume_v1(%(function)s, %(actor)s) AS outcome;
