"""The telemetry store: the only place below the queries that holds SQL."""
