"""The ledger of jobs: typed commands over the SQL functions, which decide.

`submission` accepts jobs, `execution` is what runners do with them, `reading` what their owners ask,
`cancelling` and `settling` move on what isn't wanted or is past its time, `status` sums up.
Errors are the database layer's: `DatabaseUnavailable` says that Postgres can't be reached, and of a write
that it isn't known whether it took effect. Every command may be repeated.
"""
