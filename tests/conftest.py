"""What tests of several packages share: the base model's tokenizer, small generated games, a tiny model and its run."""

import pytest
from hypothesis import HealthCheck, settings

from sage_jax.data.base_corpus import corpus_words
from sage_jax.data.tasks import AlfworldSource, load_tasks
from sage_jax.data.word_tokenizer import build_tokenizer

# A busy machine is no fault of the code: nothing is failed for its speed.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

GAMES = {"seed": 3, "train": 1, "valid_seen": 0, "valid_unseen": 0}
SMALL = {"max_receptacles": 8, "min_objects": 3, "max_objects": 6}


@pytest.fixture(scope="session")
def word_tokenizer():
    """The tokenizer of the small base model."""
    return build_tokenizer(corpus_words(), 1024)


@pytest.fixture(scope="session")
def household_games(tmp_path_factory):
    """One small training game of each of the six families."""
    cache = str(tmp_path_factory.mktemp("household"))
    source = AlfworldSource("generated", cache, ("train",), games=GAMES | SMALL, processes=0)
    return load_tasks(source)["train"]


@pytest.fixture(scope="session")
def tiny_cache(tmp_path_factory):
    """The cache of all tiny runs: games and compiled programs are made once."""
    return tmp_path_factory.mktemp("tiny_cache")


@pytest.fixture(scope="session")
def tiny_folder(tiny_cache, tmp_path_factory):
    """The folder of a tiny model that was taught to act and to review."""
    import jax

    from sage_jax.testing.tiny import tiny_model

    jax.config.update("jax_compilation_cache_dir", str(tiny_cache / "xla"))
    return tiny_model(tmp_path_factory.mktemp("tiny_model"))


@pytest.fixture(scope="session")
def tiny_session(tiny_cache, tiny_folder, tmp_path_factory):
    """The parts of a tiny run: real engine, real environments."""
    from sage_jax.testing.tiny import tiny_settings
    from sage_jax.training.session import open_session

    folder = tmp_path_factory.mktemp("tiny_session")
    with open_session(tiny_settings(folder, tiny_folder, tiny_cache), folder) as session:
        yield session


@pytest.fixture(scope="module")
def ray_cluster():
    """A Ray cluster of two nodes with two CPUs each, on this machine; skips where Ray is not installed."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    cluster.add_node(num_cpus=2)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
