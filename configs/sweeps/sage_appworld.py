"""What SAGE's parts are worth on AppWorld: the method, GRPO without a library, and the method with one part changed.

    python -m experiments.ablate --sweep=configs/sweeps/sage_appworld.py --only=sage,grpo      # 6 runs, one at a time
    python -m experiments.ablate --sweep=configs/sweeps/sage_appworld.py:smoke                 # does it run at all

The first variant is what the others are compared with, seed by seed. Retrievals change evaluations alone.
"""


def get_sweep():
    """Returns base config, variants (name -> keys that differ) and seeds."""
    return dict(
        config="configs/sage_appworld.py",
        variants={
            "sage": dict(baseline=False),
            "grpo": dict(config="configs/grpo_appworld.py"),
            "outcome": dict(baseline=False, chain_reward="outcome"),  # no bonus
            "chain": dict(baseline=False, chain_reward="chain"),  # one reward a chain
            "credit_name": dict(baseline=False, skill_credit="name"),  # use as published
            "chains_of_three": dict(baseline=False, chain_length=3),
            "similarity": dict(baseline=False, chain_by="similarity"),
            "ngram": dict(baseline=False, program_retrieval="ngram"),
            "query_embedding": dict(baseline=False, program_retrieval="query_embedding"),
            "skill_embedding": dict(baseline=False, program_retrieval="skill_embedding"),
        },
        seeds=(0, 1, 2),
    )
