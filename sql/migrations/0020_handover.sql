-- Direct calls that become jobs while they run.

-- Records calls that a runner executes as jobs that it holds, in one transaction. The arrays are parallel,
-- one entry a call: p_attempt is the number of the start that runs, p_charged how many are charged with it,
-- of p_attempts at most; p_alone, that an earlier start ended with its process. The job begins p_elapsed_s
-- and p_waited_s ago; p_queue_s counts from there, p_remaining_s from now. It has no queue entry. It counts
-- as its owner's, and no bound refuses it.
--
-- A row for each: `committed`, when the job has the call's token, so this start is the ledger's; else
-- `fenced`: the id stands for another start, or for none. Sent again, as its reply was lost, it answers as at
-- first, and renews the leases of what goes on.
CREATE FUNCTION handover_v1(
    p_session_id uuid, p_claim_id uuid, p_ids uuid[], p_tokens uuid[], p_owner_ids uuid[], p_key_ids uuid[],
    p_functions text[], p_interfaces text[], p_inputs bytea[], p_digests bytea[],
    p_costs double precision[], p_weights double precision[],
    p_attempts integer[], p_attempt integer[], p_charged integer[], p_alone boolean[],
    p_waited_s double precision[], p_elapsed_s double precision[],
    p_remaining_s double precision[], p_queue_s double precision[],
    p_request_ids text[], p_traceparents text[], p_lease_s double precision
)
RETURNS TABLE (
    job_id uuid, verdict text, state text, created_at timestamptz, queue_deadline_at timestamptz,
    deadline_at timestamptz
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
-- A row that somebody keeps locked is an error, not a wait: the runner then sends the others without it.
SET lock_timeout = '2s'
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := clock_timestamp();
    v_lease_until timestamptz := v_now + make_interval(secs => p_lease_s);
    v_tags double precision[] := array_fill(0::double precision, ARRAY[cardinality(p_ids)]);
    v_new integer[];
    v_owners uuid[];
    v_tag double precision;
    v_found record;
    n integer;
BEGIN
    -- Jobs before flows, as everywhere.
    WITH known AS (
        SELECT j.id FROM unnest(p_ids, p_tokens) AS u (id, token) JOIN job j ON j.id = u.id
        WHERE j.token = u.token AND j.session_id = p_session_id ORDER BY j.id FOR NO KEY UPDATE OF j
    )
    UPDATE job j SET lease_expires_at = v_lease_until, settle_at = least(v_lease_until, j.deadline_at)
    FROM known k WHERE j.id = k.id;

    SELECT array_agg(u.n ORDER BY u.id) INTO v_new FROM unnest(p_ids) WITH ORDINALITY AS u (id, n)
    WHERE NOT EXISTS (SELECT FROM job j WHERE j.id = u.id);
    -- Whoever submits the same call at this moment waits for this, or this for them, at the row of its flow:
    -- in one order everywhere. The flow isn't moved on: what runs takes nobody's turn. Should the job have to
    -- wait for another start, it has the place of one that is claimed now.
    FOR v_found IN
        SELECT p_functions[a.n] AS function, p_owner_ids[a.n] AS owner_id, p_weights[a.n] AS weight,
            array_agg(a.n) AS numbers
        FROM unnest(v_new) AS a (n) GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
    LOOP
        PERFORM reserve_tags_v1(v_found.function, v_found.owner_id, v_found.weight, 0);
        SELECT l.virtual_time INTO STRICT v_tag FROM lane l WHERE l.name = v_found.function;
        FOREACH n IN ARRAY v_found.numbers LOOP
            v_tags[n] := v_tag;
        END LOOP;
    END LOOP;

    WITH made AS (
        INSERT INTO job (
            id, owner_id, key_id, function, interface, digest, input, request_id, traceparent,
            state, attempt, charged, attempts, alone, token, session_id, claim_id, lease_expires_at,
            cost, weight, tag, created_at, queue_deadline_at, deadline_at, queued_at,
            first_started_at, started_at, settle_at, waited_s)
        SELECT p_ids[t.n], p_owner_ids[t.n], p_key_ids[t.n], p_functions[t.n], p_interfaces[t.n],
            p_digests[t.n], p_inputs[t.n], p_request_ids[t.n], p_traceparents[t.n],
            'running', p_attempt[t.n], p_charged[t.n], p_attempts[t.n], p_alone[t.n], p_tokens[t.n],
            p_session_id, p_claim_id, v_lease_until, p_costs[t.n], p_weights[t.n], v_tags[t.n], t.created_at,
            least(t.created_at + make_interval(secs => p_queue_s[t.n]), t.deadline_at), t.deadline_at,
            t.created_at, t.started_at, t.started_at, least(v_lease_until, t.deadline_at),
            greatest(p_waited_s[t.n], 0)
        FROM (
            SELECT s.n, s.started_at,
                s.started_at - make_interval(secs => greatest(p_waited_s[s.n], 0)) AS created_at,
                v_now + make_interval(secs => greatest(p_remaining_s[s.n], 0)) AS deadline_at
            FROM (
                SELECT a.n, v_now - make_interval(secs => greatest(p_elapsed_s[a.n], 0)) AS started_at
                FROM unnest(v_new) AS a (n)
            ) AS s
        ) AS t ORDER BY p_ids[t.n]
        ON CONFLICT (id) DO NOTHING
        RETURNING job.id, job.attempt, job.alone, job.owner_id
    ), noted AS (
        INSERT INTO job_event (job_id, sequence, at, from_state, state, attempt, actor, reason)
        SELECT m.id, 1, v_now, NULL, 'running', m.attempt, 'runner:' || p_session_id,
            CASE WHEN m.alone THEN 'handed over, running alone' ELSE 'handed over' END
        FROM made m
    ) SELECT array_agg(m.owner_id) INTO v_owners FROM made m;
    FOR v_found IN
        SELECT u.owner_id, count(*) AS made FROM unnest(v_owners) AS u (owner_id)
        GROUP BY u.owner_id ORDER BY u.owner_id
    LOOP
        UPDATE owner_load o SET unfinished = o.unfinished + v_found.made
        WHERE o.owner_id = v_found.owner_id;
    END LOOP;

    RETURN QUERY
    SELECT j.id, CASE WHEN j.token = u.token THEN 'committed' ELSE 'fenced' END, j.state, j.created_at,
        j.queue_deadline_at, j.deadline_at
    FROM unnest(p_ids, p_tokens) WITH ORDINALITY AS u (id, token, n) JOIN job j ON j.id = u.id
    ORDER BY u.n;
END;
$$;

-- As submit_v1; a call whose process was lost with it on its direct path (p_alone) is alone at its next
-- start, as a job is whose start was lost so.
CREATE FUNCTION submit_v2(
    p_ids uuid[], p_owner_ids uuid[], p_key_ids uuid[], p_functions text[], p_interfaces text[],
    p_inputs bytea[], p_digests bytea[], p_costs double precision[], p_weights double precision[],
    p_attempts integer[], p_started integer[], p_charged integer[], p_alone boolean[],
    p_queue_s double precision[], p_total_s double precision[],
    p_most_outstanding integer[], p_most_waiting integer[],
    p_most_costs double precision[], p_most_ages_s double precision[],
    p_request_ids text[], p_traceparents text[], p_idempotency_keys text[], p_retries_of uuid[],
    p_actors text[], p_waiters text[], p_key_ttl_s double precision
)
RETURNS TABLE (
    job_id uuid, outcome text, state text, created_at timestamptz, queue_deadline_at timestamptz,
    deadline_at timestamptz, outstanding integer
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    n integer := 0;
BEGIN
    FOR job_id, outcome, state, created_at, queue_deadline_at, deadline_at, outstanding IN
        SELECT s.* FROM submit_v1(
            p_ids, p_owner_ids, p_key_ids, p_functions, p_interfaces, p_inputs, p_digests, p_costs, p_weights,
            p_attempts, p_started, p_charged, p_queue_s, p_total_s, p_most_outstanding, p_most_waiting,
            p_most_costs, p_most_ages_s, p_request_ids, p_traceparents, p_idempotency_keys, p_retries_of,
            p_actors, p_waiters, p_key_ttl_s) s
    LOOP
        n := n + 1;
        IF p_alone[n] AND outcome = 'accepted' THEN
            UPDATE job j SET alone = true WHERE j.id = p_ids[n];
            UPDATE job_event v SET reason = 'lost with its process on the direct path'
            WHERE v.job_id = p_ids[n] AND v.sequence = 1;
        END IF;
        RETURN NEXT;
    END LOOP;
END;
$$;
