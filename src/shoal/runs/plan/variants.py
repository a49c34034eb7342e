"""Checks of the settings that differ between the members of a population."""

import contextlib
from collections.abc import Iterator, Sequence, Set

import numpy as np

from shoal.base.errors import ShoalError
from shoal.config import arguments, settings
from shoal.records.members import ENVIRONMENT, Variant
from shoal.records.pbt_settings import Evolution
from shoal.records.run_config import RunConfig
from shoal.runs.plan.defaults import Config
from shoal.types import AlgorithmConfig


@contextlib.contextmanager
def named(label: str) -> Iterator[None]:
    """Begin a sentence about a variant of a population with its label; an empty one changes nothing."""
    try:
        yield
    except ShoalError as error:
        # A subclass has more than its sentence, such as the frames of a user's code, and passes unchanged.
        if not label or type(error) is not ShoalError:
            raise
        raise ShoalError(f"member {label!r}: {error}") from error


def check_variants(variants: Sequence[Variant], config: AlgorithmConfig, given: Set[str]) -> None:
    """Raise ShoalError unless all variants have labels and set the same numbers, which nothing else sets."""
    labels = [variant.label for variant in variants]
    if len(set(labels)) < len(labels) or not all(labels):
        raise ShoalError(f"the labels of the members must differ and not be empty, and they are {labels}.")
    for variant in variants:
        if variant.settings.keys() != variants[0].settings.keys():
            raise ShoalError(
                f"members {variants[0].label!r} and {variant.label!r} differ in what they set: "
                f"{', '.join(variants[0].settings) or 'nothing'}, and {', '.join(variant.settings) or 'nothing'}; set "
                "the same settings in each."
            )
    for name in variants[0].of_algorithm() if variants else ():
        _check_varies(name, config, given, "differs between the members; change it there")


def with_first_settings(evolution: Evolution, config: Config, given: Set[str]) -> Config:
    """Return a config with values of the settings that change while a run trains, so that it has them as data.

    Raises:
      ShoalError: a setting is none of the algorithm's numbers, or something else sets it.
    """
    for name in evolution.names:
        if name.startswith(ENVIRONMENT):
            raise ShoalError(
                f"{name} cannot be tuned; only numbers of the algorithm can, such as learning_rate."
            )
        _check_varies(name, config, given, "changes while the run trains; give it once")
    return settings.with_settings(config, **evolution.examples[0]) if evolution else config


def _check_varies(name: str, config: AlgorithmConfig, given: Set[str], how: str) -> None:
    """Require that a setting of the algorithm may differ between the members of one compiled program.

    Args:
      given: the names of the settings that the caller gave.
      how: in what way it differs, for the message.
    Raises:
      ShoalError: there is no such setting, it is static, or the caller gave it for all members.
    """
    setting = settings.find(config, name)
    if setting is None and name not in settings.settings_of(RunConfig()):
        raise settings.unknown_setting(name, "...", config)
    if setting is None or not setting.is_data:
        known = settings.settings_of(config).items()
        floats = [x for x, found in known if found.is_data and found.declared in (float, float | None)]
        raise ShoalError(
            f"{name} cannot differ between the members of one compiled program, since it is not a number that is data; "
            f"such are {', '.join(floats)}."
        )
    if name in given:
        raise ShoalError(f"{name}={setting.value!r} has no effect, since {name} {how}.")


def number(name: str, value: object) -> float:
    """Return a number of Python.

    Raises:
      ShoalError: it is none.
    """
    # NumPy's numbers come from searches; True is a number of Python too, and none of these.
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ShoalError(f"{name}={arguments.short_repr(value)} is not a number.")
    return float(value)
