"""A small generated catalogue, and the official one where its data are."""

import pytest

from sage_jax.envs.webshop.catalogue import Catalogue, ensure_catalogue
from sage_jax.envs.webshop.official import OfficialSource, official_folder
from sage_jax.envs.webshop.twin import TwinSource
from sage_jax.types import Task

COUNT, SEED = 400, 3


@pytest.fixture(scope="session")
def twin_folder(tmp_path_factory):
    source = TwinSource(COUNT, SEED)
    return ensure_catalogue(source.identity(), source.products(), tmp_path_factory.mktemp("twin"))


@pytest.fixture(scope="session")
def twin(twin_folder):
    return Catalogue(twin_folder)


@pytest.fixture(scope="session")
def official(tmp_path_factory):
    """The official 1,000 products."""
    folder = official_folder()
    if folder is None:
        pytest.skip("WEBSHOP_DATA does not name a data folder of princeton-nlp/WebShop")
    source = OfficialSource(folder)
    return Catalogue(ensure_catalogue(source.identity(), source.products(), tmp_path_factory.mktemp("official")))


@pytest.fixture(scope="session")
def make_task(twin_folder, twin):
    """Returns number -> Task of the small catalogue."""

    def make(number=0, **payload):
        family = twin.category(int(twin.goals("synthetic")[number][0]))
        whole = {"catalogue": str(twin_folder), "goals": "synthetic", "goal": number, "seed": SEED}
        return Task(f"webshop/test/{number}", "webshop", "test", family, whole | payload)

    return make
