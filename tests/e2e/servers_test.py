"""The main program on a server in another process: what it does when every server is gone."""

import re
import time

import pytest

from sage_jax.metrics import read_metrics
from sage_jax.testing.server_process import ServerProcess
from tests.e2e.conftest import kill


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_without_servers_ends_with_their_error_and_goes_on_when_they_are_back(program, tmp_path, tiny_folder):
    manifests = tmp_path / "checkpoints" / "manifests"
    with ServerProcess("sage_jax.rollout.server", "--model", str(tiny_folder), "--slots=16") as server:
        values = {"engine": "http", "engine_urls": server.url, "episode_timeout_s": 30}
        process = program.start(tmp_path, **values)
        try:
            while process.poll() is None and not (manifests / "0.json").exists():
                time.sleep(0.01)
            server.kill()
            began = time.monotonic()
            assert process.wait(timeout=900) == 1
        finally:
            kill(process)
        # It asked again for as long as an episode may take, then ended with one line that names the server.
        assert time.monotonic() - began > 30
        printed = (tmp_path / "output.txt").read_text()
        assert "Traceback" not in printed
        assert "stamina" not in printed  # each failed attempt is told once, by the client
        # Found in mid-round the error is that of the round's first episode; between rounds, that of the weights.
        assert re.fullmatch(rf"(ServerUnavailable|Engine)Error: .*{server.url}.*", printed.splitlines()[-1])
        kept = [path.name for path in manifests.iterdir()]

        server.start()
        program.run(tmp_path, **values)
    assert "0.json" in kept
    steps = [line["step"] for line in read_metrics(tmp_path) if "reward/success" in line]
    assert steps == [1, 2]
