"""Every text with scores, at magnitudes at which two decimals show nothing, or forty digits."""

import re

import pytest

from shoal.cli import compare as compare_command
from shoal.cli import eval as eval_command
from shoal.monitor.run_report import result_text
from shoal.reports import runs_list
from shoal.reports.page import report
from shoal.runs.comparing import compare
from shoal.search import search_report

RETURNS = ("return_mean", "return_std", "return_min", "return_max")
OTHERS = dict.fromkeys(("length_mean", "terminated", "truncated", "unfinished"), 0.0)


@pytest.mark.parametrize("scale", [1e-7, 1e37])
def test_scores_of_any_magnitude_can_be_read(write_run, tmp_path, scale):
    values = tuple(scale * x for x in (1.0, 2.0, 3.0, 4.0, 5.0))
    score = {"iqm": 3 * scale, "interval": [2 * scale, 4 * scale], "returns": list(values)}
    more = {"steps_per_second": 1.0, "seconds": dict.fromkeys(("compile", "train", "evaluate"), 1.0)}
    summary = {"absolute": score, "final": score, **more}
    paths = [write_run(name, values, summary=summary) for name in "ab"]
    metrics = {seed: dict.fromkeys(RETURNS, x) | OTHERS for seed, x in enumerate(values)}
    texts = {
        "compare": compare_command.table(compare(paths)),
        "runs": runs_list.table(runs_list.entries(tmp_path)),
        "train": result_text(
            {**runs_list.records.read(paths[0]).summary, "evaluation": {"episodes": 1}}, "x"
        ),
        "sweep": search_report._shown(score),
        "eval": eval_command.table(
            {
                **dict.fromkeys(("environment", "which", "mode"), "x"),
                **{"episodes": 1, "max_steps": 1, "failed": [], "by_episode": {}, "team_return": ""},
                **{"metrics": metrics, "iqm": score["iqm"], "interval": score["interval"]},
            }
        ),
        "report": re.sub(r"<script.*", "", report(paths, tmp_path / "x.html").read_text(), flags=re.DOTALL),
    }
    for name, text in texts.items():
        assert re.search(r"3\.0+e[-+]", text), (name, text)
        plain = re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)
        assert not re.search(r"\b0\.00\b|\d{14}", plain), (name, plain)
