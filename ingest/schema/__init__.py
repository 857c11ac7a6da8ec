"""The shared vocabulary: metrics, records, tables, buckets and config keys."""
