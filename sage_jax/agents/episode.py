"""Plays episodes: one coroutine each, over an engine and an environment pool, token-in and token-out.

What the engine sampled is kept as ids and never tokenised again; only new observations are tokenised, once. Failures
of the environment or the engine end their own episode with a status and no reward, and no other; those of a review end
the review alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from sage_jax.agents import chat, parsing, prompts
from sage_jax.agents.gathering import StragglerError, Stragglers, map_some
from sage_jax.agents.plans import AgentOptions, EpisodePlan
from sage_jax.envs.base import StepResult
from sage_jax.envs.pool import EnvPool
from sage_jax.errors import AbortedError, ConfigError, EngineError, EnvError
from sage_jax.rewards import ActShaping, OutcomeConfig, act_reward, ends_episode, outcome_reward
from sage_jax.rollout.engine import LENGTH, Engine, GenerateRequest, SamplingParams, require_whole
from sage_jax.seeding import derive_seed
from sage_jax.skills import RetrievalConfig, Skill, render_skills, retrieve
from sage_jax.types import RewardResult, Status, Trajectory, Turn


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
        if options.choices and options.act_tokens < (least := len(self.choice_ids("look"))):
            raise ConfigError(
                f"act_tokens={options.act_tokens} with choices=True: an action takes at least {least} tokens; raise "
                "act_tokens, or use choices=False"
            )

    def choice_ids(self, action: str) -> tuple[int, ...]:
        """Returns a whole turn that takes an action, as ids, without a thought."""
        return (*self.encode(f"<think> </think> <action> {action} </action>"), self.template.stop_ids[0])

    async def play_all(
        self,
        plans: Sequence[EpisodePlan],
        *,
        concurrency: int,
        done: Callable[[Trajectory], None] | None = None,
        straggler_factor: float = 0.0,
    ) -> list[Trajectory]:
        """Plays every plan once, at most `concurrency` at a time; returns trajectories in the order of the plans.

        Args:
          plans: to play.
          concurrency: episodes at one time.
          done: called after each.
          straggler_factor: see `Stragglers`; 0 waits for all.
        """
        stragglers = Stragglers(straggler_factor, len(plans))

        async def one(plan: EpisodePlan) -> Trajectory:
            trajectory = await self.play(plan, stragglers)
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

    async def play(self, plan: EpisodePlan, stragglers: Stragglers | None = None) -> Trajectory:
        """Plays one episode; infrastructure failures become the status of the trajectory, or of its review alone.

        Args:
          plan: the episode.
          stragglers: measures it beside the others of its round.
        """
        async with self._begin(plan) as episode:
            played = await self._finish(episode.run(), episode.fail, stragglers, "play")
            if played and plan.review and episode.can_be_reviewed:
                await self._finish(episode.review(), episode.fail_review, stragglers, "review")
        return episode.trajectory()

    async def review(self, plan: EpisodePlan, played: Trajectory) -> Trajectory:
        """Returns an episode that was played without a review with one by the engine's present policy.

        So several policies can review the same episode. One that has no reward or no turns is returned as it is.
        """
        if not played.turns or not played.reward.status.has_reward:
            return played
        async with self._begin(plan) as episode:
            episode.take_up(played)
            await self._finish(episode.review(), episode.fail_review)
        reviewed = episode.trajectory()
        return dataclasses.replace(
            played, turns=(*played.turns, *reviewed.turns[len(played.turns) :]), info=reviewed.info
        )

    @contextlib.asynccontextmanager
    async def _begin(self, plan: EpisodePlan) -> AsyncIterator[Episode]:
        """Gives an episode, and in the end its environment and its engine's session back."""
        self._played += 1
        episode = self.episode(plan, f"{plan.group}/{plan.seed}/{self._played}")
        try:
            yield episode
        finally:
            await self.pool.release(episode.name)
            try:
                await self.engine.end_session(episode.name)
            except EngineError as error:  # the episode is over: an engine that is gone fails the next one's turn
                episode.add_error(str(error))

    async def _finish(
        self,
        work: Coroutine[Any, Any, None],
        fail: Callable[[Status, str], None],
        stragglers: Stragglers | None = None,
        part: str = "",
    ) -> bool:
        """Awaits a part of an episode; calls `fail` and returns False when the infrastructure failed it."""
        longest = self.options.episode_timeout_s
        limit = contextlib.nullcontext() if stragglers is None else stragglers.limit(part)
        try:
            async with asyncio.timeout(longest), limit:
                await work
        except StragglerError as error:
            fail(Status.STRAGGLER, str(error))
        except TimeoutError:
            fail(Status.TIMEOUT, f"longer than episode_timeout_s={longest}")
        except EnvError as error:
            fail(Status.ENV_ERROR, str(error))
        except AbortedError as error:
            fail(Status.ABORTED, str(error))
        except EngineError as error:
            fail(Status.ENGINE_ERROR, str(error))
        else:
            return True
        return False

    def episode(self, plan: EpisodePlan, name: str) -> Episode:
        """Returns what plays one plan."""
        return Episode(self, plan, name)

    def close(self) -> None:
        """Ends what the player itself started; engine and pool are their owner's."""


