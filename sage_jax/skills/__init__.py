"""Skills in words: the bank and its log, retrieval, and the three tools that edit it."""

from sage_jax.skills.edits import (
    TOOLS,
    CallFailure,
    EditKind,
    EditOutcome,
    ToolCall,
    apply_edit,
    find_skill,
    parse_tool_call,
)
from sage_jax.skills.files import load_bank, save_bank
from sage_jax.skills.folders import SkillFile, SkillFolder, load_folder, parse_skill
from sage_jax.skills.library import BankEdit, SkillBank
from sage_jax.skills.retrieval import RETRIEVERS, RetrievalConfig, render_skills, retrieve
from sage_jax.skills.skill import GENERAL, MISTAKE, Provenance, Skill

__all__ = [
    "GENERAL",
    "MISTAKE",
    "RETRIEVERS",
    "TOOLS",
    "BankEdit",
    "CallFailure",
    "EditKind",
    "EditOutcome",
    "Provenance",
    "RetrievalConfig",
    "Skill",
    "SkillBank",
    "SkillFile",
    "SkillFolder",
    "ToolCall",
    "apply_edit",
    "find_skill",
    "load_bank",
    "load_folder",
    "parse_skill",
    "parse_tool_call",
    "render_skills",
    "retrieve",
    "save_bank",
]
