"""Readers, records and the telemetry store: everything below the rules and the pages."""
