"""The words of a run in the name of its directory."""

from typing import Any

from shoal.runs.plan.experiment import Experiment

SHORT = {"learning_rate": "lr", "hidden_sizes": "hidden"}  # names within the name of a directory
LONGEST = 60  # letters of a description


def directory_words(experiment: Experiment) -> str:
    """Return a run's words for a directory's name, as `ppo-lr1e-4-gamma0.9`: algorithm, then name or differences."""
    if experiment.run.name:
        return f"{experiment.algorithm}-{experiment.run.name}"
    words = [experiment.algorithm]
    for name, value in experiment.differences.items():
        word = f"{SHORT.get(name, name)}{_short(value)}"
        if len("-".join([*words[1:], word])) > LONGEST:
            break
        words.append(word)
    return "-".join(words)


def _short(value: Any) -> str:
    if isinstance(value, float):
        mantissa, _, exponent = f"{value:e}".partition("e")
        scientific = f"{float(mantissa):g}e{int(exponent)}"
        return min(f"{value:g}", scientific, key=len)
    return "x".join(map(_short, value)) if isinstance(value, list) else str(value)
