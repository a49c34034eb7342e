"""The settings in which a run differs from the defaults of its environment, by which people tell runs apart."""

import contextlib
from typing import Any

from shoal.algos import catalogue
from shoal.base.errors import ShoalError
from shoal.config import settings
from shoal.envs import registry
from shoal.runs.plan.experiment import Experiment, defaults, json_value

# Where and for how long a run trains, and the contents of its other files.
LEFT_OUT = {
    *(
        "run_dir",
        "name",
        "tag",
        "note",
        "seeds",
        "seed",
        "total_steps",
        "devices",
        "env_groups",
        "seed_batching",
        "gradient_chunk",
    ),
    *("log_every", "checkpoints", "checkpoint_seconds", "checkpoint_every", "checkpoint_evals", "keep"),
    *("checkpoint_replay", "on_nan", "on_disk_error"),
}
SHORT = {"learning_rate": "lr", "hidden_sizes": "hidden"}  # names within the name of a directory
LONGEST = 60  # letters of a description


def differences(experiment: Experiment) -> dict[str, Any]:
    """Return a run's settings, and its environment's parameters, that differ from those of the preset, or of the
    classes where there is none; as JSON's values. Empty for a population of several settings.
    """
    if experiment.variants:
        return {}
    name, given = experiment.environment_name, experiment.environment_parameters
    algorithm: Any = experiment.algorithm
    if not catalogue.is_builtin(
        algorithm
    ):  # a class that need not be one that can be imported, or made without words
        try:
            algorithm = type(experiment.config)()
        except TypeError:
            return {}
    _, run, config = defaults(
        name, algorithm=algorithm, environment_parameters=given, preset_settings=experiment.preset
    )
    expected = settings.flat(config) | settings.flat(run)
    is_resolved = experiment.unresolved_config is not None
    own = settings.flat(experiment.unresolved_config if is_resolved else experiment.config)
    found = {
        setting: json_value(value)
        for setting, value in (own | settings.flat(experiment.run)).items()
        if setting not in LEFT_OUT and json_value(value) != json_value(expected.get(setting))
    }
    usual: dict[str, Any] = {}
    with contextlib.suppress(ShoalError):  # an environment that was given itself has no defaults
        usual = {parameter: x.default for parameter, x in registry.parameters_of(name).items()}
    numbers = {parameter: x for parameter, x in given.items() if isinstance(x, bool | int | float | str)}
    return found | {parameter: x for parameter, x in numbers.items() if usual.get(parameter) != x}


def directory_words(experiment: Experiment) -> str:
    """Return a run's words for a directory's name, as `ppo-lr1e-4-gamma0.9`: algorithm, then name or differences."""
    if experiment.run.name:
        return f"{experiment.algorithm}-{experiment.run.name}"
    words = [experiment.algorithm]
    for name, value in differences(experiment).items():
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
