"""What the WebShop configs share at each scale; a config file adds its method. Not a config itself."""

from typing import Any

from configs import alfworld_common, common
from configs.common import SCALES

_SHOP: dict[str, Any] = dict(benchmark="webshop", eval_splits=("test",), max_steps=15)
_TWIN: dict[str, Any] = _SHOP | dict(
    source="generated",
    shop_text="compact",
    shop_page=5,
    shop_train=600,
    max_length=1280,  # 15 steps, each with 5 results or an item page
    row_length=1280,
)

# Pre-trained on shops of its own corpus (docs/base_model.md). At temperature 1 it misspells ids: 57 % of actions are
# none of the page's, and no episode is won.
_SHOPPER = dict(model="assets/shopper", temperature=0.5)
LOCAL: dict[str, Any] = (
    alfworld_common.LOCAL
    | _TWIN
    | _SHOPPER
    | dict(
        max_steps=10,  # within them a search with the type alone wins 5 %, with attributes 69, with options too 91
        rounds=10,
        tasks_per_round=8,
        min_micro=16,
        sft_episodes=0,  # the base model was trained on such episodes; those of the expert that win tell how to search
        eval_episodes=240,
    )
)
SMOKE: dict[str, Any] = alfworld_common.SMOKE | _TWIN | _SHOPPER | dict(shop_products=120, shop_train=40)
SMOLLM2: dict[str, Any] = alfworld_common.SMOLLM2 | _TWIN | dict(max_length=3072, row_length=3072)
PAPER: dict[str, Any] = (
    alfworld_common.PAPER
    | _SHOP
    | dict(
        source="official",  # 1,000 products, synthetic goals: 0-499 test, from 500 on train
        act_tokens=768,
        history=2,
        kl_coef=0.05,
        retrieval_top_k=6,
        minibatches=15,  # 64 step samples an update; a round has about 64 episodes x 15 steps
        # Deviation: the paper's cold start imitates a stronger model's episodes, which are not released; ours reads
        # only the twin's sentences. Start from a model that was tuned on episodes of your own.
        sft_episodes=0,
        max_length=8960,
        row_length=8960,
    )
)


def make_config(arg: str | None, name: str, own: dict[str, dict[str, Any]]):
    """Returns the config of a scale, see configs/common.py."""
    return common.make_config(arg, name, dict(zip(SCALES, (LOCAL, SMOKE, SMOLLM2, PAPER), strict=True)), own)
