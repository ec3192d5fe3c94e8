"""Plays episodes: one coroutine each, over an engine and an environment pool, token-in and token-out.

What the engine sampled is kept as ids and never tokenised again; only new observations are tokenised, once. Failures
of the environment or the engine end their own episode with a status and no reward, and no other.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from sage_jax.agents import chat, parsing, prompts
from sage_jax.agents.gathering import map_some
from sage_jax.envs.base import StepResult
from sage_jax.envs.pool import EnvPool
from sage_jax.errors import ConfigError, EngineError, EnvError
from sage_jax.rewards import ActShaping, OutcomeConfig, act_reward, ends_episode, outcome_reward
from sage_jax.rollout.engine import ABORT, LENGTH, Engine, GenerateRequest, SamplingParams
from sage_jax.seeding import derive_seed
from sage_jax.skills import RetrievalConfig, Skill, SkillBank, render_skills, retrieve
from sage_jax.skills.programs import Program
from sage_jax.types import RewardResult, Status, Task, Trajectory, Turn

CONTEXTS = ("chat", "steps")


@dataclasses.dataclass(frozen=True)
class AgentOptions:
    """How an agent plays.

    Attributes:
      context: "chat" (one growing context, compact texts) or "steps" (one fresh prompt a step, verl-agent's way).
      max_steps: environment steps of an episode.
      act_tokens, review_tokens: most tokens of one turn.
      history: steps shown in a "steps" prompt.
      top_p, top_k: truncation of the sampling distribution; 1 and 0 are off.
      choices: sample only admissible actions (the thought is skipped); reported apart.
      episode_timeout_s: an episode that takes longer ends with status timeout.
    """

    context: str = "chat"
    max_steps: int = 30
    act_tokens: int = 48
    review_tokens: int = 128
    history: int = 12
    top_p: float = 1.0
    top_k: int = 0
    choices: bool = False
    episode_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if self.context not in CONTEXTS:
            raise ConfigError(f"context={self.context!r}: must be one of {', '.join(CONTEXTS)}")


@dataclasses.dataclass(frozen=True)
class EpisodePlan:
    """One episode to play.

    Attributes:
      task: the task.
      group: key of the group whose statistics normalise the episode.
      seed: decides the environment's and every sampling draw.
      bank: skills to retrieve from when the episode starts; None shows none.
      review: whether a review turn follows.
      temperature: of sampling; 0 is greedy.
      programs: functions that an agent which writes code is given (`coding.CodePlayer`); None gives none.
      credit: how their use is told, a member of `skills.programs.CREDITS`.
    """

    task: Task
    group: str
    seed: int
    bank: SkillBank | None = None
    review: bool = False
    temperature: float = 1.0
    programs: tuple[Program, ...] | None = None
    credit: str = "trace"


class Player:
    """Plays plans on one engine and one environment pool."""

    def __init__(
        self,
        engine: Engine,
        pool: EnvPool,
        tokenizer: Any,
        options: AgentOptions,
        *,
        encode: Callable[[str], tuple[int, ...]],
        retrieval: RetrievalConfig,
        shaping: ActShaping,
        outcome: OutcomeConfig,
    ):
        """Makes a player.

        Args:
          engine: generates turns.
          pool: runs the environments.
          tokenizer: a Hugging Face tokenizer with a chat template.
          options: how to play.
          encode: text -> ids without special tokens (`data.sft.text_encoder`).
          retrieval: how skills are chosen from a plan's bank.
          shaping: prices of an act turn's form.
          outcome: reward of the episode.
        """
        self.engine, self.pool, self.options = engine, pool, options
        self.tokenizer, self.encode = tokenizer, encode
        self.template = chat.ChatTemplate.from_tokenizer(tokenizer)
        self.retrieval, self.shaping, self.outcome = retrieval, shaping, outcome
        self._played = 0

    async def play_all(
        self, plans: Sequence[EpisodePlan], *, concurrency: int, done: Callable[[Trajectory], None] | None = None
    ) -> list[Trajectory]:
        """Plays every plan once, at most `concurrency` at a time; returns trajectories in the order of the plans."""

        async def one(plan: EpisodePlan) -> Trajectory:
            trajectory = await self.play(plan)
            if done is not None:
                done(trajectory)
            return trajectory

        return await map_some(one, plans, concurrency=concurrency)

    async def review_all(
        self, plans: Sequence[EpisodePlan], played: Sequence[Trajectory], *, concurrency: int
    ) -> list[Trajectory]:
        """Reviews every episode once, see `review`; returns trajectories in the order of the plans."""
        pairs = zip(plans, played, strict=True)
        return await map_some(lambda pair: self.review(*pair), pairs, concurrency=concurrency)

    async def play(self, plan: EpisodePlan) -> Trajectory:
        """Plays one episode; infrastructure failures become the trajectory's status."""
        episode = self._next_episode(plan)
        return await self._finish(episode, episode.run())

    async def review(self, plan: EpisodePlan, played: Trajectory) -> Trajectory:
        """Returns an episode that was played without a review with one by the engine's present policy.

        So several policies can review the same episode. One that has no reward or no turns is returned as it is.
        """
        if not played.turns or not played.reward.status.has_reward:
            return played
        episode = self._next_episode(plan)
        reviewed = await self._finish(episode, episode.review(played))
        if not reviewed.reward.status.has_reward:
            return reviewed
        return dataclasses.replace(
            played, turns=(*played.turns, *reviewed.turns[len(played.turns) :]), info=reviewed.info
        )

    def _next_episode(self, plan: EpisodePlan) -> Episode:
        self._played += 1
        return self.episode(plan, f"{plan.group}/{plan.seed}/{self._played}")

    async def _finish(self, episode: Episode, work: Coroutine[Any, Any, None]) -> Trajectory:
        """Awaits an episode's work and returns what came of it."""
        try:
            async with asyncio.timeout(self.options.episode_timeout_s):
                await work
        except TimeoutError:
            episode.fail(Status.TIMEOUT, f"longer than episode_timeout_s={self.options.episode_timeout_s}")
        except EnvError as error:
            episode.fail(Status.ENV_ERROR, str(error))
        except EngineError as error:
            episode.fail(Status.ENGINE_ERROR, str(error))
        finally:
            await self.pool.release(episode.name)
            try:
                await self.engine.end_session(episode.name)
            except EngineError as error:  # the episode is over: an engine that is gone fails the next one's turn
                episode.add_error(str(error))
        return episode.trajectory()

    def episode(self, plan: EpisodePlan, name: str) -> Episode:
        """Returns what plays one plan."""
        return Episode(self, plan, name)


class Episode:
    """The state of one episode while it is played; agents of another kind replace how it opens, reads and ends."""

    def __init__(self, player: Player, plan: EpisodePlan, name: str):
        self._player, self._plan, self.name = player, plan, name
        self._context: tuple[int, ...] = ()
        self._open_turn = False  # the last output lacks its stop token
        self._turns: list[Turn] = []
        self._steps: list[prompts.Step] = []
        self._status, self._error, self._ended_by_turn = Status.OK, "", False
        self._won, self._score = False, 0.0
        self._task_text = ""
        self._skills: tuple[Skill, ...] = ()

    async def run(self) -> None:
        """Plays it; what came of it is in `trajectory`, also when this raises."""
        plan, options = self._plan, self._player.options
        observation = await self._player.pool.reset(self.name, plan.task, plan.seed)
        self._task_text = observation.info.get("task", observation.text)
        await self._prepare()
        text, admissible = observation.text, tuple(observation.admissible)
        for _ in range(options.max_steps):
            parse = await self._act(text, admissible)
            if parse is None or self._ended_by_turn:
                break
            action = parse.action or ""  # where no_action does not end the episode, the step is spent on nothing
            result = await self._player.pool.step(self.name, action)
            self._steps.append(prompts.Step(text, action))
            text, admissible = result.text, tuple(result.admissible)
            self._won = bool(result.won)
            self._note(result)
            if result.done or result.won:
                break
        else:
            self._status = Status.TRUNCATED
        await self._conclude()
        if plan.review and self._turns and self._status.has_reward:
            await self._review()

    async def review(self, played: Trajectory) -> None:
        """Takes up what was played, of this plan, and reviews it."""
        info, turns = played.info, played.turns
        self._turns = list(turns)
        for turn in turns:
            self._context = (*(() if turn.starts_context else self._context), *turn.prompt_ids, *turn.output_ids)
        self._open_turn = turns[-1].output_ids[-1] not in self._player.template.stop_ids
        acts = [turn.info for turn in turns if turn.stream == "act"]
        self._steps = [prompts.Step(act["observation"], act["action"] or "") for act in acts[: info["steps"]]]
        self._status, self._won, self._score = played.reward.status, info["success"], info["score"]
        self._task_text, self._ended_by_turn = info["task"], info["ended_by_turn"]
        if self._plan.bank is not None:
            self._skills = tuple(map(self._plan.bank.get, info["skills"]))
        await self._review()

    async def _prepare(self) -> None:
        """Chooses the skills that the first prompt shows."""
        plan = self._plan
        if plan.bank is not None:
            self._skills = retrieve(
                plan.bank, task_text=self._task_text, category=plan.task.family, config=self._player.retrieval
            )

    def _opening(self, text: str) -> str:
        """Returns the first message of a growing context."""
        return chat.opening_message(text, [(skill.title, skill.principle) for skill in self._skills])

    def _parse(self, output: str, *, truncated: bool, admissible: tuple[str, ...]) -> parsing.ActParse:
        """Reads an act turn. An environment that lists no actions takes any."""
        return parsing.parse_act(output, truncated=truncated, admissible=admissible or None)

    def _note(self, result: StepResult) -> None:
        """Takes note of what an action led to."""
        self._score += result.reward

    async def _conclude(self) -> None:
        """Does what is left to do in the environment after the last act turn."""

    def _more_info(self) -> dict[str, Any]:
        """Returns what the trajectory tells besides."""
        return {}

    async def _act(self, text: str, admissible: tuple[str, ...]) -> parsing.ActParse | None:
        """Generates one act turn; None when the context had no room for it."""
        options, skills = self._player.options, self._skills
        if options.context == "steps":
            message = prompts.act_prompt(
                prompts.ActPrompt(
                    task=self._task_text,
                    observation=text,
                    admissible=admissible,
                    history=tuple(self._steps),
                    history_length=options.history,
                    skills=render_skills(skills),
                )
            )
        else:
            message = text if self._turns else self._opening(text)
        # Where an action takes words of the agent's own there is no list to choose from.
        listed = bool(admissible) and not any(map(parsing.is_form, admissible))
        choices = admissible if options.choices and listed else None
        output, finish = await self._generate("act", message, options.act_tokens, choices)
        if output is None:
            self._status = Status.TRUNCATED
            return None
        parse = self._parse(output, truncated=finish == LENGTH, admissible=admissible)
        self._ended_by_turn = ends_episode(parse.flags, self._player.shaping)
        reward = act_reward(parse.flags, config=self._player.shaping)
        info = {"action": parse.action, "flags": sorted(parse.flags), "observation": text}
        self._turns[-1] = dataclasses.replace(self._turns[-1], reward=reward, info={**self._turns[-1].info, **info})
        return parse

    async def _review(self) -> None:
        """Generates the review turn; the method reads it and rewards it."""
        plan, options = self._plan, self._player.options
        if options.context == "steps":
            message = prompts.review_prompt(
                prompts.ReviewPrompt(
                    task=self._task_text,
                    category=plan.task.family,
                    success=self._won,
                    reward=self._outcome().value or 0.0,
                    steps=tuple(self._steps),
                    skills=self._skills,
                )
            )
        else:
            titles = [skill.title for skill in self._skills]
            message = chat.review_message(
                family=plan.task.family, success=self._won, steps=len(self._steps), titles=titles
            )
        await self._generate("review", message, options.review_tokens, None)

    async def _generate(
        self, stream: str, message: str, max_tokens: int, choices: Sequence[str] | None
    ) -> tuple[str | None, str]:
        """Appends one turn; returns its text (None when there was no room) and the finish reason."""
        player, plan = self._player, self._plan
        first = player.options.context == "steps" or not self._turns
        prompt = player.template.user(player.encode(message), first=first)
        if first:
            self._context = ()
        elif self._open_turn:
            prompt = (player.template.stop_ids[0], *prompt)
        stops = player.template.stop_ids
        sampling = SamplingParams(
            max_new_tokens=max_tokens,
            temperature=plan.temperature,
            top_p=player.options.top_p,
            top_k=player.options.top_k,
            stop_token_ids=stops,
            seed=derive_seed(plan.seed, "turn", len(self._turns)),
            choices=None if choices is None else self._choice_ids(choices),
        )
        ids = (*self._context, *prompt)
        result = await player.engine.generate(
            GenerateRequest(f"{self.name}/{len(self._turns)}", self.name, ids, sampling)
        )
        if result.finish_reason == ABORT:  # what was written so far is no choice of the policy's
            raise EngineError(f"{self.name}: the engine aborted turn {len(self._turns)}")
        if not result.ids:
            return None, result.finish_reason
        self._context = (*ids, *result.ids)
        self._open_turn = result.ids[-1] not in stops
        text = player.tokenizer.decode(result.ids, skip_special_tokens=True)
        self._turns.append(
            Turn(
                stream=stream,
                prompt_ids=prompt,
                output_ids=result.ids,
                logprobs=result.logprobs,
                sampled_logprobs=result.sampled_logprobs,
                starts_context=first,
                weight_version=result.weight_version,
                finish_reason=result.finish_reason,
                info={"text": text},
            )
        )
        return text, result.finish_reason

    def _choice_ids(self, actions: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        stop = self._player.template.stop_ids[0]
        texts = [f"<think> </think> <action> {action} </action>" for action in actions if action != "help"]
        return tuple((*self._player.encode(text), stop) for text in texts)

    def fail(self, status: Status, reason: str) -> None:
        """Ends it without a reward."""
        self._status = status
        self.add_error(reason)

    def add_error(self, reason: str) -> None:
        """Adds to the trajectory's error."""
        self._error = "; ".join(filter(None, (self._error, reason)))

    def _outcome(self) -> RewardResult:
        return outcome_reward(
            won=self._won,
            score=self._score,
            status=self._status,
            ended_by_turn=self._ended_by_turn,
            config=self._player.outcome,
        )

    def trajectory(self) -> Trajectory:
        """Returns what was played; every act turn's reward is the episode's outcome plus its own shaping."""
        outcome = self._outcome()
        turns = tuple(_with_outcome(turn, outcome) if turn.stream == "act" else turn for turn in self._turns)
        info = {
            "task": self._task_text,
            "success": self._won,
            "score": self._score,
            "steps": len(self._steps),
            "tokens": sum(len(turn.output_ids) for turn in turns),
            "skills": [skill.id for skill in self._skills],
            "ended_by_turn": self._ended_by_turn,
            "error": self._error,
            **self._more_info(),
        }
        plan = self._plan
        return Trajectory(plan.task, plan.group, plan.seed, turns, outcome, info)


def _with_outcome(turn: Turn, outcome: RewardResult) -> Turn:
    if outcome.value is None or turn.reward is None or turn.reward.value is None:
        status = outcome.status if outcome.value is None else Status.ENGINE_ERROR
        return dataclasses.replace(turn, reward=RewardResult(None, status))
    parts = {**outcome.parts, **turn.reward.parts}
    return dataclasses.replace(turn, reward=RewardResult(outcome.value + turn.reward.value, outcome.status, parts))
