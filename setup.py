"""Package metadata. Direct dependencies live in requirements.in; exact pins, in requirements.txt."""

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).parent


def requirements(name: str) -> list[str]:
    """Returns the requirement lines of a file without their comments."""
    lines = (line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines())
    return [line for line in lines if line]


def version() -> str:
    """Returns the version that the package states, without importing it."""
    match = re.search(r'__version__ = "(.+)"', (ROOT / "sage_jax/__init__.py").read_text())
    if match is None:
        raise ValueError("sage_jax/__init__.py states no __version__")
    return match.group(1)


setuptools.setup(
    name="sage-jax",
    version=version(),
    description="Reinforcement learning of skills for LLM agents, in JAX/Flax",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=setuptools.find_packages(include=["sage_jax", "sage_jax.*"]),
    package_data={"sage_jax.report": ["*.j2"], "sage_jax.envs.webshop": ["*.j2"]},
    install_requires=requirements("requirements.in"),
    extras_require={
        "test": requirements("requirements-test.in"),
        "files": ["openpyxl>=3.1", "pillow>=12", "pypdf>=6", "python-docx>=1.2", "python-pptx>=1.0"],
        # SFT sets in array_record, without TensorFlow; the second is a dependency that the first does not declare
        "data": ["tensorflow-datasets>=4.9.10", "importlib-resources>=6"],
        "tpu": ["jax[tpu]>=0.10.2"],
        "ray": ["ray>=2.51"],  # environments or whole episodes on a cluster
        "torch": ["torch>=2.9"],  # sends weights to servers as tensors
        "launch": ["xmanager>=0.8.5"],
    },
)
