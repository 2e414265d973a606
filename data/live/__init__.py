"""Telemetry as it happens: engine metrics, gateway logs, spans."""
