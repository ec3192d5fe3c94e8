import alfworld.info
import pytest
from textworld.envs.pddl.logic import GameLogic
from textworld.envs.pddl.textgen import CSGUnknownSymbolError

from sage_jax.envs.alfworld.grammar import Grammar, is_static


@pytest.fixture(scope="module")
def text() -> str:
    with open(alfworld.info.ALFRED_TWL2_PATH) as file:
        return file.read()


@pytest.mark.parametrize(
    "sentence",
    [
        "put a mug in desk",
        "look at it, then - slowly - rest",
        'say \\"hello\\"',
        "wait; then go",
        "it's a (small) job!",
    ],
)
def test_the_task_sentence_is_what_the_stock_grammar_says(text, sentence):
    filled = text.replace("UNKNOWN GOAL", sentence)
    context = {"state": None, "facts": [], "variables": {}, "mapping": {}, "entity_infos": {}}
    try:
        expected = GameLogic(domain="", grammar=filled).grammar.derive("#task#", context)
    except Exception as error:  # whatever the stock grammar refuses, this one refuses the same way
        with pytest.raises(type(error)):
            Grammar(filled).derive("#task#", None, {}, {})
    else:
        assert Grammar(filled).derive("#task#", None, {}, {}) == expected


def test_games_share_the_parse_but_not_the_task(text):
    one, two = (Grammar(text.replace("UNKNOWN GOAL", goal)) for goal in ("do one", "do two"))
    assert one.actions is two.actions
    assert one.derive("#task#", None, {}, {}) == "Your task is to: do one."
    assert two.derive("#task#", None, {}, {}) == "Your task is to: do two."


def test_an_unknown_symbol_is_an_error(text):
    with pytest.raises(CSGUnknownSymbolError, match="nowhere"):
        Grammar(text).derive("#nowhere#", None, {}, {})


def test_only_templates_without_fluents_are_static():
    fluents = frozenset({"inreceptacle"})
    assert is_static("open {r}", fluents)
    assert is_static("go to [{r.name | receptacleatlocation(r:receptacle, lend:location)}]", fluents)
    assert not is_static("see [{o.name | inreceptacle(o:object, r:receptacle)}]", fluents)
    assert not is_static("#look.feedback#", fluents)
