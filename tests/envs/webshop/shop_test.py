"""A visit page by page, in every mode, and what cannot be clicked."""

import pytest

from sage_jax.envs.webshop.catalogue import Catalogue, ensure_catalogue
from sage_jax.envs.webshop.goals import make_goal
from sage_jax.envs.webshop.nouns import rule_nouns
from sage_jax.envs.webshop.oracle import Oracle
from sage_jax.envs.webshop.product import Instruction, Product, Review
from sage_jax.envs.webshop.shop import Visit


def mug(number, **values):
    defaults = dict(  # noqa: C408
        asin=f"M{number:02d}", title=f"Mug {number}", description="A mug to drink from.", bullets=("ceramic", "blue"),
        category="garden", query="mug", product_category="Home › Kitchen › Mugs", prices=(10.0 + number,),
        options={}, attributes=("ceramic",),
    )  # fmt: skip
    return Product(**{**defaults, **values})


SPECIAL = mug(
    0,
    title="Great Red Mug",
    description="",
    bullets=(),
    prices=(12.5, 15.0),
    options={"color": ("red", "sky blue"), "size": ("small", "red")},
    rating="4.5",
    reviews=(Review("Nice", "5", "Holds tea."),),
    synthetic=Instruction("Find me a mug", ("ceramic",)),
)


@pytest.fixture(scope="module")
def mugs(tmp_path_factory):
    products = [SPECIAL, *(mug(number) for number in range(1, 24))]
    return Catalogue(ensure_catalogue({"test": "mugs"}, products, tmp_path_factory.mktemp("mugs")))


@pytest.fixture
def visit(mugs):
    return Visit(mugs, make_goal(mugs, "synthetic", 0, 0), 0, rule_nouns)


def parts(visit):
    return visit.page.render("text").split(" [SEP] ")


def test_an_episode_from_the_search_to_the_purchase(visit):
    goal = visit.goal
    assert parts(visit) == ["WebShop", "Instruction:", goal.text, "Search"]
    assert visit.page.actions == ("search[<keywords>]",)

    assert visit.play("search[Great Red mug]")
    shown = parts(visit)
    assert shown[:8] == [
        "Instruction:", goal.text, "Back to Search", "Page 1 (Total results: 24)", "Next >",
        "M00", "Great Red Mug", "$12.5 to $15.0",
    ]  # fmt: skip
    assert shown[8:11] == ["M01", "Mug 1", "$11.0"]
    assert len(shown) == 5 + 10 * 3
    assert visit.page.actions[:3] == ("click[back to search]", "click[next >]", "click[m00]")

    assert visit.play("click[M00]")
    assert parts(visit) == [
        "Instruction:", goal.text, "Back to Search", "< Prev", "color", "red", "sky blue", "size", "small", "red",
        "Great Red Mug", "Price: $12.5 to $15.0", "Rating: 4.5", "Description", "Features", "Reviews", "Buy Now",
    ]  # fmt: skip
    assert "click[sky blue]" in visit.page.actions
    assert visit.play("click[sky blue]")
    assert visit.play("click[small]")
    assert visit.chosen == {"color": "sky blue", "size": "small"}

    for name, text in (("description", "No Description"), ("features", "No Features"), ("reviews", '"Nice"')):
        assert visit.play(f"click[{name}]")
        assert parts(visit)[:5] == ["Instruction:", goal.text, "Back to Search", "< Prev", text]
        assert visit.page.actions == ("click[back to search]", "click[< prev]")
        assert visit.play("click[< prev]")
    assert visit.chosen == {"color": "sky blue", "size": "small"}  # kept on the way

    assert visit.play("click[buy now]")
    # Goal: ceramic (hit), red and small (options of goal 0 may differ) and the price; the value is the score's own.
    assert parts(visit) == [
        "Thank you for shopping with us!", "Your score (min 0.0, max 1.0)", str(visit.score.value)
    ]  # fmt: skip
    assert visit.page.actions == ()
    assert not visit.play("click[buy now]")


