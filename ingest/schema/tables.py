"""The telemetry tables (DuckDB). One comment a column gives its unit and what null means.

Forward migrations are listed in MIGRATIONS; a store newer than SCHEMA_VERSION is refused by the opener.
"""

from __future__ import annotations

SCHEMA_VERSION = 1

TOKEN_ARRAYS: dict[str, str] = {
    "token_ids": "INTEGER[]",
    "token_texts": "VARCHAR[]",
    "response_mask": "TINYINT[]",
    "loss_mask": "TINYINT[]",
    "rollout_logprobs": "FLOAT[]",
    "old_logprobs": "FLOAT[]",
    "current_logprobs": "FLOAT[]",
    "ref_logprobs": "FLOAT[]",
    "entropies": "FLOAT[]",
    "advantages": "FLOAT[]",
    "policy_versions": "INTEGER[]",
}
"""Arrays over the same tokens (shape [tokens]); null element: the writer has no value there; null array: not written."""

TRAJECTORY_FIELDS: dict[str, str] = {
    "trajectory_id": "VARCHAR",
    "group_id": "VARCHAR",
    "sample_index": "INTEGER",
    "split": "VARCHAR",
    "task": "VARCHAR",
    "difficulty": "VARCHAR",
    "origin": "VARCHAR",
    "prompt": "VARCHAR",
    "prompt_messages": "JSON",
    "response": "VARCHAR",
    "reward": "DOUBLE",
    "reward_parts": "JSON",
    "advantage": "DOUBLE",
    "prompt_tokens": "INTEGER",
    "response_tokens": "INTEGER",
    "finish_reason": "VARCHAR",
    "failure_type": "VARCHAR",
    "policy_version_first": "INTEGER",
    "policy_version_last": "INTEGER",
    "trainer_version": "INTEGER",
    "policy_lag": "INTEGER",
    "kept": "BOOLEAN",
    "drop_reason": "VARCHAR",
    "verifier_name": "VARCHAR",
    "verifier_version": "VARCHAR",
    "verifier_status": "VARCHAR",
    "verifier_seconds": "DOUBLE",
    "sampling": "JSON",
    "seconds": "JSON",
    "extra": "JSON",
}
"""Columns of `trajectory` after its key (run_id, step, n). Null: the trainer does not write it; never invented."""

_TRAJECTORY_COLUMNS = ",\n    ".join(f"{name} {kind}" for name, kind in TRAJECTORY_FIELDS.items())
_TOKEN_COLUMNS = ",\n    ".join(f"{name} {kind}" for name, kind in TOKEN_ARRAYS.items())

TABLES: dict[str, str] = {
    "meta": """CREATE TABLE meta (
    key VARCHAR PRIMARY KEY,      -- schema_version, created
    value VARCHAR)""",
    "run": """CREATE TABLE run (
    run_id VARCHAR PRIMARY KEY,   -- 12 hex digits, see contracts
    project VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    framework VARCHAR NOT NULL,   -- native, verl, trl, plain
    framework_version VARCHAR,    -- null: no file says it
    root VARCHAR,                 -- folder or file the run was first read from
    config JSON,                  -- as logged, secrets removed before storing; null: no config file
    colour INTEGER NOT NULL,      -- index into the series colours, fixed for ever
    created DOUBLE NOT NULL,      -- Unix seconds of the first ingest
    last_seen DOUBLE NOT NULL)    -- Unix seconds of the newest row's arrival""",
    "series": """CREATE TABLE series (
    series_id INTEGER PRIMARY KEY,
    run_id VARCHAR NOT NULL,
    source_key VARCHAR NOT NULL,  -- exact name as logged
    metric VARCHAR,               -- canonical id; null: unknown key, plotted under its own name
    transform VARCHAR,            -- how the value was changed on the way: identity, negate, ...
    estimator VARCHAR,            -- k1, k2, k3, exact, sampled, prob_diff; null: not applicable
    aggregation VARCHAR,          -- how the trainer reduced it; null: unknown
    unit VARCHAR,
    UNIQUE (run_id, source_key))""",
    "point": """CREATE TABLE point (
    series_id INTEGER NOT NULL,
    source_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,     -- counted from 1
    step BIGINT NOT NULL,         -- as the trainer numbers it
    value DOUBLE NOT NULL,        -- NaN and infinities are kept as themselves
    wall_time DOUBLE)             -- Unix seconds; null: not logged""",
    "trajectory": f"""CREATE TABLE trajectory (
    run_id VARCHAR NOT NULL,
    source_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,     -- counted from 1
    step BIGINT NOT NULL,
    n INTEGER NOT NULL,           -- running number within (run, step) in order of arrival, from 0
    has_tokens BOOLEAN NOT NULL,  -- a row of token exists
    {_TRAJECTORY_COLUMNS})""",
    "token": f"""CREATE TABLE token (
    run_id VARCHAR NOT NULL,
    source_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    step BIGINT NOT NULL,
    n INTEGER NOT NULL,           -- of the trajectory
    {_TOKEN_COLUMNS})""",
    "turn": """CREATE TABLE turn (
    run_id VARCHAR NOT NULL,
    source_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    step BIGINT NOT NULL,
    n INTEGER NOT NULL,           -- of the trajectory
    turn INTEGER NOT NULL,        -- from 0
    role VARCHAR,                 -- assistant, tool, user, system
    content VARCHAR,
    tool_name VARCHAR,
    tool_args JSON,
    is_error BOOLEAN,
    seconds DOUBLE,
    policy_version INTEGER,
    prompt_token_ids INTEGER[],   -- what the engine was given for this turn
    token_ids INTEGER[])""",
    "event": """CREATE TABLE event (
    run_id VARCHAR NOT NULL,
    source_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    step BIGINT NOT NULL,
    kind VARCHAR NOT NULL,        -- resume, checkpoint, config, weight_sync, curriculum, eval, restart, crash, note
    text VARCHAR NOT NULL,
    wall_time DOUBLE)""",
    "source": """CREATE TABLE source (
    source_id INTEGER PRIMARY KEY,
    run_id VARCHAR NOT NULL,
    path VARCHAR NOT NULL UNIQUE, -- absolute
    reader VARCHAR NOT NULL,
    growth VARCHAR NOT NULL,      -- append: followed by offset; whole: taken when complete and again when changed
    fingerprint VARCHAR,          -- of the first bytes (append) or of size and time (whole)
    cursor_offset BIGINT NOT NULL,
    cursor_line BIGINT NOT NULL,
    cursor_state JSON NOT NULL,
    state VARCHAR NOT NULL,       -- read, followed, rejected
    bytes BIGINT NOT NULL,        -- size of the file when last read
    rows BIGINT NOT NULL,
    rejected BIGINT NOT NULL,
    newest_step BIGINT,           -- null: no row with a step yet
    updated DOUBLE NOT NULL,      -- Unix seconds of the last commit
    note VARCHAR,                 -- what a person should know, for example rows not counted twice
    mtime_ns BIGINT)              -- time stamp of the file when last read to its end; null: too fresh to trust""",
    "reject": """CREATE TABLE reject (
    source_id INTEGER NOT NULL,
    line BIGINT,                  -- from 1; null where the format has no lines
    byte_offset BIGINT,
    reason VARCHAR NOT NULL,
    sample VARCHAR NOT NULL)      -- first 200 characters""",
}

MIGRATIONS: dict[int, tuple[str, ...]] = {0: ("ALTER TABLE source ADD COLUMN mtime_ns BIGINT",)}
"""Statements that lead from the key's version to the next one."""
