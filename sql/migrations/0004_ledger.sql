-- The ledger: every call that was accepted as a job, and what became of it.
--
-- Rows are moved only by the versioned functions of the migrations that follow, each a compare-and-set. A
-- queued job has an entry in Procrastinate's table, which is the right to run it: whoever claims the job
-- locks both rows and deletes the entry, so nothing can be left behind half-claimed.

CREATE TABLE lane (
    name text PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_-]{0,39}$'),
    -- Start-time fair queueing (Goyal, Vin and Cheng, 1996): the largest tag that was claimed so far.
    virtual_time double precision NOT NULL DEFAULT 0 CHECK (virtual_time >= 0),
    -- What waits, at the last count; kept only while it is much (see count_backlogs_v1). Its cost, and since
    -- when the oldest of it waits, only where one of them is bounded; NULL: not kept.
    waiting integer NOT NULL DEFAULT 0 CHECK (waiting >= 0),
    waiting_cost double precision CHECK (waiting_cost >= 0),
    oldest_at timestamptz,
    counted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- What may wait: jobs, their cost, the age of the oldest; NULL: as the site's settings say.
    most_waiting integer CHECK (most_waiting > 0),
    most_cost double precision CHECK (most_cost BETWEEN 1e-6 AND 1e18),
    most_age_s double precision CHECK (most_age_s BETWEEN 1e-3 AND 1e9)
) WITH (fillfactor = 50);

-- A flow of a lane: an owner's jobs of one weight. What is urgent overtakes its owner's other jobs too.
CREATE TABLE lane_owner (
    lane text NOT NULL REFERENCES lane (name),
    owner_id uuid NOT NULL REFERENCES owner (id),
    weight double precision NOT NULL CHECK (weight BETWEEN 1e-6 AND 1e6),
    -- Where the flow's last job ends: its tag, and its cost over its weight.
    last_tag double precision NOT NULL CHECK (last_tag >= 0),
    PRIMARY KEY (lane, owner_id, weight)
) WITH (fillfactor = 50);

-- Owners with many unfinished jobs, and how many they are (see outstanding_v1).
CREATE TABLE owner_load (
    owner_id uuid PRIMARY KEY REFERENCES owner (id),
    unfinished integer NOT NULL CHECK (unfinished >= 0),
    counted_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);

