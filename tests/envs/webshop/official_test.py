"""Reading a data folder of the original: what is cleaned, what is left out, what is refused."""

import json
import pathlib

import pytest

from sage_jax.envs.webshop import official
from sage_jax.envs.webshop.official import NO_ATTRIBUTE, OfficialSource, official_folder, read_prices
from sage_jax.envs.webshop.product import Instruction, Product, Review
from sage_jax.errors import DataError

KETTLE = {
    "asin": "K1",
    "name": "Kettle",
    "full_description": None,
    "small_description": "boils",
    "product_category": "Home › Kitchen",
    "category": "garden",
    "query": " Tea Kettles ",
    "pricing": "$1,012.50$2,000.00$9.00",
    "images": ["x"],
    "customization_options": {
        "Color": [{"value": " Red/Blue ", "image": None}, {"value": "Black"}],
        "Size": None,
    },
}
LAMP = KETTLE | {"asin": "L1", "name": "Lamp", "pricing": "", "customization_options": "", "small_description": ["a"]}
INSTRUCTIONS = {
    "K1": {
        "attributes": ["heavy duty"],
        "instruction": "Find me a kettle",
        "instruction_attributes": ["heavy duty"],
    }
}
HUMAN = {
    "L1": [
        {"instruction": "i want a lamp.", "instruction_attributes": ["warm"], "instruction_options": ["red"]},
        {"instruction": "any lamp", "instruction_attributes": [], "instruction_options": []},
    ]
}
REVIEWS = [
    {"asin": "K1", "average_rating": 4.5, "reviews": [{"title": "Good", "stars": "5.0", "review": "Boils fast."}]}
]


@pytest.fixture
def folder(tmp_path):
    def write(products=(KETTLE, LAMP), reviews=True, size="small", **files):
        contents = {official.PRODUCTS[size]: list(products), official.INSTRUCTIONS[size]: INSTRUCTIONS}
        contents |= {official.HUMAN: HUMAN} | ({official.REVIEWS: REVIEWS} if reviews else {})
        for name, content in contents.items():
            (tmp_path / name).write_text(json.dumps(content))
        for name, text in files.items():
            (tmp_path / getattr(official, name)["small"]).write_text(text)
        return tmp_path

    return write


def test_products_are_cleaned_as_in_the_original(folder):
    kettle, lamp = OfficialSource(folder()).products()
    assert kettle == Product(
        asin="K1",
        title="Kettle",
        description="",
        bullets=("boils",),
        category="garden",
        query="tea kettles",
        product_category="Home › Kitchen",
        prices=(1012.5, 2000.0),
        options={"color": ("red | blue", "black")},
        attributes=("heavy duty",),
        rating="4.5",
        reviews=(Review("Good", "5.0", "Boils fast."),),
        synthetic=Instruction("Find me a kettle", ("heavy duty",)),
    )
    assert (lamp.prices, lamp.price_tag, lamp.attributes) == ((), "$100.0", (NO_ATTRIBUTE,))
    assert (lamp.synthetic, lamp.rating, lamp.reviews) == (None, "N.A.", ())
    assert lamp.human == (Instruction("i want a lamp", ("warm",), ("red",)),)  # the one without attributes is no goal
    assert Product.from_json(kettle.to_json()) == kettle
    assert Product.from_json(lamp.to_json()) == lamp


def test_repeated_and_broken_ids_are_left_out(folder):
    others = [KETTLE | {"name": "again"}, LAMP | {"asin": "nan"}, LAMP | {"asin": "12345678901"}, LAMP]
    assert [product.title for product in OfficialSource(folder([KETTLE, *others])).products()] == ["Kettle", "Lamp"]


def test_the_file_is_read_in_pieces(folder, monkeypatch):
    whole = list(OfficialSource(folder(reviews=False)).products())
    assert len(whole) == 2
    for size in (1, 7, 64):
        monkeypatch.setattr(official, "_CHUNK", size)
        assert list(OfficialSource(folder(reviews=False)).products()) == whole


def test_the_full_set_has_files_of_its_own(folder):
    path = folder(size="full", reviews=False)
    assert len(list(OfficialSource(path, "full").products())) == 2
    with pytest.raises(DataError, match="items_shuffle_1000.json is missing: WEBSHOP_DATA"):
        OfficialSource(path, "small").identity()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "holds no JSON list"),
        ("[", "ends inside an object or holds no JSON"),
        ('[{"asin": "K1"', "ends inside an object"),
        ("[1]", "lists int, expected objects"),
        ('[{"asin": "K1"}]', "product K1 cannot be read: KeyError"),
    ],
)
def test_a_broken_file_is_named(folder, text, message):
    source = OfficialSource(folder(PRODUCTS=text))
    with pytest.raises(DataError, match=f"items_shuffle_1000.json.*{message}"):
        list(source.products())


def test_instructions_must_be_an_object(folder):
    with pytest.raises(DataError, match="items_ins_v2_1000.json holds no JSON object"):
        list(OfficialSource(folder(INSTRUCTIONS="[]")).products())
    with pytest.raises(DataError, match="items_ins_v2_1000.json cannot be read"):
        list(OfficialSource(folder(INSTRUCTIONS="{")).products())


def test_prices():
    assert read_prices("$12.99") == (12.99,)
    assert read_prices("$1.50$2.00") == (1.5, 2.0)
    assert read_prices("") == read_prices(None) == ()


def test_the_folder_is_named_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)
    assert official_folder() is None
    monkeypatch.setenv("WEBSHOP_DATA", str(tmp_path))
    assert official_folder() == pathlib.Path(tmp_path)
