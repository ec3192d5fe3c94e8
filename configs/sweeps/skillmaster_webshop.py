"""SkillMaster against GRPO on WebShop, and what two forms of finer credit add to GRPO.

    python -m experiments.ablate --sweep=configs/sweeps/skillmaster_webshop.py --only=skillmaster,grpo
    python -m experiments.ablate --sweep=configs/sweeps/skillmaster_webshop.py:smoke     # does it run at all

The first variant is what the others are compared with, seed by seed.
"""


def get_sweep():
    """Returns base config, variants (name -> keys that differ) and seeds."""
    grpo = "configs/grpo_webshop.py"
    return dict(
        config="configs/skillmaster_webshop.py",
        variants={
            "skillmaster": {},
            "grpo": dict(config=grpo),
            # A skill is shown in the department it was proposed for, and refused in a second one as a duplicate; of a
            # round's edits all that were worth something enter, though each was measured without the others.
            "by_department": dict(retrieval="template", accept="utility>0"),
            "gigpo": dict(config=grpo, step_weight=1.0),  # step-level groups (arXiv 2505.10978)
            "paired": dict(paired_share=0.5, paired_coef=1.0),  # half of a group without skills (arXiv 2603.28716)
        },
        seeds=(0, 1, 2),
    )
