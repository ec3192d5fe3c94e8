import ast

import pytest

from sage_jax.sandbox import Backend, RunStatus, check
from sage_jax.sandbox.backends import Unsafe
from sage_jax.sandbox.corpus import CORPUS
from sage_jax.sandbox.corpus.attack import Attack, attack
from sage_jax.sandbox.judge import Target

BY_NAME = {attack.name: attack for family in CORPUS.values() for attack in family}
# One of each kind: what a short test can afford. The slow test runs them all.
SAMPLE = ("read_secret", "proc_host_environ", "write_outside", "mode_outside", "tcp", "tcp_fast_open", "udp")
SAMPLE += ("abstract_socket", "orphan_without_pipes", "kill_bystander", "one_large_block", "raw_flood", "answer_twice")


@pytest.fixture(scope="module")
def target():
    with Target() as target:
        yield target


def test_the_corpus_is_large_and_its_names_are_unique():
    assert sum(map(len, CORPUS.values())) >= 100
    assert len(BY_NAME) == sum(map(len, CORPUS.values()))


@pytest.mark.parametrize("name", sorted(set(BY_NAME) - {"not_even_code"}))
def test_an_attack_is_a_program(name: str):
    ast.parse(BY_NAME[name].code)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sandbox_holds(any_backend: Backend, target: Target, name: str):
    assert target.judge(any_backend, BY_NAME[name]).faults == ()


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("family", CORPUS)
def test_every_sandbox_holds(backend: Backend, target: Target, family: str):
    verdicts = [target.judge(backend, attack) for attack in CORPUS[family]]
    assert [verdict for verdict in verdicts if verdict.faults] == []


# Harmless when they succeed; they prove that the judge sees what it has to see.
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("read_secret", "the secret was read"),
        ("own_environment", "the secret was read"),
        ("write_outside", "something outside was written"),
        ("mode_outside", "something outside was written"),
        ("delete_outside", "something outside was written"),
        ("leave_in_shm", "a file was left in /dev/shm"),
        ("tcp", "the tcp socket was reached"),
        ("udp", "the udp socket was reached"),
        ("unix_socket", "the unix socket was reached"),
        ("abstract_socket", "the abstract socket was reached"),
        ("orphan_without_pipes", "was left"),
    ],
)
def test_the_judge_sees_what_gets_out_without_a_sandbox(target: Target, name: str, fault: str):
    class Open(Unsafe):
        """Gives the program the host's environment, too."""

        def start(self, command, limits, access):
            import dataclasses
            import os

            return super().start(command, limits, dataclasses.replace(access, env={**os.environ, **access.env}))

    verdict = target.judge(Open(), BY_NAME[name])
    assert any(fault in found for found in verdict.faults), verdict


def test_the_judge_sees_a_wrong_status_and_lost_time(any_backend: Backend, target: Target):
    slow = Attack("slow", "import time\ntime.sleep(1.2)", frozenset({RunStatus.TIMEOUT}), wall_s=30.0)
    assert "status ok, expected timeout" in target.judge(any_backend, slow).faults[0]
    late = Attack("late", "import time\ntime.sleep(1.2)", frozenset({RunStatus.OK}), wall_s=30.0)
    assert target.judge(any_backend, late).faults == ()


def test_the_command_prints_a_table(any_backend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    tiny = {"files": (BY_NAME["read_secret"],), "wrong": (attack("fine", "result = 1", RunStatus.ERROR),)}
    monkeypatch.setattr(check, "CORPUS", tiny)
    monkeypatch.setattr(check, "_TIMED_RUNS", 1)
    assert check.main(["--backend", any_backend.name]) == 1
    printed = capsys.readouterr().out
    assert "wrong: fine: status ok, expected error" in printed
    assert "1/2" in printed
    assert "p50 of an empty program" in printed
