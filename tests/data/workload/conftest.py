import pytest

from data.workload import Settings, Workload, generate


@pytest.fixture(scope="session")
def settings() -> Settings:
    return Settings(days=0.1, seed=3)


@pytest.fixture(scope="session")
def workload(settings: Settings) -> Workload:
    return generate(settings)