def test_pages_of_results_go_on_and_back(visit):
    visit.play("search[mug]")
    first = visit.page
    assert visit.play("click[next >]")
    assert "Page 2 (Total results: 24)" in parts(visit)
    assert {"< Prev", "Next >"} <= set(parts(visit))
    assert visit.play("click[next >]")
    assert "Next >" not in parts(visit)
    assert len(visit.page.actions) == 2 + 4
    assert visit.play("click[< prev]")
    assert visit.play("click[< prev]")
    assert visit.page == first
    visit.play("click[next >]")
    shown = visit.page
    visit.play(visit.page.actions[-1])
    assert visit.play("click[< prev]")  # back to the page it came from
    assert [part.text for part in visit.page.parts] == [part.text for part in shown.parts]
    assert visit.play("click[back to search]")
    assert visit.page.name == "search"


@pytest.mark.parametrize(
    "action",
    ["", "buy", "click[]", "click[search]", "click[nothing]", "search[]", "search[ ]", "click[buy now]", "go[mug]"],
)
def test_what_is_not_on_the_page_changes_nothing(visit, action):
    before = visit.page
    assert not visit.play(action)
    assert visit.page is before


def test_results_cannot_be_bought_and_options_need_their_page(visit):
    visit.play("search[mug]")
    assert not visit.play("click[buy now]")
    assert not visit.play("click[sky blue]")
    assert not visit.play("click[< prev]")  # the first page of results has none
    visit.play("click[m01]")
    assert not visit.play("click[sky blue]")  # of another product
    assert visit.play("search[red]")  # the original takes a search from every page
    assert visit.page.name == "results"


def test_a_search_forgets_options_and_a_shared_value_means_the_later_option(visit):
    visit.play("search[great red]")
    visit.play("click[m00]")
    visit.play("click[red]")
    assert visit.chosen == {"size": "red"}
    visit.play("click[< prev]")
    visit.play("click[m00]")
    assert visit.chosen == {}


def test_nothing_found_is_a_page_too(visit):
    assert visit.play("search[spaceship]")
    assert parts(visit)[2:] == ["Back to Search", "Page 1 (Total results: 0)"]


def test_the_rich_text_marks_what_can_be_and_was_clicked(visit):
    assert visit.page.render("text_rich") == (
        f"WebShop\nInstruction:\n{visit.goal.text}\n[button] Search [button_]\n"
    )  # fmt: skip
    visit.play("search[great red]")
    assert "\n[button] M00 [button_]\nGreat Red Mug\n$12.5 to $15.0\n" in visit.page.render("text_rich")
    visit.play("click[m00]")
    visit.play("click[sky blue]")
    text = visit.page.render("text_rich")
    assert text.startswith("You have clicked sky blue.\nInstruction:\n")
    assert "color\n  [button] red [button_]\n  [clicked button] sky blue [clicked button_]\n" in text
    visit.play("click[< prev]")
    assert "\n[clicked button] M00 [clicked button_]\n" in visit.page.render("text_rich")


def test_the_compact_text_tells_the_instruction_once(visit):
    assert visit.page.render("compact") == f"Instruction: | {visit.goal.text} | Search"
    visit.play("search[great red]")
    assert visit.page.render("compact").startswith("Back to Search | Page 1 (Total results: 1) | M00 | Great Red Mug |")


def test_the_oracle_reaches_generated_goals(twin):
    for number in range(0, 400, 8):
        visit = Visit(twin, make_goal(twin, "synthetic", number, 3), 3, rule_nouns, page_size=5)
        oracle = Oracle(visit)
        for _ in range(30):
            action = oracle.suggest()
            if action is None:
                break
            assert visit.play(action)
        assert visit.score is not None
        assert visit.score.value == 1.0


def test_official_goals_can_be_reached(official):
    scores = []
    for number in range(150):
        visit = Visit(official, make_goal(official, "synthetic", number, 0), 0, rule_nouns)
        oracle = Oracle(visit)
        for _ in range(40):
            action = oracle.suggest()
            if action is None or not visit.play(action):
                break
        scores.append(visit.score.value if visit.score else 0.0)
    assert sum(score == 1.0 for score in scores) >= 145
