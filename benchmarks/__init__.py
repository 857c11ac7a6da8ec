"""Measurements of the program: run all by `python -m benchmarks`, or one by `python -m benchmarks.ingest`."""
