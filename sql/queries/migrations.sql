-- What the migrations run themselves need. The two tables are made before the first migration.

-- name: take_turn
-- Held until the transaction ends, so that a process that dies can't leave it behind.
SELECT pg_advisory_xact_lock(hashtextextended('headrace.migrations', 0));

-- name: create_tables
CREATE TABLE IF NOT EXISTS schema_migration (
    version integer PRIMARY KEY CHECK (version > 0),
    name text NOT NULL,
    checksum text NOT NULL CHECK (checksum ~ '^[0-9a-f]{64}$'),
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE IF NOT EXISTS schema_component (
    name text PRIMARY KEY,
    version text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- name: has_tables
SELECT to_regclass('schema_migration') IS NOT NULL AND to_regclass('schema_component') IS NOT NULL AS found;

-- name: applied
SELECT version, name, checksum FROM schema_migration ORDER BY version;

-- name: component
SELECT version FROM schema_component WHERE name = %(name)s;

-- name: record_migration
INSERT INTO schema_migration (version, name, checksum) VALUES (%(version)s, %(name)s, %(checksum)s);

-- name: record_component
INSERT INTO schema_component (name, version) VALUES (%(name)s, %(version)s);
