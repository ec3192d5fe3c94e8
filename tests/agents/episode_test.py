"""Episodes on the real ALFWorld engine with a scripted policy: what is recorded, how each ends, what is given back."""

import asyncio
import dataclasses
import random
import re

import pytest

from sage_jax.agents.chat import act_text, review_text
from sage_jax.agents.episode import AgentOptions, EpisodePlan
from sage_jax.agents.expert import HouseholdExpert, expert_review
from sage_jax.data.packing import trajectory_sequences
from sage_jax.data.sft import conversation_sequence
from sage_jax.errors import ConfigError, EngineError
from sage_jax.rewards import ActShaping
from sage_jax.rollout.engine import GenerateRequest, SamplingParams
from sage_jax.skills import GENERAL, SkillBank
from sage_jax.testing.engines import ScriptedEngine
from sage_jax.types import RewardResult, Status
from tests.agents.conftest import LOOK, REVIEW, World


class ExpertScript:
    """Writes each session's turns as the scripted expert would, from the text of its messages; keeps the messages."""

    def __init__(self, tokenizer, skills=""):
        self._tokenizer, self._skills = tokenizer, skills
        self.experts, self.talks = {}, {}

    def __call__(self, request, turn):
        text = self._tokenizer.decode(request.ids).rpartition("<|user|>")[2].partition("<|end|>")[0].strip()
        rng = random.Random(turn)
        if turn == 0:
            text = text.replace("your task is to :", "Your task is to:")
            self.experts[request.session] = HouseholdExpert(text, self._skills, rng)
        expert = self.experts[request.session]
        if text.startswith("review ."):
            reply = review_text(*expert_review(expert, text.split()[3], rng))
        else:
            reply = act_text(*expert.act(text))
        self.talks.setdefault(request.session, []).extend((("user", text, False), ("assistant", reply, True)))
        return reply


def plans(games, **options):
    return [EpisodePlan(game, f"group-{i}", 10 + i, **options) for i, game in enumerate(games)]


def first_observation(pool, task):
    observation = asyncio.run(pool.reset("again", task, 0))
    asyncio.run(pool.release("again"))
    assert "help" in observation.admissible
    return observation


def rewards(trajectory):
    return [turn.reward and turn.reward.value for turn in trajectory.turns]


def test_won_episodes_of_every_family(pool, word_tokenizer, household_games):
    script = ExpertScript(word_tokenizer)
    world = World(pool, word_tokenizer, script, max_steps=40)
    played = world.play(*plans(household_games, review=True, temperature=0.7))
    assert len({trajectory.task.family for trajectory in played}) == 6
    for trajectory in played:
        acts, review = trajectory.turns[:-1], trajectory.turns[-1]
        assert (trajectory.reward.value, trajectory.reward.status) == (10.0, Status.OK)
        assert trajectory.info["success"] is True
        assert trajectory.info["steps"] == len(acts) > 3
        assert trajectory.info["error"] == ""
        assert trajectory.info["tokens"] == sum(len(turn.output_ids) for turn in trajectory.turns)
        assert [turn.stream for turn in trajectory.turns] == ["act"] * len(acts) + ["review"]
        assert rewards(trajectory) == [10.0] * len(acts) + [None]
        assert all(turn.info["flags"] == [] and turn.info["action"] for turn in acts)
        assert f"family {trajectory.task.family} . success in {len(acts)} steps" in world.prompt(review)
    assert world.engine.stats()["turns"] == sum(len(trajectory.turns) for trajectory in played)


def test_a_played_conversation_is_the_sequence_that_imitation_trains_on(pool, word_tokenizer, household_games):
    script = ExpertScript(word_tokenizer)
    world = World(pool, word_tokenizer, script, max_steps=40)
    for trajectory in world.play(*plans(household_games[:2], review=True)):
        (session,) = [name for name in script.talks if name.startswith(f"{trajectory.group}/")]
        sequence = conversation_sequence(script.talks[session], world.player.encode, world.player.template)
        played = [token for turn in trajectory.turns for token in (*turn.prompt_ids, *turn.output_ids)]
        assert sequence.ids.tolist() == played
        mask = [
            float(i >= len(t.prompt_ids)) for t in trajectory.turns for i in range(len(t.prompt_ids + t.output_ids))
        ]
        assert sequence.mask.tolist() == mask
        assert [turn.starts_context for turn in trajectory.turns] == [True] + [False] * (len(trajectory.turns) - 1)
        answers = [answer for request, answer in world.engine.answered if request.session == session]
        assert all(answer.cached_tokens > 0 for answer in answers[1:])


