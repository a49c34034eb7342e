"""The classes behind JaxMARL's names, their parameters, and the values that they take by a name.

JaxMARL is imported when the first of these is used. Importing it makes arrays, so that JAX starts.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from shoal.base.errors import ShoalError, nearest
from shoal.envs.suites.packages import classes_of, import_suite

PREFIX = "jaxmarl/"

# JaxMARL's names and their classes. Not here are
#   storm: its observations have no row for each agent,
#   storm_2p: it takes a tuple of actions, and reads the keys of a dictionary as if they were actions,
#   LearnedPolicyEnemySMAX: it needs a policy,
#   and those that need a further package (brax, jaxrobotarium).
CLASSES = {
    "MPE_simple_v3": "SimpleMPE",
    "MPE_simple_tag_v3": "SimpleTagMPE",
    "MPE_simple_world_comm_v3": "SimpleWorldCommMPE",
    "MPE_simple_spread_v3": "SimpleSpreadMPE",
    "MPE_simple_crypto_v3": "SimpleCryptoMPE",
    "MPE_simple_speaker_listener_v4": "SimpleSpeakerListenerMPE",
    "MPE_simple_push_v3": "SimplePushMPE",
    "MPE_simple_adversary_v3": "SimpleAdversaryMPE",
    "MPE_simple_reference_v3": "SimpleReferenceMPE",
    "MPE_simple_facmac_v1": "SimpleFacmacMPE",
    "MPE_simple_facmac_3a_v1": "SimpleFacmacMPE3a",
    "MPE_simple_facmac_6a_v1": "SimpleFacmacMPE6a",
    "MPE_simple_facmac_9a_v1": "SimpleFacmacMPE9a",
    "switch_riddle": "SwitchRiddle",
    "SMAX": "SMAX",
    "HeuristicEnemySMAX": "HeuristicEnemySMAX",
    "storm_np": "InTheMatrix",
    "hanabi": "Hanabi",
    "overcooked": "Overcooked",
    "overcooked_v2": "OvercookedV2",
    "coin_game": "CoinGame",
    "jaxnav": "JaxNav",
}
# Parameters that JaxMARL's MPE classes pass on to `SimpleMPE` by `**kwargs`.
OF_SIMPLE_MPE = ("max_steps", "dt")


def package() -> Any:
    """Import JaxMARL's environments."""
    return import_suite(PREFIX, "jaxmarl.environments")


def parameters_of(maker: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class, with those that it passes on by `**kwargs` to a class known here."""
    own = inspect.signature(maker).parameters
    passed_on: Mapping[str, inspect.Parameter] = {}
    if any(x.kind is inspect.Parameter.VAR_KEYWORD for x in own.values()):
        bases = classes_of(maker, "jaxmarl")
        if "EnemySMAX" in bases:
            passed_on = inspect.signature(package().SMAX).parameters
        elif "SimpleMPE" in bases:
            of_base = inspect.signature(package().SimpleMPE).parameters
            passed_on = {parameter: of_base[parameter] for parameter in OF_SIMPLE_MPE}
    by_keyword = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {
        parameter: declared.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=Any)
        for parameter, declared in {**passed_on, **own}.items()
        if declared.kind in by_keyword
    }


def named_value(name: str, parameter: str, value: Any) -> Any:
    """Return the value of a text where JaxMARL has a table of values: SMAX's scenarios and Overcooked's layouts.

    Raises:
      ShoalError: the table lacks the text.
    """
    of_jaxmarl = package()
    tables: dict[str, Callable[[], Mapping[str, object]]] = {
        "scenario": lambda: importlib.import_module(of_jaxmarl.SMAX.__module__).MAP_NAME_TO_SCENARIO,
        "layout": lambda: (
            of_jaxmarl.overcooked_layouts if name == "overcooked" else of_jaxmarl.overcooked_v2_layouts
        ),
    }
    if not isinstance(value, str) or parameter not in tables or ":" in name:
        return value
    table = tables[parameter]()
    if value not in table:
        hint = nearest(value, table) or f"; there are {', '.join(table)}"
        raise ShoalError(f"{PREFIX}{name}: there is no {parameter} {value!r}{hint}")
    return table[value]
