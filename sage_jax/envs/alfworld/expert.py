"""ALFWorld's scripted expert, repaired: it follows its own moves again, and draws from a seed of its own."""

from __future__ import annotations

import functools
import random

import alfworld.gen.constants as constants
from alfworld.agents.expert import HandCodedAgentFailed, HandCodedAgentTimeout, handcoded_expert_tw
from alfworld.agents.expert.handcoded_expert import BasePolicy
from textworld.core import GameState

from sage_jax.envs.alfworld.episode import Episode

MAX_STEPS = 200
_READ = frozenset({"holds", "inreceptacle", "isclean", "iscool", "ishot"})  # what the scripts ask of the facts


@functools.lru_cache(maxsize=16384)
def _without_numbers(text: str) -> str:
    return " ".join("".join(char for char in text if not char.isdigit()).split())


class _Repaired(BasePolicy):
    """Mixin for the scripted policies: follows moves, remembers what it saw, and reads facts that are text already.

    Their state tracking looks for "put", the verb of older versions, while the action is called "move" since 0.4: the
    expert went on believing that it held what it had put down, and failed most tasks with two objects.
    """

    def update_state_tracking(self, game_state: GameState, last_action: str) -> None:
        """Tracks the last action under the verb that the tracking knows."""
        if last_action.startswith("move ") and self.inventory:
            last_action = "put " + last_action.removeprefix("move ")
        super().update_state_tracking(game_state, last_action)

    def blacklist_obj(self, obj: str) -> None:
        """Forgets an object that was taken or put down, but not where others of its class were seen.

        The stock script forgets those too, and searches the whole room again for the second of two objects.
        """
        kind = self.object_id_to_cls(obj)
        where = self.obj_cls_to_receptacle_map.get(kind)
        super().blacklist_obj(obj)
        more_here = any(other == kind for other in self.visible_objects.values())
        if where is not None and (where != self.curr_recep or more_here):
            self.obj_cls_to_receptacle_map[kind] = where

    def get_facts(self, game_state: GameState) -> list[str]:
        """Returns the facts, which this project hands over as text."""
        return game_state["facts"]

    def remove_num_ids(self, text: str) -> str:
        """Returns "take mug 1 from shelf 2" as "take mug from shelf"."""
        return _without_numbers(text)


_POLICIES = {
    name: type(f"{name}Fixed", (_Repaired, getattr(handcoded_expert_tw, name)), {})
    for name in dir(handcoded_expert_tw)
    if name.endswith("TWPolicy")
}


class Expert:
    """Suggests the next action of an episode, watching every action played so far, its own or not."""

    def __init__(self, episode: Episode, seed: int) -> None:
        """Starts beside a freshly started episode.

        Args:
          episode: the episode to watch.
          seed: of the expert's choices among equals.
        """
        self._episode = episode
        self._random_state = random.Random(seed).getstate()
        self._agent = handcoded_expert_tw.HandCodedTWAgent(max_steps=MAX_STEPS)
        params = {k: v.lower() if v in constants.OBJECTS else v for k, v in episode.game.params.items()}
        name = params["task_type"].replace("_", " ").title().replace(" ", "") + "TWPolicy"
        self._agent.task_params = params
        self._agent.policy = _POLICIES[name](params, max_steps=MAX_STEPS)
        self._gave_up = False

    def suggest(self, last_action: str = "") -> str | None:
        """Returns the expert's next action after `last_action` was played; None once it has given up.

        Call it exactly once after the start and after each action: it learns where things are from what it sees.
        """
        if self._gave_up or self._episode.won:
            return None
        state = GameState()
        state["feedback"] = self._episode.feedback
        state["facts"] = self._episode.readable_facts(_READ)
        state["admissible_commands"] = list(self._episode.commands)
        try:
            action = self._act(state, last_action)
        except (HandCodedAgentTimeout, HandCodedAgentFailed, IndexError, KeyError):
            # Index and key errors come from scripts that were led off their path by another player's actions.
            self._gave_up = True
            return None
        return action if action in self._episode.commands else "look"

    def _act(self, state: GameState, last_action: str) -> str:
        """Runs the script with the global generator in this expert's own state, and puts the global one back."""
        outer = random.getstate()
        random.setstate(self._random_state)
        try:
            return self._agent.act(state, 0, self._episode.won, last_action)
        finally:
            self._random_state = random.getstate()
            random.setstate(outer)