def test_sampling_is_what_the_plan_and_the_options_say(pool, word_tokenizer, task):
    options = {"max_steps": 2, "act_tokens": 20, "review_tokens": 60, "top_p": 0.9, "top_k": 7}
    world = World(pool, word_tokenizer, [LOOK, LOOK, REVIEW], **options)
    world.play(EpisodePlan(task, "g", 5, review=True, temperature=0.3))
    asked = [request.sampling for request, _ in world.engine.answered]
    stops = (word_tokenizer.eos_token_id,)
    assert [sampling.max_new_tokens for sampling in asked] == [20, 20, 60]
    assert {(s.temperature, s.top_p, s.top_k, s.stop_token_ids, s.choices) for s in asked} == {
        (0.3, 0.9, 7, stops, None)
    }
    assert len({sampling.seed for sampling in asked}) == 3
    again = World(pool, word_tokenizer, [LOOK, LOOK, REVIEW], **options)
    again.play(EpisodePlan(task, "g", 5, review=True), EpisodePlan(task, "other", 6))
    seeds = {name: [r.sampling.seed for r, _ in again.engine.answered if r.session.startswith(name)] for name in "go"}
    assert seeds["g"] == [sampling.seed for sampling in asked]  # of the plan's seed and the turn, of nothing else
    assert not set(seeds["o"]) & set(seeds["g"])


def test_the_stop_token_of_a_cut_turn_is_prompt_in_the_next(pool, word_tokenizer, task):
    rambling = f"{LOOK} look look look look look look look look"
    world = World(pool, word_tokenizer, [rambling, LOOK, LOOK], max_steps=3, act_tokens=12)
    trajectory = world.play(EpisodePlan(task, "g", 0))
    stop = word_tokenizer.eos_token_id
    cut, after, last = trajectory.turns
    assert (cut.finish_reason, after.finish_reason) == ("length", "stop")
    assert stop not in cut.output_ids
    assert after.prompt_ids[0] == stop
    assert last.prompt_ids[0] != stop
    assert "truncated" in cut.info["flags"]
    assert [round(value, 3) for value in rewards(trajectory)] == [-2.0, 0.0, 0.0]
    advised = dataclasses.replace(
        trajectory, turns=tuple(dataclasses.replace(turn, advantage=1.0) for turn in trajectory.turns)
    )
    (sequence,) = trajectory_sequences(advised)
    place = len(cut.prompt_ids) + len(cut.output_ids)
    assert (sequence.ids[place], sequence.mask[place]) == (stop, 0.0)
    assert sequence.mask[place - 1] == 1.0
    assert sequence.mask.sum() == trajectory.info["tokens"]


def test_out_of_steps_is_a_loss_and_is_reviewed(pool, word_tokenizer, task):
    world = World(pool, word_tokenizer, [LOOK, LOOK, LOOK, REVIEW], max_steps=3)
    trajectory = world.play(EpisodePlan(task, "g", 0, review=True))
    assert (trajectory.reward.value, trajectory.reward.status) == (0.0, Status.TRUNCATED)
    assert (trajectory.info["success"], trajectory.info["steps"]) == (False, 3)
    assert [turn.stream for turn in trajectory.turns] == ["act"] * 3 + ["review"]
    assert "failure in 3 steps" in world.prompt(trajectory.turns[-1])
    assert {turn.reward.status for turn in trajectory.turns[:-1]} == {Status.TRUNCATED}


@pytest.mark.parametrize("context", ["chat", "steps"])
def test_a_review_afterwards_is_the_review_at_once(pool, word_tokenizer, chatml_tokenizer, task, context):
    options = {"context": context, "max_steps": 2, "max_length": 20000, "act_tokens": 200, "review_tokens": 400}
    tokenizer = word_tokenizer if context == "chat" else chatml_tokenizer
    plan = EpisodePlan(task, "g", 0, bank=bank_of(task))
    once = World(pool, tokenizer, [LOOK, LOOK, REVIEW], **options)
    expected = once.play(dataclasses.replace(plan, review=True))

    world = World(pool, tokenizer, [LOOK, LOOK], **options)
    played = world.play(plan)
    assert [turn.stream for turn in played.turns] == ["act", "act"]
    later = World(pool, tokenizer, [REVIEW], **options)
    (reviewed,) = asyncio.run(later.player.review_all([plan], [played], concurrency=1))
    assert reviewed == expected
    assert later.engine.answered[0][0].ids == once.engine.answered[2][0].ids
    assert later.engine.answered[0][0].sampling == once.engine.answered[2][0].sampling
    assert later.engine.sessions == ()

    lost = dataclasses.replace(played, reward=RewardResult(None, Status.ENV_ERROR))
    assert asyncio.run(later.player.review(plan, lost)) is lost


