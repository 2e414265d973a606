"""What telemetry is, where it comes from and where it lives."""
