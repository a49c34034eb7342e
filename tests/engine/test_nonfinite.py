"""Numbers that are not finite: which count, and where they are found."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.engine.nonfinite import NOWHERE, find_faults, has_fault, locate
from shoal.types import Learner, TimeStep, Trajectory

STEPS, ENVS = 4, 3


def trajectory():
    """Environment 0 terminates at step 2, environment 1 is cut there, and environment 2 goes on."""
    last = np.zeros((STEPS + 1, ENVS), bool)
    last[2, :2] = True
    discount = np.ones((STEPS + 1, ENVS), np.float32)
    discount[2, 0] = 0.0
    first = np.zeros_like(last)
    first[3, :2] = True
    timesteps = TimeStep(
        observation=np.zeros((STEPS + 1, ENVS, 2), np.float32),
        reward=np.zeros((STEPS + 1, ENVS), np.float32),
        discount=discount,
        first=first,
        last=last,
    )
    extras = {"log_prob": np.zeros((STEPS, ENVS), np.float32), "count": np.zeros((STEPS, ENVS), np.int32)}
    return Trajectory(timesteps, np.zeros((STEPS, ENVS), np.int32), extras, ())


LEARNER = Learner({"w": jnp.zeros(2), "steps": jnp.int32(0)}, ())


def found(changed, learner=LEARNER, checks=None):
    return jax.device_get(jax.jit(find_faults)(changed, learner, checks or {}))


def with_bad(part, index, value=np.nan):
    changed = trajectory()
    tree = {"observation": changed.timesteps.observation, "reward": changed.timesteps.reward}
    (tree | changed.extras)[part][index] = value
    return changed


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("part", "index", "name"),
    [
        ("reward", (1, 1), "reward"),
        ("reward", (2, 0), "reward"),  # of the step that ended the episode
        ("observation", (0, 2, 1), "observation"),
        ("observation", (2, 1), "observation"),  # a value is bootstrapped from where an episode was cut
        ("observation", (4, 2, 0), "observation"),  # and from the end of the rollout
        ("log_prob", (0, 1), "extras/log_prob"),
    ],
)
def test_what_counts_is_found_in_its_environment(part, index, name, value):
    faults = found(with_bad(part, index, value))
    # The log-probability of an illegal action is infinite.
    is_expected = np.isnan(value) or name != "extras/log_prob"
    expected = np.arange(ENVS) == index[1] if is_expected else np.zeros(ENVS, bool)
    np.testing.assert_array_equal(faults[name], expected)
    assert not any(np.any(x) for other, x in faults.items() if other != name)
    assert bool(has_fault(faults)) == is_expected


@pytest.mark.parametrize(
    ("part", "index"),
    [
        ("reward", (0, 1)),  # of the time-step before the rollout
        ("reward", (3, 0)),  # from a last to a first time-step there is no transition
        ("observation", (2, 0)),  # after termination no value follows
        ("log_prob", (2, 1)),
    ],
)
def test_what_has_weight_zero_may_hold_anything(part, index):
    assert not any(np.any(x) for x in found(with_bad(part, index)).values())


def test_parameters_and_the_algorithms_own_checks():
    faults = found(trajectory(), Learner({"w": jnp.array([0.0, np.nan]), "steps": jnp.int32(0)}, ()))
    assert [name for name, x in faults.items() if np.any(x)] == ["learner/shared/w"]
    assert not has_fault(
        found(trajectory(), Learner({"w": jnp.array([0.0, np.inf]), "steps": jnp.int32(0)}, ()))
    )
    faults = found(trajectory(), checks={"loss": jnp.bool_(True), "gradient": jnp.bool_(False)})
    assert [name for name, x in faults.items() if np.any(x)] == ["loss"]


def test_groups_agree_on_the_fault_and_number_environments_across_them():
    changed = with_bad("reward", (1, 2))
    clean = trajectory()
    both = jax.tree.map(lambda *x: np.stack(x), clean, changed)

    def group(part):
        faults = find_faults(part, LEARNER, {})
        return has_fault(faults, ("env",)), locate(faults, ("env",))

    any_fault, located = jax.vmap(group, axis_name="env")(both)
    assert any_fault.tolist() == [True, True]
    names = [name.partition(" ")[2] for name in sorted(located)]
    assert names == ["observation", "reward", "extras/log_prob", "learner/shared/w"]
    at_fault, index = located["0001 reward"]
    assert at_fault.tolist() == [1, 1]
    assert index.tolist() == [ENVS + 2, ENVS + 2]
    assert located["0000 observation"][1].tolist() == [NOWHERE, NOWHERE]
