"""`shoal train --print`: one number of a run, alone on standard output."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from shoal import cli
from shoal.base.errors import ShoalError
from shoal.cli import train

NAN, INFINITY = float("nan"), float("inf")


def finished(absolute, final=2.0, failed=()):
    scores = {"absolute": absolute, "final": final}
    statistics = {name: None if x is None else {"iqm": x} for name, x in scores.items()}
    summary = {"seeds": [0], "failed": list(failed), "steps_per_second": 1e5, **statistics}
    return SimpleNamespace(summary=summary, path=Path("runs/a"))


@pytest.mark.parametrize(
    ("name", "absolute", "printed"),
    [
        *(("score", 487.25, "487.25"), ("score", -INFINITY, "-inf"), ("score", NAN, "nan")),
        *(("score", None, "2.0"), ("final", 487.25, "2.0")),
        *(("steps_per_second", 1.0, "100000.0"), ("path", 1.0, "runs/a")),
    ],
)
def test_standard_output_has_it_alone(capsys, name, absolute, printed):
    assert train.print_result(finished(absolute), name, quiet=True) == 0
    assert capsys.readouterr() == (f"{printed}\n", "")


def test_a_run_without_a_seed_that_was_trained_prints_that_it_has_no_score(capsys):
    with pytest.raises(ShoalError, match="all seeds failed"):
        train.print_result(finished(NAN, failed=[{"seed": 0}]), "score", quiet=True)
    assert capsys.readouterr().out == "nan\n"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--print", "scor"], "did you mean 'score'?"),
        (["--print", "final", "--eval-every", "never"], "print='final' has nothing to print, since"),
    ],
)
def test_what_cannot_be_printed_is_refused_before_anything_is_compiled(capsys, flags, sentence):
    assert cli.main(["train", "CartPole-v1", *flags]) == 2
    assert sentence in capsys.readouterr().err
