"""CartPole and Pendulum whose velocities cannot be seen: what a policy needs, it must remember.

Physics, parameters and time limits are those of CartPole-v1 and Pendulum-v1.
"""

from shoal.envs.classic.cartpole import CartPole
from shoal.envs.classic.pendulum import Pendulum
from shoal.envs.wrappers import hiding

cartpole = hiding(CartPole, (1, 3))  # of the cart and of the pole
pendulum = hiding(Pendulum, (2,))  # turning
