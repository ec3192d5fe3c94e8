"""TRL on the workload. Usage: side_trl.py grpo|agent --steps 5 --core 0 [--checkpointing]."""

from __future__ import annotations

import argparse
import os
import tempfile
import time

import workload as work

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("kind", choices=("grpo", "agent"))
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--core", type=int, default=0)
parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
parser.add_argument("--episodes", type=int, default=8)
parser.add_argument("--mix", default="uniform")
args = parser.parse_args()
work.one_core(args.core)
os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_DISABLE_PROGRESS_BARS="1")

import datasets  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402
from model_transformers import make_model  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402


def make_parts(folder: str):
    """Returns a random Qwen2, kept in `folder`, where TRL finds the reference, and a tokenizer of ids as words."""
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(work.VOCAB)}, unk_token="t3"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="t0", eos_token="t1", bos_token="t2", padding_side="left"
    )
    make_model(0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return transformers.Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32), tokenizer


def make_trainer(folder: str, *, micro: int, accumulate: int, group: int, beta: float) -> trl.GRPOTrainer:
    """Returns TRL's trainer on `micro` sequences at a time."""
    model, tokenizer = make_parts(folder)
    options = trl.GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=accumulate,
        num_generations=group,
        num_iterations=1,
        max_completion_length=work.NEW_TOKENS,
        beta=beta,
        epsilon=work.CLIP,
        loss_type="grpo",
        learning_rate=work.LEARNING_RATE,
        weight_decay=work.WEIGHT_DECAY,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        max_steps=args.steps,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        generation_kwargs={"min_new_tokens": work.NEW_TOKENS},
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=args.checkpointing,
        report_to="none",
        save_strategy="no",
        logging_steps=10**6,
        disable_tqdm=True,
        shuffle_dataset=False,
    )
    texts = [
        " ".join(f"t{token}" for token in work.prompt(step, index))
        for step in range(args.steps)
        for index in range(work.PROMPTS)
    ]

    def score(prompts, completions, **_):
        return [work.reward([int(word[1:]) for word in text.split()]) for text in completions]

    return trl.GRPOTrainer(
        model=model,
        reward_funcs=score,
        args=options,
        train_dataset=datasets.Dataset.from_dict({"prompt": texts}),
        processing_class=tokenizer,
    )


class StepEnds(transformers.TrainerCallback):
    """Books the CPU time between the ends of optimizer steps."""

    def __init__(self, watch: work.Stopwatch):
        self.watch, self.last = watch, time.process_time()

    def on_train_begin(self, *_, **__):
        """Starts the clock."""
        self.last = time.process_time()

    def on_step_end(self, *_, **__):
        """Books a step."""
        now = time.process_time()
        self.watch.book("step", now - self.last)
        self.last = now


def run(watch: work.Stopwatch, folder: str) -> dict[str, int]:
    """Trains with TRL's own loop, on its own rollouts or on given trajectories."""
    if args.kind == "grpo":
        batch = work.PROMPTS * work.GROUP
        trainer = make_trainer(folder, micro=batch, accumulate=1, group=work.GROUP, beta=work.KL_COEF)
        trainer._generate = watch.wrap("generate", trainer._generate)
        trainer._generate_and_score_completions = watch.wrap(
            "generate and reference", trainer._generate_and_score_completions
        )
        tokens = {}
    else:
        episodes = work.agent_trajectories(args.episodes, args.mix)
        trainer = make_trainer(folder, micro=2, accumulate=args.episodes // 2, group=2, beta=0.0)
        trainer._generate_and_score_completions = lambda _: padded(episodes)
        tokens = {"tokens": sum(len(one.ids) for one in episodes)}
    trainer.add_callback(StepEnds(watch))
    trainer.train()
    return tokens


def padded(episodes: list[work.AgentTrajectory]) -> dict[str, torch.Tensor]:
    """Returns what TRL makes of finished rollouts: prompts padded on the left, answers on the right, a tool mask."""
    prompts = [torch.tensor(one.ids[: one.prompt_length]) for one in episodes]
    answers = [torch.tensor(one.ids[one.prompt_length :]) for one in episodes]
    masks = [torch.tensor(one.mask[one.prompt_length :]) for one in episodes]

    def pad(rows, side):
        longest = max(len(row) for row in rows)
        fill = [(longest - len(row), 0) if side == "left" else (0, longest - len(row)) for row in rows]
        return torch.stack([torch.nn.functional.pad(row, amount) for row, amount in zip(rows, fill, strict=True)])

    return {
        "prompt_ids": pad(prompts, "left"),
        "prompt_mask": pad([torch.ones_like(row) for row in prompts], "left"),
        "completion_ids": pad(answers, "right"),
        "completion_mask": pad([torch.ones_like(row) for row in answers], "right"),
        "tool_mask": pad(masks, "right"),
        "advantages": torch.tensor([one.advantage for one in episodes]),
        "num_items_in_batch": torch.tensor(float(sum(sum(one.mask) for one in episodes))),
    }


def main() -> None:
    """Runs, and prints what each part took."""
    watch = work.Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        more = run(watch, folder)
    if args.kind == "grpo":
        both = zip(watch.spent["step"], watch.spent["generate and reference"], strict=True)
        watch.spent["update"] = [step - made for step, made in both]
        scored = zip(watch.spent.pop("generate and reference"), watch.spent["generate"], strict=True)
        watch.spent["reference"] = [both - made for both, made in scored]
    else:
        watch.spent["update"] = watch.spent.pop("step")
    work.report("trl, checkpointing" if args.checkpointing else "trl", trl.__version__, watch, **more)


main()
