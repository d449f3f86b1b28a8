-- name: invoker
-- What a call that calls others has: its owner's quota, and as a job its weight and who submitted it.
SELECT o.most_outstanding, o.highest_priority, j.weight, e.actor, clock_timestamp() AS now
FROM owner o
LEFT JOIN job j ON j.id = %(job_id)s::uuid
LEFT JOIN job_event e ON e.job_id = j.id AND e.sequence = 1
WHERE o.id = %(owner_id)s::uuid;

-- name: manifest
SELECT manifest FROM function WHERE name = %(name)s AND retired_at IS NULL;
