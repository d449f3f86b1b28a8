-- name: note
SELECT audit_v1(%(actor)s, %(action)s, %(subject)s, %(detail)s::jsonb);

-- name: list
SELECT id, at, actor, action, subject, detail FROM audit
WHERE (%(subject)s::text IS NULL OR subject = %(subject)s::text)
    AND (%(actor)s::text IS NULL OR actor = %(actor)s::text)
    AND (%(action)s::text IS NULL OR action = %(action)s::text)
ORDER BY id DESC LIMIT %(limit)s;
