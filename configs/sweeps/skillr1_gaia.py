"""Skill-R1's conditions on GAIA's twin: sibling advantages (skillr1), one generation, literal advantages.

    python -m experiments.ablate --sweep=configs/sweeps/skillr1_gaia.py              # one run at a time
    python -m experiments.ablate --sweep=configs/sweeps/skillr1_gaia.py:smoke        # does it run at all

"No skills" is every run's evaluation without skills, "inference only" skillr1's before training. The first variant is
what the others are compared with, seed by seed. All write the same number of skills a round.
"""


def get_sweep():
    """Returns base config, variants (name -> keys that differ) and seeds."""
    return dict(
        config="configs/skillr1_gaia.py",
        variants={
            "skillr1": {},
            "vanilla": dict(generations=1, tasks_per_round=48),
            "literal": dict(generation_mode="literal", siblings=1, tasks_per_round=64),
        },
        seeds=(0, 1, 2),
    )
