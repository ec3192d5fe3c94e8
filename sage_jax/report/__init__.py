"""A run folder made readable: the table at its end and a self-contained page."""

from sage_jax.report.html import render, write_report
from sage_jax.report.load import RunData, load_run
from sage_jax.report.reviews import report_reviews
from sage_jax.report.tables import compare, print_tables, report_run, rich_tables

__all__ = [
    "RunData",
    "compare",
    "load_run",
    "print_tables",
    "render",
    "report_reviews",
    "report_run",
    "rich_tables",
    "write_report",
]
