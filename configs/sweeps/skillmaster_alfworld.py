"""What SkillMaster's parts are worth on ALFWorld: the method, plain GRPO, and the method with one part changed.

    python -m experiments.ablate --sweep=configs/sweeps/skillmaster_alfworld.py           # 18 runs, one at a time
    python -m experiments.ablate --sweep=configs/sweeps/skillmaster_alfworld.py:smoke     # does it run at all
    python -m launch.slurm --sweep=configs/sweeps/skillmaster_alfworld.py --submit

The first variant is what the others are compared with, seed by seed. At :paper the released setting already makes
training edits dry runs, so mutate_never is refused there as a repetition: name the other variants with --only.
"""


def get_sweep():
    """Returns base config, variants (name -> keys that differ) and seeds."""
    return dict(
        config="configs/skillmaster_alfworld.py",
        variants={
            "skillmaster": {},
            "grpo": dict(config="configs/grpo_alfworld.py"),  # the same rollouts a round, no reviews, no bank
            # Reviews are rewarded for the form of their call alone. Nothing is measured, so acceptance by utility
            # would leave the bank empty: beside accept_always, this variant tells what the reward is worth.
            "no_utility": dict(utility=False, accept="always"),
            "joint": dict(joint=True),  # act and review turns share one normalisation
            "mutate_never": dict(mutate="never"),  # training edits are dry runs
            "accept_always": dict(accept="always"),  # every valid edit enters the bank
        },
        seeds=(0, 1, 2),
    )
