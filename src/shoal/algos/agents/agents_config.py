"""The settings of several agents: what they share, and what they and their critics are shown."""

from typing import ClassVar, Literal

from shoal import trees
from shoal.algos.agents.agent_views import View
from shoal.algos.agents.independent import Sets
from shoal.errors import ShoalError
from shoal.needs import Needs, Table
from shoal.types import EnvSpec

_SEVERAL = Needs("num_agents", other_than=(1,), such_as=3)


@trees.struct
class AgentsConfig:
    """The settings of several agents in one world; without effect where there is one."""

    needs: ClassVar[Table] = dict.fromkeys(("parameters", "agent_id", "critic_input"), (_SEVERAL,))
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "several agents": ("parameters", "agent_id", "critic_input"),
    }

    parameters: Literal["shared", "agent", "role"] = "shared"
    """Shares the parameters between all agents, or gives each agent or each role its own."""
    agent_id: bool = False
    """Shows each agent its own number, one-hot."""
    critic_input: Literal["own", "state", "everybody", "state_and_own"] = "own"
    """Shows the critic the agent's own observation, the state of the world, the observations of all agents, or the
    state with the agent's own observation and number."""

    def view(self, spec: EnvSpec, is_joint: bool = False) -> View:
        """Return what the agents of a world and their critics are shown, one by one or at once."""
        return View(spec, self.agent_id, self.critic_input, is_joint)

    def sets(self, spec: EnvSpec) -> Sets:
        """Return the agents that share parameters."""
        agents = range(spec.num_agents)
        if self.parameters == "shared":
            return Sets((tuple(agents),))
        if self.parameters == "agent":
            return Sets(tuple((agent,) for agent in agents))
        roles = spec.roles or (0,) * spec.num_agents
        return Sets(tuple(tuple(k for k in agents if roles[k] == role) for role in sorted(set(roles))))

    def validate(self, spec: EnvSpec, is_joint: bool = False) -> None:
        """Require that the settings fit the world, and a network that is shown all agents at once.

        Raises:
          ShoalError: the roles do not cover all agents, there are none, or the critic is to be shown what is not there.
        """
        if is_joint and (self.parameters != "shared" or self.critic_input != "own"):
            raise ShoalError(
                f"parameters={self.parameters!r} and critic_input={self.critic_input!r} must be 'shared' and 'own' "
                "with a network that is shown all agents at once."
            )
        if spec.roles and len(spec.roles) != spec.num_agents:
            raise ShoalError(
                f"roles={spec.roles} are {len(spec.roles)}, and num_agents={spec.num_agents}; give each agent one."
            )
        if self.parameters == "role" and len(set(spec.roles)) < 2:
            raise ShoalError(
                f"parameters='role' needs agents of several roles, and roles={spec.roles} of the world are "
                "not; parameters='agent' gives each agent its own."
            )
        self.view(spec, is_joint).check()
