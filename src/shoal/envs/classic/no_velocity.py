"""CartPole and Pendulum without velocities in the observation, so that a policy needs a memory.

Physics, parameters and time limits are those of CartPole-v1 and Pendulum-v1.
"""

from shoal.envs.classic.cartpole import CartPole
from shoal.envs.classic.pendulum import Pendulum
from shoal.envs.wrappers import with_hidden_entries

cartpole = with_hidden_entries(  # of the cart and of the pole
    CartPole,
    (1, 3),
    "CartPole whose velocities are hidden: the policy must remember where cart and pole were.",
)
pendulum = with_hidden_entries(
    Pendulum, (2,), "Pendulum whose angular velocity is hidden: the policy must remember how it was turned."
)
