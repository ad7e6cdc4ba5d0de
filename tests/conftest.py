"""Property-based tests pass on a loaded machine: no example has a deadline, and slow generation is no failure."""

from hypothesis import HealthCheck, settings

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")
