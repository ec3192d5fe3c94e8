"""Skill-R1's conditions on WebWalkerQA's twin: sibling advantages (skillr1), one generation, literal ones, lambda.

    python -m experiments.ablate --sweep=configs/sweeps/skillr1_webwalker.py              # one run at a time
    python -m experiments.ablate --sweep=configs/sweeps/skillr1_webwalker.py:smoke        # does it run at all

"No skills" is every run's evaluation without skills, "inference only" skillr1's before training. The first variant is
what the others are compared with, seed by seed. All write the same number of skills a round.
"""


def get_sweep():
    """Returns base config, variants (name -> keys that differ) and seeds."""
    return dict(
        config="configs/skillr1_webwalker.py",
        variants={
            "skillr1": {},
            "vanilla": dict(generations=1, tasks_per_round=48),
            "literal": dict(generation_mode="literal", siblings=1, tasks_per_round=64),
            "lambda_0": dict(inter_coef=0.0),
            "lambda_2": dict(inter_coef=2.0),
            "kept_best": dict(keep_sibling="best"),
        },
        seeds=(0, 1, 2),
    )
