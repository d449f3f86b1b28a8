-- name: register
SELECT register_runner_v1(
    %(runner_id)s::uuid, %(address)s::text, %(pool)s::text, %(served)s::jsonb, %(metrics_address)s::text,
    %(names)s::text[], %(interfaces)s::text[], %(revisions)s::text[], %(manifests)s::bytea[]
);

-- name: heartbeat
SELECT heartbeat_v1(%(runner_id)s::uuid, %(capacity)s::jsonb, %(draining)s) AS known;

-- name: unregister
SELECT unregister_runner_v1(%(runner_id)s::uuid) AS known;

-- name: functions
SELECT name, manifest, registered_at, retired_at FROM function ORDER BY name;

-- name: runners
SELECT id::text AS runner_id, address, pool, interfaces, metrics_address, capacity, draining
FROM runner
WHERE seen_at > clock_timestamp() - runner_silence_v1()
ORDER BY started_at, id;

-- name: retire
SELECT retire_function_v1(%(name)s) AS retired;

-- name: secret
SELECT secret_v1(%(name)s, %(proposed)s) AS value;
