"""How a driver trains with a peer, and what it says: one line of JSON.

It runs under the peer's own interpreter, and needs nothing but JAX. The times are of one process: compiling, ahead of
time, apart from the updates; and the seconds from the moment at which the process was started to the end of the first
update.
"""

import argparse
import importlib.util
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

CHECKOUT = "FOUNDING_CHECKOUT"  # the environment variable with the folder of the peer's repository
BEGUN = "FOUNDING_BEGUN"  # and with the time at which the process was started, in seconds since the epoch


class Training(NamedTuple):
    """What a driver times: a function from a state to the next one, which is compiled for it."""

    compile: Callable[[], Callable[[Any], Any]]
    state: Any
    steps: int  # environment steps of one update
    score: Callable[[Any], float]  # of the last state; not timed
    updates_per_call: int = 1
    further: Callable[[Any], dict] = lambda state: {}  # what else is to be said of the last state


def arguments() -> argparse.Namespace:
    """The seed, the budget, and sizes that differ from the peer's own, such as num_envs=256."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", help="as name=number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--score", action=argparse.BooleanOptionalAction, default=True)
    parsed = parser.parse_args()
    parsed.sizes = {name: int(number) for name, number in (size.split("=") for size in parsed.sizes)}
    return parsed


def run(build: Callable[[argparse.Namespace], Training], packages: tuple[str, ...]) -> None:
    """Train a seed and say how that went."""
    begun = float(os.environ.get(BEGUN, time.time()))
    parsed = arguments()
    import jax

    training = build(parsed)
    state = jax.block_until_ready(training.state)
    start = time.perf_counter()
    update = training.compile()
    compile_seconds = time.perf_counter() - start
    seconds, first = [], 0.0
    for _ in range(parsed.updates // training.updates_per_call):
        start = time.perf_counter()
        state = jax.block_until_ready(update(state))
        seconds.append((time.perf_counter() - start) / training.updates_per_call)
        first = first or time.time() - begun - (training.updates_per_call - 1) * seconds[0]
    answer = {
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        * 1024,  # bytes, at most, before the score
        "first_update": first,
        "compile": compile_seconds,
        # The first call's buffers are new: it is left out where there are several.
        "rate": training.steps / (sum(seconds[1:] or seconds) / len(seconds[1:] or seconds)),
        "steps": training.steps * parsed.updates,
        "score": training.score(state) if parsed.score else None,
        "versions": {name: metadata.version(name) for name in ("jax", "jaxlib", *packages)},
        **training.further(state),
    }
    print(json.dumps(answer), flush=True)


def checkout() -> Path:
    """The folder of the peer's repository, which is added to where modules are found."""
    folder = Path(os.environ[CHECKOUT])
    sys.path.insert(0, str(folder))
    return folder


def import_corrected(
    path: Path, name: str, corrections: Mapping[str, str] = MappingProxyType({})
) -> ModuleType:
    """Import a file as a module, with pieces of its text replaced: what Python 3.11 refuses."""
    text = path.read_text()
    for wrong, right in corrections.items():
        if wrong not in text:
            raise SystemExit(
                f"{path} has no {wrong!r}: it is not of the commit that this driver was made for"
            )
        text = text.replace(wrong, right)
    spec = importlib.util.spec_from_loader(name, loader=None, origin=str(path))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__, sys.modules[name] = str(path), module
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module
