"""An engine that fails in mid-run: the run ends, and the same command goes on as if nothing had been."""

import pytest

from sage_jax.errors import EngineError
from sage_jax.rollout.embedded import EmbeddedEngine
from sage_jax.testing.tiny import tiny_settings
from sage_jax.training.loop import train
from tests.e2e.kill_test import assert_same


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_round_that_an_outage_took_is_played_again_to_the_same_end(tiny_folder, tiny_cache, tmp_path, monkeypatch):
    def settings(name):
        return tiny_settings(tmp_path / name, tiny_folder, tiny_cache, rounds=2)

    async def gone(self, request):
        if request.session.startswith("1/"):  # the second round's
            raise EngineError("the engine is gone")
        return await generate(self, request)

    generate = EmbeddedEngine.generate
    monkeypatch.setattr(EmbeddedEngine, "generate", gone)
    with pytest.raises(EngineError, match="round 2: none of its 6 .*the engine is gone"):
        train(settings("run"))
    manifests = tmp_path / "run" / "checkpoints" / "manifests"
    assert sorted(path.name for path in manifests.iterdir()) == ["0.json", "1.json"]
    monkeypatch.undo()
    assert_same(train(settings("run")), train(settings("undisturbed")))
