"""The endless pre-training corpus of the household base model: traces and copying exercises, as conversations.

A conversation is a list of `data.sft.Message`: only trained texts, always the assistant's, carry loss.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from sage_jax.agents.chat import act_text, opening_message, review_message, review_text
from sage_jax.agents.expert import HouseholdExpert, expert_review, goal_of, hint_skill
from sage_jax.data import household
from sage_jax.data.sft import Message

_THINGS = (*household.OBJECTS, *household.RECEPTACLES)


def household_trace(
    rng: random.Random, *, max_receptacles: int = 12, max_steps: int = 30, noise: float = 0.05, review: float = 0.5
) -> list[Message]:
    """One expert episode: optional skills, acts (some overridden by noise and recovered from), maybe a review."""
    room = household.Household(rng, max_receptacles=max_receptacles)
    types = [name.split()[0] for name in room.receptacles]
    count = rng.choice((0, 0, 1, 1, 2, 3))
    hints = [rng.choice(types if rng.random() < 0.6 else household.RECEPTACLES) for _ in range(count)]
    thing = goal_of(room.first_observation).obj
    skills = [hint_skill(thing, kind) for kind in dict.fromkeys(hints)]
    opening = opening_message(room.first_observation, skills)
    expert = HouseholdExpert(room.first_observation, " ".join(text for _, text in skills), rng)
    messages: list[Message] = [("user", opening, False)]
    observation, steps = room.first_observation, 0
    while not room.won and steps < max_steps:
        thought, action = expert.act(observation)
        noisy = rng.random() < noise
        if noisy:
            thought, action = _slip(expert, room, rng, thought)
            expert.override(action)
        messages.append(("assistant", act_text(thought, action), not noisy))
        observation = room.step(action)
        steps += 1
        if not room.won and steps < max_steps:
            messages.append(("user", observation, False))
    if rng.random() < review:
        titles = [title for title, _ in skills]
        text = review_message(family=room.family, success=room.won, steps=steps, titles=titles)
        messages += [("user", text, False), ("assistant", review_text(*expert_review(expert, room.family, rng)), True)]
    return messages


def _slip(expert: HouseholdExpert, room: household.Household, rng: random.Random, thought: str) -> tuple[str, str]:
    """Returns what a worse agent does: see the wanted thing where it is not, or do something at random."""
    imagined = expert.imagine()
    if imagined is not None and rng.random() < 0.5:
        return imagined
    where, thing = rng.choice(room.receptacles), f"{rng.choice(household.OBJECTS)} {rng.randint(1, 3)}"
    action = rng.choice((f"go to {where}", f"go to {where}", f"open {where}", f"take {thing} from {where}", "look"))
    return thought, action


def _listing(rng: random.Random, low: int = 3, high: int = 12) -> list[str]:
    kinds = rng.sample(_THINGS, rng.randint(2, 6))
    return [f"{kind} {n}" for kind in kinds for n in range(rng.randint(1, 3), 0, -1)][: rng.randint(low, high)]


def find_exercise(rng: random.Random) -> list[Message]:
    """Say of one thing after another whether a list holds it: many decisions about few tokens."""
    things = _listing(rng)
    present = list(dict.fromkeys(thing.split()[0] for thing in things))
    wanted = [rng.choice(present) if rng.random() < 0.5 else rng.choice(_THINGS) for _ in range(rng.randint(3, 8))]
    replies = []
    for kind in wanted:
        seen = next((thing for thing in things if thing.split()[0] == kind), None)
        replies.append(f"need {kind} . see {seen} ." if seen else f"need {kind} . none .")
    listed = household.enumerate_things(things)
    return [("user", f"you see {listed}.", False), ("assistant", " ".join(replies), True)]


def successor_exercise(rng: random.Random) -> list[Message]:
    """Walk a list in its order from a given element, around the end and on."""
    things = _listing(rng, 4)
    at = rng.randrange(len(things))
    walk = [things[(at + k) % len(things)] for k in range(rng.randint(2, min(5, len(things)) + 1))]
    listed = household.enumerate_things(things)
    reply = " . ".join(f"{a} then {b}" for a, b in zip(walk, walk[1:], strict=False))
    return [("user", f"you see {listed}. start at {walk[0]} .", False), ("assistant", reply + " .", True)]


def quote_exercise(rng: random.Random) -> list[Message]:
    """Quote one of several earlier lines, named by its first word."""
    heads = rng.sample(_THINGS, rng.randint(2, 4))
    lines = {head: " ".join(rng.choice(_THINGS) for _ in range(rng.randint(1, 8))) for head in heads}
    wanted = rng.choice(heads)
    text = " . ".join(f"{head} : {line}" for head, line in lines.items())
    return [("user", f"{text} . find {wanted} .", False), ("assistant", f"{wanted} : {lines[wanted]}", True)]


def rule_exercise(rng: random.Random) -> list[Message]:
    """Follow the one of several if-then rules whose condition is met."""
    rules = {kind: f"{rng.choice(household.RECEPTACLES)} {rng.randint(1, 6)}" for kind in rng.sample(_THINGS, 3)}
    seen = rng.choice(list(rules))
    text = " ".join(f"to find {kind} go to {where} ." for kind, where in rules.items())
    return [("user", f"{text} need {seen} .", False), ("assistant", f"<action> go to {rules[seen]} </action>", True)]


EXERCISES: tuple[Callable[[random.Random], list[Message]], ...] = (
    find_exercise,
    successor_exercise,
    quote_exercise,
    rule_exercise,
)


def conversations(rng: random.Random, progress: Callable[[], float]) -> Iterator[list[Message]]:
    """Yields conversations for ever; `progress()` in [0, 1] moves from exercises and small rooms to full traces."""
    while True:
        done = progress()
        if rng.random() < max(0.45, 0.8 - 8 * done):  # of conversations; a fifth of the tokens
            yield rng.choices(EXERCISES, (3, 1, 1, 1))[0](rng)
            continue
        large = done > 0.6 and rng.random() < 0.1
        receptacles = 24 if large else 6 if rng.random() > 8 * done else 12
        max_steps = rng.randint(6, 16) if rng.random() < 0.5 else 40  # short ones end in reviews of failures
        yield household_trace(rng, max_receptacles=receptacles, max_steps=max_steps)


def corpus_words() -> set[str]:
    """Every word that the corpus or the engine's texts can hold."""
    from sage_jax.data.word_tokenizer import split_words

    rng = random.Random(0)
    text = [" ".join(_THINGS), " ".join(household.LAMPS), " ".join(household.FAMILIES), " ".join(map(str, range(100)))]
    stream = conversations(rng, lambda: 0.15)
    for _ in range(3000):
        text += [message for _, message, _ in next(stream)]
    text.append(_ENGINE_WORDS)
    return set(split_words(" ".join(text)))


_ENGINE_WORDS = (
    "general mistake category title principle when_to_apply evidence reason skill_id arguments name "
    "propose_skill update_skill keep_skill examine look inventory help slice close move take from with use "
    "known you are carrying facing the next to it not anything nothing happens there s special about this is a an "
    "normal hot cool cold clean sliced on off turn switch don t see any in put into all three some first last "
    "left right before after and or if then else yes no done fail good bad best worse better found searched "
    "search find try again stop go open closed empty full many few task goal step steps room place object "
    "! ? ; ( ) [ ] { } ' \" - + = / _ * # % & @ < > | \\ ~ ` ^ $"
)