def test_an_action_that_is_not_on_offer_is_played_and_priced(pool, word_tokenizer, task):
    world = World(pool, word_tokenizer, [act_text("fly .", "go to fridge 99"), LOOK], max_steps=2)
    first, second = world.play(EpisodePlan(task, "g", 0)).turns
    assert (first.info["flags"], first.reward.value) == (["not_admissible"], -0.5)
    assert second.info["observation"] == "Nothing happens."


@pytest.mark.parametrize("review", [False, True])
def test_a_full_context_ends_the_episode(pool, word_tokenizer, task, review):
    roomy = World(pool, word_tokenizer, [LOOK] * 3, max_steps=3)
    roomy.play(EpisodePlan(task, "g", 0))
    before_third = len(roomy.engine.answered[2][0].ids)
    world = World(pool, word_tokenizer, [LOOK] * 9, max_steps=9, max_length=before_third)
    trajectory = world.play(EpisodePlan(task, "g", 0, review=review))
    assert [len(answer.ids) > 0 for _, answer in world.engine.answered] == [True, True, False] + [False] * review
    assert (trajectory.reward.value, trajectory.reward.status) == (0.0, Status.TRUNCATED)
    assert [turn.stream for turn in trajectory.turns] == ["act", "act"]
    assert (trajectory.info["success"], trajectory.info["steps"]) == (False, 2)


def test_an_episode_whose_first_prompt_does_not_fit_has_no_turns(pool, word_tokenizer, task):
    world = World(pool, word_tokenizer, [LOOK], max_length=20)
    trajectory = world.play(EpisodePlan(task, "g", 0, review=True))
    assert (trajectory.turns, trajectory.reward.value, trajectory.reward.status) == ((), 0.0, Status.TRUNCATED)
    assert len(world.engine.answered) == 1  # no review of what did not happen


@pytest.mark.parametrize(
    ("text", "flag", "price"),
    [
        ("<think> no idea . </think> look", "no_action", -3.0),
        ("", "empty", -3.0),
        (act_text("ready .", "done"), "claims_completion", -1.5),  # and it is not on offer
    ],
)
def test_a_malformed_turn_ends_the_episode(pool, word_tokenizer, task, text, flag, price):
    world = World(pool, word_tokenizer, [LOOK, text, REVIEW], max_steps=9)
    trajectory = world.play(EpisodePlan(task, "g", 0, review=True))
    assert (trajectory.reward.value, trajectory.reward.status) == (-1.0, Status.OK)
    assert (trajectory.info["success"], trajectory.info["steps"]) == (False, 1)  # the malformed turn is not played
    assert flag in trajectory.turns[1].info["flags"]
    assert rewards(trajectory) == [-1.0, price, None]
    assert trajectory.turns[1].reward.parts["ended_by_turn"] == -1.0


def test_where_a_malformed_turn_ends_nothing_it_spends_a_step(pool, word_tokenizer, task):
    world = World(pool, word_tokenizer, ["look", "", LOOK], max_steps=3, shaping=ActShaping(end_episode=()))
    trajectory = world.play(EpisodePlan(task, "g", 0))
    assert (trajectory.reward.value, trajectory.reward.status) == (0.0, Status.TRUNCATED)
    assert trajectory.info["steps"] == 3
    observations = [turn.info["observation"] for turn in trajectory.turns]
    assert observations[1:] == ["Nothing happens.", "Nothing happens."]


def bank_of(task):
    bank = SkillBank().add(category=GENERAL, title="fridge first", principle="start at fridge")
    bank = bank.add(category=task.family, title="desk first", principle="start at desk")
    return bank.add(category="another_family", title="bed first", principle="start at bed")


def test_chat_shows_the_retrieved_skills_once(pool, word_tokenizer, task):
    world = World(pool, word_tokenizer, [LOOK, LOOK, REVIEW], max_steps=2)
    trajectory = world.play(EpisodePlan(task, "g", 0, bank=bank_of(task), review=True))
    first, second, review = map(world.prompt, trajectory.turns)
    assert first.startswith("skill fridge first : start at fridge . skill desk first : start at desk . you are in")
    assert "skill" not in second
    assert "skills fridge first , desk first ." in review
    assert trajectory.info["skills"] == ["gen_1", "task_1"]


