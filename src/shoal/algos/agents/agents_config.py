"""The settings of several agents: shared parameters, and the inputs of agents and critics."""

from collections.abc import Callable
from typing import ClassVar, Literal

from shoal.algos.agents.agent_views import View
from shoal.algos.agents.independent import Sets, over_agents
from shoal.algos.agents.opponents import Opponents, against_past, taking_over_latest
from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.requirements import Needs
from shoal.config.struct import parameter
from shoal.types import Algorithm, EnvSpec

_SEVERAL = Needs("num_agents", other_than=(1,), such_as=3)
_PAST = Needs("opponent", ("past",))


@struct.struct
class AgentsConfig:
    """The settings of several agents in one world; without effect where there is one."""

    group: ClassVar[str] = "several agents"

    parameters: Literal["shared", "agent", "role"] = parameter("shared", needs=_SEVERAL)
    """Shares the parameters between all agents, or gives each agent or each role its own."""
    agent_input: Literal["own", "everybody"] = parameter("own", needs=_SEVERAL)
    """Shows each agent its own observation, or those of all agents as one vector, each with a flag of presence."""
    agent_id: bool = parameter(False, needs=_SEVERAL)
    """Shows each agent its own number, one-hot."""
    critic_input: Literal["own", "state", "everybody", "state_and_own"] = parameter("own", needs=_SEVERAL)
    """Shows the critic what the agent is shown (own), the state of the world, the observations of all agents, or the
    state with the agent's own observation and number."""
    opponent: Literal["latest", "past"] = parameter("latest", needs=_SEVERAL)
    """Trains against the others' latest policies (latest), or in a share of the worlds against earlier ones (past,
    with parameters role or agent)."""
    # Static, since it is the length of an axis: the number of these worlds.
    opponent_share: float = parameter(0.5, above=0.0, high=1.0, static=True, needs=_PAST)
    """Lets one set of agents learn against earlier policies in this share of the worlds (opponent past)."""
    opponent_pool: int = parameter(8, low=1, high=LARGEST_INDEX, needs=_PAST)
    """Keeps this many earlier policies of each set of agents, a uniform sample of all (opponent past)."""
    opponent_every: int = parameter(10, low=1, high=LARGEST_INDEX, needs=_PAST)
    """Adds the latest policies to the earlier ones every so many updates, replacing some of them (opponent past)."""

    def algorithm(
        self, make: Callable[[EnvSpec, int], Algorithm], spec: EnvSpec, is_joint: bool = False
    ) -> Algorithm:
        """Make the algorithm of all agents of a world from one for a single agent; `make` is given one agent's spec
        and the number of agents of a world that share its parameters."""
        view, sets = self.view(spec, is_joint), self.sets(spec)
        if self.opponent == "latest":
            return taking_over_latest(over_agents(make, view, sets, joint=is_joint))
        opponents = self._opponents(spec)
        algorithm = taking_over_latest(over_agents(make, view, sets, learns=opponents.learns))
        return against_past(algorithm, opponents)

    def view(self, spec: EnvSpec, is_joint: bool = False) -> View:
        """Return the choice of the inputs of agents and critics, one by one or all agents at once."""
        return View(spec, self.agent_id, self.critic_input, is_joint, self.agent_input)

    def sets(self, spec: EnvSpec) -> Sets:
        """Return the agents that share parameters."""
        agents = range(spec.num_agents)
        if self.parameters == "shared":
            return Sets((tuple(agents),))
        if self.parameters == "agent":
            return Sets(tuple((agent,) for agent in agents))
        roles = spec.roles or (0,) * spec.num_agents
        return Sets(tuple(tuple(k for k in agents if roles[k] == role) for role in sorted(set(roles))))

    def acts_alike(self, spec: EnvSpec, other: EnvSpec) -> bool:
        """Report whether policies of a world can act in another, which may have another number of agents.

        They can if all agents have the same parameters, and each is shown the same.
        """
        if self.parameters != "shared" or 1 in (spec.num_agents, other.num_agents):
            return False
        alone, in_other = (self.view(x).spec_of_agent.of_actor for x in (spec, other))
        return alone == in_other

    def _opponents(self, spec: EnvSpec) -> Opponents:
        return Opponents(self.sets(spec), self.opponent_share, self.opponent_pool, self.opponent_every)

    def validate(self, spec: EnvSpec, num_envs: int, is_joint: bool = False) -> None:
        """Require that the settings fit the world, the number of worlds, and a network shown all agents at once.

        Raises:
          ShoalError: the roles do not cover all agents, there are none, the critic's input lacks an entry, or there are
            no agents or too few worlds to learn against earlier policies.
        """
        inputs = {"agent_input": self.agent_input, "critic_input": self.critic_input}
        if is_joint and (self.parameters != "shared" or {*inputs.values()} != {"own"}):
            name = next((name for name, x in inputs.items() if x != "own"), "critic_input")
            raise ShoalError(
                f"parameters={self.parameters!r} and {name}={inputs[name]!r} must be 'shared' and 'own' "
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
        if self.opponent == "past":
            if self.parameters == "shared":
                others = "role" if len(set(spec.roles)) > 1 else "agent"
                raise ShoalError(
                    "opponent='past' needs agents with parameters of their own, and with parameters='shared' all have "
                    f"the same; parameters={others!r} works."
                )
            self._opponents(spec).worlds(num_envs)
