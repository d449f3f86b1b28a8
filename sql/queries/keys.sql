-- name: create
SELECT create_key_v2(
    %(owner)s, %(name)s, %(prefix)s, %(hash)s, %(scopes)s::text[], %(functions)s::text[], %(actor)s
)::text AS key_id;

-- name: find
SELECT k.id::text AS key_id, o.id::text AS owner_id, o.name AS owner, k.scopes, k.functions,
    o.most_outstanding, o.rate, o.burst, o.highest_priority
FROM api_key k JOIN owner o ON o.id = k.owner_id
WHERE k.hash = %(hash)s AND k.revoked_at IS NULL;

-- name: list
SELECT k.id::text AS key_id, o.name AS owner, k.name, k.prefix, k.scopes, k.functions, k.created_at,
    k.revoked_at
FROM api_key k JOIN owner o ON o.id = k.owner_id
ORDER BY k.created_at, k.id;

-- name: revoke
SELECT revoke_key_v2(%(key)s, %(actor)s) AS revoked;
