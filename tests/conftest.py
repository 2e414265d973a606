"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# Tests share the machine with each other: how long an example takes says nothing of the code.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