class Episode:
    """The state of one episode while it is played; agents of another kind replace how it opens, reads and ends."""

    def __init__(self, player: Player, plan: EpisodePlan, name: str):
        self._player, self._plan, self.name = player, plan, name
        self._context: tuple[int, ...] = ()
        self._open_turn = False  # the last output lacks its stop token
        self._turns: list[Turn] = []
        self._steps: list[prompts.Step] = []
        self._status, self._error, self._ended_by_turn = Status.OK, "", False
        self._review_status = Status.OK
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

    @property
    def can_be_reviewed(self) -> bool:
        """Whether there is something to review."""
        return bool(self._turns) and self._status.has_reward

    def take_up(self, played: Trajectory) -> None:
        """Takes up what was played, of this plan, to be reviewed."""
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

    async def review(self) -> None:
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
            choices=None if choices is None else self._choice_ids(choices, max_tokens),
        )
        ids = (*self._context, *prompt)
        name = f"{self.name}/{len(self._turns)}"
        result = require_whole(await player.engine.generate(GenerateRequest(name, self.name, ids, sampling)), name)
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
                weight_versions=result.weight_versions,
                finish_reason=result.finish_reason,
                info={"text": text},
            )
        )
        return text, result.finish_reason

    def _choice_ids(self, actions: Sequence[str], max_tokens: int) -> tuple[tuple[int, ...], ...]:
        """Returns what the policy chooses among; raises EngineError when it cannot say each of the actions."""
        found: dict[tuple[int, ...], str] = {}
        for action in actions:
            if action == "help":
                continue
            ids = self._player.choice_ids(action)
            if len(ids) > max_tokens:
                raise EngineError(f"choices=True: {action!r} takes {len(ids)} tokens; raise act_tokens={max_tokens}")
            if ids in found:
                raise EngineError(
                    f"choices=True: {found[ids]!r} and {action!r} are the same tokens to this tokenizer; use another "
                    "model, or choices=False"
                )
            found[ids] = action
        return tuple(found)

    def fail(self, status: Status, reason: str) -> None:
        """Ends it without a reward."""
        self._status = status
        self.add_error(reason)

    def fail_review(self, status: Status, reason: str) -> None:
        """Leaves it without a review; what was played keeps its outcome."""
        self._review_status = status
        self.add_error(f"review: {reason}")

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
        if not self._review_status.has_reward:
            info["review_status"] = self._review_status.value
        plan = self._plan
        return Trajectory(plan.task, plan.group, plan.seed, turns, outcome, info)


def _with_outcome(turn: Turn, outcome: RewardResult) -> Turn:
    if outcome.value is None or turn.reward is None or turn.reward.value is None:
        status = outcome.status if outcome.value is None else Status.ENGINE_ERROR
        return dataclasses.replace(turn, reward=RewardResult(None, status))
    parts = {**outcome.parts, **turn.reward.parts}
    return dataclasses.replace(turn, reward=RewardResult(outcome.value + turn.reward.value, outcome.status, parts))
