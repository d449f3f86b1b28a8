-- name: create
SELECT create_owner_v1(
    %(name)s, %(most_outstanding)s::integer, %(rate)s::double precision, %(burst)s::integer,
    %(highest_priority)s, %(actor)s
) AS created;

-- name: set
SELECT set_owner_v1(%(name)s, %(changes)s::jsonb, %(actor)s) AS outcome;

-- name: list
SELECT o.id::text AS owner_id, o.name, o.created_at, o.most_outstanding, o.rate, o.burst, o.highest_priority,
    (SELECT count(*) FROM api_key k WHERE k.owner_id = o.id AND k.revoked_at IS NULL) AS keys,
    (SELECT count(*) FROM job j WHERE j.owner_id = o.id AND j.finished_at IS NULL) AS outstanding
FROM owner o
ORDER BY o.name;
