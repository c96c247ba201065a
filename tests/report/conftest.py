"""One onboarding of a small model, made once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from onboardings import make_onboarding, write_config

from agent.trial import Onboarding


@pytest.fixture(scope="session")
def onboarding(tmp_path_factory: pytest.TempPathFactory) -> Onboarding:
    model = write_config(tmp_path_factory.mktemp("models"), "tiny <script>alert(1)</script>".replace("/", "_"))
    return make_onboarding(model, sockets=2, context=512, evals=60)