def test_steps_begin_a_context_each_and_show_what_can_be_done(pool, chatml_tokenizer, task):
    """Also on another tokenizer and template than the base model's."""
    sizes = {"act_tokens": 200, "review_tokens": 400, "max_length": 20000}
    move = act_text("go .", "inventory")
    world = World(pool, chatml_tokenizer, [LOOK, move, LOOK, REVIEW], context="steps", max_steps=3, history=1, **sizes)
    trajectory = world.play(EpisodePlan(task, "g", 0, bank=bank_of(task), review=True))
    assert all(turn.starts_context for turn in trajectory.turns)
    acts, review = trajectory.turns[:-1], trajectory.turns[-1]
    observation = first_observation(pool, task)
    for number, prompt in enumerate(map(world.prompt, acts)):
        listed = prompt.partition("Admissible actions:\n")[2].partition("\n\n")[0].split("\n")
        assert listed == [action for action in observation.admissible if action != "help"]  # looking changes none of it
        assert f"Your task is: {observation.info['task']}" in prompt
        assert "- fridge first: start at fridge" in prompt
        assert f"Observation {number + 1}: " in prompt
        assert prompt.count("Action ") == min(number, 1)
        assert prompt.startswith("system\nYou keep house.\nuser\nYou act in")
    assert "Action 2: inventory" in world.prompt(acts[2])
    told = world.prompt(review)
    assert "Outcome: failure after 3 steps" in told
    assert "[gen_1] fridge first" in told
    assert "[task_1] desk first" in told
    assert "bed first" not in told
    assert re.findall(r"Action \d: (\w+)", told) == ["look", "inventory", "look"]


def test_a_cut_turn_leaves_no_trace_in_the_next_step_prompt(pool, chatml_tokenizer, task):
    script = [f"{LOOK} and so on and so on", LOOK]
    world = World(pool, chatml_tokenizer, script, context="steps", max_steps=2, act_tokens=60, max_length=20000)
    cut, after = world.play(EpisodePlan(task, "g", 0)).turns
    assert (cut.finish_reason, after.finish_reason) == ("length", "stop")
    assert after.prompt_ids[0] != chatml_tokenizer.eos_token_id


def test_choices_are_the_admissible_actions(pool, word_tokenizer, task):
    def script(request, turn):
        if request.sampling.choices is None:
            return REVIEW
        return word_tokenizer.decode(request.sampling.choices[turn])

    world = World(pool, word_tokenizer, script, max_steps=3, choices=True)
    trajectory = world.play(EpisodePlan(task, "g", 0, review=True))
    observation = first_observation(pool, task)
    offered = world.engine.answered[0][0].sampling.choices
    texts = [word_tokenizer.decode(choice, skip_special_tokens=True) for choice in offered]
    assert texts == [
        f"<think> </think> <action> {action} </action>" for action in observation.admissible if action != "help"
    ]
    assert trajectory.turns[0].info["action"] == observation.admissible[0]
    assert all(turn.info["flags"] == [] and turn.finish_reason == "stop" for turn in trajectory.turns[:3])
    assert [turn.stream for turn in trajectory.turns] == ["act"] * 3 + ["review"]


def test_plans_keep_their_order_and_the_limit_of_concurrency(pool, word_tokenizer, household_games):
    running, most, ended = set(), 0, []

    async def script(request, turn):
        nonlocal most
        running.add(request.session)
        most = max(most, len(running))
        await asyncio.sleep(0)
        if turn == lengths[int(request.session.split("/")[0][-1])] - 1:
            running.discard(request.session)
            return "<think>"  # malformed: the end
        return LOOK

    lengths = [4, 1, 3, 1, 2, 1]
    world = World(pool, word_tokenizer, script, max_steps=9)
    plays = world.player.play_all(plans(household_games), concurrency=2, done=ended.append)
    trajectories = asyncio.run(plays)
    world.assert_all_given_back(6)
    assert [len(trajectory.turns) for trajectory in trajectories] == lengths
    assert most == 2
    assert sorted(trajectory.group for trajectory in ended) == [trajectory.group for trajectory in trajectories]


def test_an_unknown_context_is_refused():
    with pytest.raises(ConfigError, match="context='tree'.*chat, steps"):
        AgentOptions(context="tree")


def test_the_scripted_engine_refuses_what_an_engine_must(word_tokenizer):
    async def ask(engine, *, choices=None, session="s"):
        return await engine.generate(GenerateRequest("r", session, (3, 4), SamplingParams(8, choices=choices)))

    engine = ScriptedEngine(word_tokenizer, ["look"])
    assert asyncio.run(ask(engine)).finish_reason == "length"  # no stop token was asked for
    with pytest.raises(EngineError, match="no turn 1"):
        asyncio.run(ask(engine))
    with pytest.raises(EngineError, match="none of the 1 choices"):
        asyncio.run(ask(engine, choices=((5,),), session="t"))
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        asyncio.run(ask(engine))
