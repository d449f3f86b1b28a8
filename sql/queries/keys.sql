-- name: create
SELECT create_key_v1(%(owner)s, %(name)s, %(prefix)s, %(hash)s)::text AS key_id;

-- name: find
SELECT k.id::text AS key_id, o.id::text AS owner_id, o.name AS owner
FROM api_key k JOIN owner o ON o.id = k.owner_id
WHERE k.hash = %(hash)s AND k.revoked_at IS NULL;

-- name: list
SELECT k.id::text AS key_id, o.name AS owner, k.name, k.prefix, k.created_at, k.revoked_at
FROM api_key k JOIN owner o ON o.id = k.owner_id
ORDER BY k.created_at, k.id;

-- name: revoke
SELECT revoke_key_v1(%(key)s) AS revoked;
