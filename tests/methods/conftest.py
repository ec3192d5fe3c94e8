"""Trajectories written by hand."""

import pytest

from sage_jax.types import RewardResult, Status, Task, Trajectory, Turn


@pytest.fixture
def make_trajectory():
    """Returns (group, act rewards, review reward, ...) -> Trajectory; None is a reward that the machine lost."""

    def turn(stream, reward, status, text, number):
        paid = stream == "act" or reward is not None  # a review without a reward has not been read yet
        return Turn(
            stream=stream,
            prompt_ids=(1, 2, 3) if not number else (4,),
            output_ids=(5, 6),
            logprobs=(-0.5, -1.0),
            starts_context=not number,
            weight_version=7,
            reward=RewardResult(reward, status if reward is None else Status.OK) if paid else None,
            info={"text": text},
        )

    def make(group="g", acts=(0.0,), review=None, *, text=None, status=Status.OK, success=False, steps=None, task=None):
        turns = [turn("act", reward, status, "", number) for number, reward in enumerate(acts)]
        if review is not None or text is not None:
            turns.append(turn("review", review, status, text or "", len(turns)))
        value = None if not status.has_reward else 10.0 * success
        info = {
            "success": success,
            "score": float(success),
            "steps": len(acts) if steps is None else steps,
            "tokens": 2 * len(turns),
        }
        task = task or Task(f"alfworld/train/{group}", "alfworld", "train", "pick_and_place_simple")
        return Trajectory(task, group, 0, tuple(turns), RewardResult(value, status), info)

    return make
