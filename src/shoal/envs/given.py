"""The environment that a caller gives: by its name, or itself."""

from collections.abc import Mapping

from shoal.base.errors import ShoalError
from shoal.config import arguments
from shoal.envs.parameters import check_parameters
from shoal.envs.registry import adapted, check_is_environment, make
from shoal.types import Environment
from shoal.xla.jax_settings import require_usable


def environment_of(environment: str | Environment, parameters: Mapping[str, object]) -> Environment:
    """Make an environment by its name and parameters, or return the given one.

    Raises:
      ShoalError: there is no such environment or parameter, parameters were given for an environment object, or a
        parameter is out of its bounds.
    """
    require_usable()
    if isinstance(environment, str):
        return make(environment, **parameters)
    made = adapted(environment)
    if isinstance(made, type) or not hasattr(made, "reset"):
        kind = "a class" if isinstance(made, type) else f"of type {type(made).__name__}"
        raise ShoalError(
            f"environment={arguments.short_repr(made)} is {kind}; give an environment, or a name such as "
            "'CartPole-v1'."
        )
    check_is_environment("the environment is", made)
    if parameters:
        raise ShoalError(f"{', '.join(parameters)} cannot be set on an environment that is made already.")
    check_parameters(made)
    return made
