"""google-tunix on the workload. Usage: side_tunix.py grpo|agent --steps 5 --core 0; run by benchmarks/update.py."""

from __future__ import annotations

import argparse
import importlib.metadata
import time

import workload as work

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("kind", choices=("grpo", "agent"))
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--core", type=int, default=0)
parser.add_argument("--episodes", type=int, default=8)
parser.add_argument("--mix", default="uniform")
args = parser.parse_args()
work.one_core(args.core)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from flax import nnx  # noqa: E402
from model_tunix import WordTokenizer, make_model  # noqa: E402
from tunix.rl import rl_cluster  # noqa: E402
from tunix.rl.grpo import grpo_learner  # noqa: E402
from tunix.rl.rollout import base_rollout  # noqa: E402


def make_cluster(micro: int, mini: int, beta: float) -> rl_cluster.RLCluster:
    """Returns Tunix' actor, reference and sampler on one device."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT)
    training = rl_cluster.RLTrainingConfig(
        actor_optimizer=optax.adamw(work.LEARNING_RATE, weight_decay=work.WEIGHT_DECAY),
        eval_every_n_steps=10**9,
        max_steps=args.steps,
        mini_batch_size=mini,
        train_micro_batch_size=micro,
        rollout_micro_batch_size=mini,
        compute_logps_micro_batch_size=mini,
    )
    rollout = base_rollout.RolloutConfig(
        max_tokens_to_generate=work.NEW_TOKENS,
        max_prompt_length=work.PROMPT_TOKENS,
        kv_cache_size=work.PROMPT_TOKENS + work.NEW_TOKENS + 8,
        temperature=1.0,
        top_p=1.0,
        top_k=None,
        eos_tokens=[work.VOCAB + 1],  # no answer ends early
    )
    config = rl_cluster.ClusterConfig(
        role_to_mesh=dict.fromkeys(roles, mesh),
        rollout_engine="vanilla",
        offload_to_cpu=False,
        training_config=training,
        rollout_config=rollout,
    )
    reference = make_model(0) if beta else None
    return rl_cluster.RLCluster(
        actor=make_model(0), reference=reference, tokenizer=WordTokenizer(), cluster_config=config
    )


def make_learner(cluster: rl_cluster.RLCluster, beta: float, group: int) -> grpo_learner.GRPOLearner:
    """Returns the learner, which also sets the actor's loss."""
    algorithm = grpo_learner.GRPOConfig(num_generations=group, num_iterations=1, beta=beta, epsilon=work.CLIP)

    def score(prompts, completions, **_):
        return [work.reward(WordTokenizer().encode(text)) for text in completions]

    return grpo_learner.GRPOLearner(rl_cluster=cluster, algo_config=algorithm, reward_fns=score)


def grpo(watch: work.Stopwatch) -> None:
    """Runs Tunix' own training loop."""
    cluster = make_cluster(work.PROMPTS, work.PROMPTS, work.KL_COEF)
    learner = make_learner(cluster, work.KL_COEF, work.GROUP)
    last = time.process_time()

    def update(*inputs, run=cluster.update_actor, **options):
        nonlocal last
        start = time.process_time()
        run(*inputs, **options)
        jax.block_until_ready(nnx.state(cluster.actor_trainer.model))
        now = time.process_time()
        watch.book("update", now - start)
        watch.book("step", now - last)
        last = now

    def reference(*inputs, run=cluster.get_ref_per_token_logps, **options):
        return jax.block_until_ready(run(*inputs, **options))

    cluster.update_actor = update
    cluster.get_ref_per_token_logps = watch.wrap("reference", reference)
    cluster.generate = watch.wrap("generate", cluster.generate)
    batches = [
        # Tunix adds BOS itself.
        {"prompts": np.array([WordTokenizer().decode(work.prompt(step, i)[1:]) for i in range(work.PROMPTS)])}
        for step in range(args.steps)
    ]
    learner.train(batches)
    work.report("tunix", importlib.metadata.version("google-tunix"), watch)


def agent(watch: work.Stopwatch) -> None:
    """Gives Tunix' trainer whole trajectories, padded to the longest, two at a time."""
    episodes = work.agent_trajectories(args.episodes, args.mix)
    micro = 2
    cluster = make_cluster(micro, args.episodes, 0.0)
    make_learner(cluster, 0.0, 2)
    prompt_length = max(one.prompt_length for one in episodes)
    answer_length = max(len(one.ids) - one.prompt_length for one in episodes)

    def example(part):
        prompts = np.full((len(part), prompt_length), work.PAD, np.int32)
        answers = np.full((len(part), answer_length), work.PAD, np.int32)
        mask = np.zeros((len(part), answer_length), np.int32)
        for row, one in enumerate(part):
            cut = one.prompt_length
            prompts[row, prompt_length - cut :] = one.ids[:cut]
            answers[row, : len(one.ids) - cut] = one.ids[cut:]
            mask[row, : len(one.ids) - cut] = one.mask[cut:]
        return grpo_learner.TrainExample(
            prompt_ids=jnp.asarray(prompts),
            prompt_mask=jnp.asarray(prompts != work.PAD, jnp.int32),
            completion_ids=jnp.asarray(answers),
            completion_mask=jnp.asarray(mask),
            advantages=jnp.asarray([one.advantage for one in part]),
            ref_per_token_logps=None,
            old_per_token_logps=None,
        )

    parts = [example(episodes[start : start + micro]) for start in range(0, len(episodes), micro)]

    def update():
        cluster.update_actor(parts, None, False)
        jax.block_until_ready(nnx.state(cluster.actor_trainer.model))

    for _ in range(args.steps):
        watch.wrap("update", update)()
    tokens = sum(len(one.ids) for one in episodes)
    work.report("tunix", importlib.metadata.version("google-tunix"), watch, tokens=tokens)


{"grpo": grpo, "agent": agent}[args.kind](work.Stopwatch())