CREATE TABLE batch (
    id uuid PRIMARY KEY,
    owner_id uuid NOT NULL REFERENCES owner (id),
    key_id uuid,
    function text NOT NULL,
    size integer NOT NULL CHECK (size > 0),
    request_id text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX batch_owner ON batch (owner_id, id);
CREATE INDEX batch_age ON batch (created_at);

CREATE TABLE job (
    -- Who asked for what.
    id uuid PRIMARY KEY,
    owner_id uuid NOT NULL REFERENCES owner (id),
    key_id uuid,
    function text NOT NULL,
    interface text NOT NULL CHECK (interface <> ''),
    digest bytea NOT NULL CHECK (octet_length(digest) = 32),
    input bytea NOT NULL,
    idempotency_key text CHECK (char_length(idempotency_key) BETWEEN 1 AND 255),
    batch_id uuid REFERENCES batch (id),
    batch_index integer,
    parent_id uuid,
    -- The job that this one does again, and the one that does this one again.
    retry_of uuid,
    retried_as uuid,
    request_id text NOT NULL DEFAULT '',
    traceparent text NOT NULL DEFAULT '',

    -- Where it stands. `attempt` counts starts and is never reused, `charged` those that count against
    -- `attempts`; `token` is new at each start, and stays when the start has ended the job.
    state text NOT NULL CHECK (state IN (
        'queued', 'running', 'succeeded', 'failed', 'expired', 'cancel_requested', 'cancelled')),
    attempt integer NOT NULL DEFAULT 0,
    charged integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL CHECK (attempts > 0),
    -- A start ended with its process: nothing may run beside the next one.
    alone boolean NOT NULL DEFAULT false,
    entry_id bigint,
    token uuid,
    session_id uuid,
    claim_id uuid,
    lease_expires_at timestamptz,
    -- The number of its last event; progress takes numbers too, without being kept as an event.
    sequence integer NOT NULL DEFAULT 1,

    -- Its place in the lane. BETWEEN refuses NaN too, which would spread from tag to tag.
    cost double precision NOT NULL CHECK (cost BETWEEN 0 AND 1e18),
    weight double precision NOT NULL CHECK (weight BETWEEN 1e-6 AND 1e6),
    tag double precision NOT NULL CHECK (tag BETWEEN 0 AND 1e300),

    -- Time.
    created_at timestamptz NOT NULL,
    queue_deadline_at timestamptz NOT NULL,
    deadline_at timestamptz NOT NULL,
    queued_at timestamptz NOT NULL,
    due_at timestamptz,
    first_started_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    -- When maintenance must look at it: NULL once it is final.
    settle_at timestamptz,
    waited_s double precision NOT NULL DEFAULT 0,
    execution_s double precision NOT NULL DEFAULT 0,

    -- What came of it.
    progress double precision CHECK (progress BETWEEN 0 AND 1),
    progress_message text NOT NULL DEFAULT '',
    progress_sequence integer NOT NULL DEFAULT 0,
    result_place text CHECK (result_place IN ('row', 'gone')),
    result bytea,
    result_expires_at timestamptz,
    error_category text CHECK (error_category <> ''),
    error_message text,
    error_errors jsonb CHECK (jsonb_typeof(error_errors) = 'array'),

    -- Gateways in which somebody waits for its end; with `followed`, for each of its steps.
    waiters text[] NOT NULL DEFAULT '{}',
    followed boolean NOT NULL DEFAULT false,

    CONSTRAINT job_deadlines CHECK (created_at <= queue_deadline_at AND queue_deadline_at <= deadline_at),
    CONSTRAINT job_charges CHECK (charged BETWEEN 0 AND attempts AND attempt - charged BETWEEN 0 AND 3),
    CONSTRAINT job_alone CHECK (NOT alone OR attempt > 0),
    CONSTRAINT job_batch CHECK ((batch_id IS NULL) = (batch_index IS NULL)),
    CONSTRAINT job_queued CHECK (state <> 'queued' OR (
        charged < attempts AND entry_id IS NOT NULL AND token IS NULL AND settle_at IS NOT NULL)),
    CONSTRAINT job_entry CHECK (state = 'queued' OR (entry_id IS NULL AND due_at IS NULL)),
    CONSTRAINT job_running CHECK (state NOT IN ('running', 'cancel_requested') OR (
        charged > 0 AND token IS NOT NULL AND started_at IS NOT NULL AND settle_at IS NOT NULL
        AND lease_expires_at IS NOT NULL)),
    CONSTRAINT job_lease CHECK (state IN ('running', 'cancel_requested') OR (
        lease_expires_at IS NULL AND session_id IS NULL AND claim_id IS NULL)),
    CONSTRAINT job_session CHECK ((lease_expires_at IS NULL) = (session_id IS NULL)),
    CONSTRAINT job_final CHECK (
        (state IN ('succeeded', 'failed', 'expired', 'cancelled')) = (finished_at IS NOT NULL)),
    CONSTRAINT job_settled CHECK ((finished_at IS NULL) = (settle_at IS NOT NULL)),
    CONSTRAINT job_never_started CHECK (state <> 'expired' OR attempt = 0),
    CONSTRAINT job_retried CHECK (retried_as IS NULL OR state IN ('failed', 'expired', 'cancelled')),
    CONSTRAINT job_result CHECK ((state = 'succeeded') = (result_place IS NOT NULL)
        AND (result_place IS NOT NULL) = (result_expires_at IS NOT NULL)
        AND coalesce(result_place = 'row', false) = (result IS NOT NULL)),
    CONSTRAINT job_error CHECK (
        (state IN ('failed', 'expired', 'cancelled')) = (error_category IS NOT NULL)
        AND (error_category IS NULL) = (error_message IS NULL))
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05,
    toast.autovacuum_vacuum_scale_factor = 0.02, toast.autovacuum_vacuum_threshold = 1000
);

-- As it is: a compressed value is read from its beginning for each piece of it.
ALTER TABLE job ALTER COLUMN result SET STORAGE EXTERNAL;

-- The order in which a lane is claimed. With the interface in front, what no runner here can execute is
-- never looked at; nor is what waits for its retry, nor what runs alone by who looks for what doesn't.
CREATE INDEX job_claim ON job (function, interface, (due_at IS NULL), alone, tag, id) WHERE state = 'queued';
CREATE UNIQUE INDEX job_entry_id ON job (entry_id) WHERE entry_id IS NOT NULL;
CREATE INDEX job_due ON job (function, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX job_settle ON job (settle_at) WHERE settle_at IS NOT NULL;
CREATE INDEX job_session ON job (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX job_owner ON job (owner_id, id);
CREATE INDEX job_owner_state ON job (owner_id, state, id);
CREATE INDEX job_batch ON job (batch_id, batch_index) WHERE batch_id IS NOT NULL;
CREATE INDEX job_batch_open ON job (batch_id) WHERE batch_id IS NOT NULL AND finished_at IS NULL;
-- What is to be pruned: jobs, and results before them.
CREATE INDEX job_finished ON job (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX job_result_expiry ON job (result_expires_at) WHERE result_place = 'row';

-- Every transition: when, from what to what, by whom (`key:`, `owner:`, `runner:`, `gateway:` or `operator:`
-- and an id or a name) and why. No foreign key: it is written in the statement that moves the job, and pruned
-- with it.
CREATE TABLE job_event (
    job_id uuid NOT NULL,
    sequence integer NOT NULL CHECK (sequence > 0),
    at timestamptz NOT NULL,
    from_state text,
    state text NOT NULL,
    attempt integer NOT NULL,
    actor text NOT NULL CHECK (actor <> ''),
    reason text NOT NULL CHECK (reason <> ''),
    PRIMARY KEY (job_id, sequence),
    -- docs/job_lifecycle.md has each with who makes it, and when.
    CONSTRAINT job_event_transition CHECK (CASE
        WHEN from_state IS NULL THEN state IN ('queued', 'running')
        WHEN from_state = 'queued' THEN state IN ('queued', 'running', 'failed', 'expired', 'cancelled')
        WHEN from_state = 'running' THEN state IN ('queued', 'succeeded', 'failed', 'cancel_requested')
        WHEN from_state = 'cancel_requested' THEN state = 'cancelled'
        ELSE false END)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- The function is followed by `/batch` for the key of a batch, whose id is then the job's.
CREATE TABLE idempotency (
    owner_id uuid NOT NULL REFERENCES owner (id),
    function text NOT NULL,
    key text NOT NULL CHECK (char_length(key) BETWEEN 1 AND 255),
    job_id uuid NOT NULL,
    digest bytea NOT NULL CHECK (octet_length(digest) = 32),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (owner_id, function, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE INDEX idempotency_expiry ON idempotency (expires_at);
-- By what it stands for: a job may have been moved to another function since.
CREATE INDEX idempotency_job ON idempotency (job_id);

-- The queue swings between empty and full: its dead rows are to be gone before the next ones come.
ALTER TABLE procrastinate_jobs SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);
ALTER TABLE procrastinate_events SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500);

-- The names of notification channels: one for each gateway, one for each runner.
CREATE FUNCTION waiter_channel_v1(p_gateway text)
RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'headrace_jobs_' || replace(p_gateway, '-', '') $$;

-- The advisory lock that a runner's process holds for as long as it lives, beside the constant 1751217778.
CREATE FUNCTION session_lock_v1(p_session_id uuid)
RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT ('x' || substr(md5(p_session_id::text), 1, 8))::bit(32)::integer
$$;

CREATE FUNCTION cancel_channel_v1(p_session_id uuid)
RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT 'headrace_cancel_' || replace(p_session_id::text, '-', '')
$$;

-- Seconds to wait before the next start after so many charged ones: doubling from half a second, at most a
-- minute, spread by half so that what failed together doesn't return together.
CREATE FUNCTION backoff_v1(p_charged integer)
RETURNS double precision LANGUAGE sql VOLATILE AS $$
    SELECT least(60, 0.5 * 2 ^ least(greatest(p_charged, 1) - 1, 10)) * (0.5 + random())
$$;

-- An entry in the queue: `job_id` and the version of its form, nothing else.
CREATE FUNCTION enqueue_v1(p_lane text, p_job_id uuid, p_due_at timestamptz)
RETURNS bigint LANGUAGE sql AS $$
    SELECT (procrastinate_defer_jobs_v1(ARRAY[ROW(
        p_lane, 'headrace.run', 0, NULL, NULL, jsonb_build_object('job_id', p_job_id, 'v', 1), p_due_at
    )::procrastinate_job_to_defer_v1]))[1]
$$;
