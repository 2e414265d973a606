"""The guard: holds false alarms at or under their budget."""
