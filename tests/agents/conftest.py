"""What tests of agents share: an episode's world with a scripted policy, and a tokenizer with a ChatML template."""

import asyncio

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sage_jax.agents.chat import act_text, review_text
from sage_jax.agents.episode import AgentOptions, Player
from sage_jax.data.sft import text_encoder
from sage_jax.envs.alfworld import AlfworldFactory
from sage_jax.envs.pool import EnvPool
from sage_jax.errors import EnvError
from sage_jax.rewards import ActShaping, OutcomeConfig
from sage_jax.skills import RetrievalConfig
from sage_jax.testing.engines import ScriptedEngine

LOOK = act_text("look .", "look")
REVIEW = review_text("ok .", {"name": "keep_skill", "arguments": {"reason": "nothing new"}})
SPECIAL = ["<|pad|>", "<|unk|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{{ '<|im_start|>system\nYou keep house.<|im_end|>\n' }}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def chatml_tokenizer():
    """One token a character, and a ChatML template with a system message and newlines around every message."""
    letters = [chr(code) for code in range(32, 127)] + ["\n"]
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=SPECIAL[1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=SPECIAL[0], unk_token=SPECIAL[1], eos_token=SPECIAL[3]
    )
    fast.chat_template = CHATML
    return fast


@pytest.fixture(scope="module")
def pool():
    with EnvPool(AlfworldFactory(include_help=True), workers=1) as made:
        yield made


@pytest.fixture(scope="module")
def task(household_games):
    return next(game for game in household_games if game.family == "pick_and_place_simple")


class World:
    """A player, its engine and its pool; `play` checks that nothing is left behind and that ids are what was seen."""

    def __init__(self, pool, tokenizer, script, *, shaping=None, max_length=4096, engine=None, **options):
        self.pool, self.tokenizer = pool, tokenizer
        self.engine = engine or ScriptedEngine(tokenizer, script, max_length=max_length, version=3)
        self.player = Player(
            self.engine,
            pool,
            tokenizer,
            AgentOptions(**options),
            encode=text_encoder(tokenizer),
            retrieval=RetrievalConfig(),
            shaping=shaping or ActShaping(),
            outcome=OutcomeConfig(),
        )

    def play(self, *plans, concurrency=8):
        trajectories = asyncio.run(self.player.play_all(plans, concurrency=concurrency))
        self.assert_all_given_back(len(plans))
        for plan, trajectory in zip(plans, trajectories, strict=True):
            assert (trajectory.task, trajectory.group, trajectory.seed) == (plan.task, plan.group, plan.seed)
            self.assert_recorded_what_the_engine_saw(trajectory)
        return trajectories if len(plans) > 1 else trajectories[0]

    def assert_all_given_back(self, episodes):
        assert len(set(self.engine.ended)) == len(self.engine.ended) == episodes
        assert self.engine.sessions == ()
        assert sum(lane.load for lane in self.pool._lanes) == 0
        with pytest.raises(EnvError, match="no running episode"):
            asyncio.run(self.pool.step(self.engine.ended[-1], "look"))

    def assert_recorded_what_the_engine_saw(self, trajectory):
        """Context by context, the turns' ids joined are the request's ids, and outputs are the sampled ids."""
        turns = [
            (request, answer)
            for request, answer in self.engine.answered
            if request.session.startswith(f"{trajectory.group}/{trajectory.seed}/") and answer.ids
        ]
        context = ()
        for turn, (request, answer) in zip(trajectory.turns, turns, strict=True):
            context = turn.prompt_ids if turn.starts_context else context + turn.prompt_ids
            assert request.ids == context
            assert (turn.output_ids, turn.logprobs) == (answer.ids, answer.logprobs)
            assert (turn.weight_version, turn.finish_reason) == (3, answer.finish_reason)
            context += turn.output_ids

    def prompt(self, turn):
        return self.tokenizer.decode(turn.prompt_ids, skip_special_tokens=True)
