-- name: prune_results
SELECT prune_results_v2(%(limit)s) AS pruned;

-- name: prune_jobs
SELECT prune_jobs_v2(%(after_s)s, %(limit)s) AS pruned;

-- name: prune_items
SELECT prune_items_v1(%(after_s)s, %(limit)s) AS pruned;

-- name: prune_keys
SELECT prune_keys_v1(%(limit)s) AS pruned;

-- name: prune_batches
SELECT prune_batches_v1(%(after_s)s, %(limit)s) AS pruned;

-- name: prune_flows
SELECT prune_flows_v1(%(limit)s) AS pruned;

-- name: prune_audit
SELECT prune_audit_v1(%(after_s)s, %(limit)s) AS pruned;
