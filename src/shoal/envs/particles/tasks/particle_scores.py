"""Scores by which the best policy of a task is chosen, functions of the metrics of an evaluation."""

from collections.abc import Mapping

from shoal.types import Array

TIME_WEIGHT = 1e-4  # of a decision, so that 100 decisions weigh as much as a hundredth of the episodes


def success_then_time(metrics: Mapping[str, Array]) -> Array:
    """Return the share of successful episodes; of equal shares the one whose episodes are shorter is better.

        info_success - 1e-4 length_mean

    The success alone is 1 long before an agent has learned to be quick, and the return of a shaped reward that is not
    discounted grows with the time that an agent loiters.
    """
    return metrics["info_success"] - TIME_WEIGHT * metrics["length_mean"]
