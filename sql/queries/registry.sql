-- name: register
SELECT register_runner_v3(
    %(runner_id)s::uuid, %(address)s::text, %(pool)s::text, %(labels)s::jsonb, %(served)s::jsonb,
    %(metrics_address)s::text, %(names)s::text[], %(interfaces)s::text[], %(revisions)s::text[],
    %(manifests)s::bytea[]
);

-- name: heartbeat
SELECT known, reported FROM heartbeat_v2(
    %(runner_id)s::uuid, %(capacity)s::jsonb, %(draining)s, %(report)s::bytea
);

-- name: unregister
SELECT unregister_runner_v3(%(runner_id)s::uuid) AS known;

-- name: gateway_seen
SELECT gateway_seen_v1(%(gateway_id)s::uuid) AS gateways;

-- name: gateways
SELECT id::text AS gateway_id, seen_at FROM gateway
WHERE seen_at > clock_timestamp() - runner_silence_v1() ORDER BY id;

-- name: functions
SELECT name, manifest, registered_at, retired_at FROM function ORDER BY name;

-- name: runners
SELECT id::text AS runner_id, address, pool, labels, interfaces, metrics_address, capacity, draining, seen_at,
    extract(epoch FROM clock_timestamp() - seen_at)::double precision AS silent_s
FROM runner
WHERE seen_at > clock_timestamp() - runner_silence_v1() AND left_at IS NULL
ORDER BY started_at, id;

-- name: reports
-- What the runners that live report of themselves.
SELECT r.id::text AS runner_id, p.report FROM runner r JOIN runner_report p ON p.runner_id = r.id
WHERE r.seen_at > clock_timestamp() - runner_silence_v1() AND r.left_at IS NULL
ORDER BY r.started_at, r.id;

-- name: last_seen
SELECT i.key AS function, i.value AS interface,
    extract(epoch FROM clock_timestamp() - max(coalesce(r.left_at, r.seen_at)))::double precision AS seconds
FROM runner r, jsonb_each_text(r.interfaces) AS i GROUP BY i.key, i.value;

-- name: retire
SELECT retire_function_v2(%(name)s, %(actor)s) AS retired;

-- name: secret
SELECT secret_v1(%(name)s, %(proposed)s) AS value;
