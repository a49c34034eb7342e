"""The physics of many particles, all pairs against a cell list: `python benchmarks/neighbours.py [--json FILE]`.

Rough discs in a periodic box, with 8 r² for each, that begin with random velocities; one world at a time. Each number
is a median of five calls of 50 steps, and the two ways are measured in turn.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from shoal.envs.particles.physics import dynamics
from shoal.envs.particles.physics.bodies import inertia_of
from shoal.envs.particles.physics.cell_lists import cell_layout
from shoal.envs.particles.physics.contact_laws import Material
from shoal.envs.particles.physics.pairs import MAX_ALL_TO_ALL
from shoal.envs.particles.physics.restitution import damping_ratio
from shoal.xla import machine

NUMBERS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
AREA, SKIN, STEPS, ROUNDS = 8.0, 0.4, 50, 5
CELL_CAPACITY, MAX_NEIGHBOURS = 6, 12


def program(number: int, by_cells: bool):
    """Return a compiled function from a state to the state after 50 steps, and a state at the start."""
    side = (AREA * number) ** 0.5
    kinds = ("periodic", "periodic")
    layout = cell_layout((side, side), kinds, 1.0, SKIN, CELL_CAPACITY, MAX_NEIGHBOURS) if by_cells else None
    rules = dynamics.Rules(boundaries=kinds, layout=layout)
    ones, zero = jnp.ones(number), jnp.zeros(())
    stiffness = jnp.asarray(1e3)
    material = Material(stiffness, stiffness, damping_ratio(0.8), jnp.asarray(0.5), jnp.asarray(0.8), zero)
    world = dynamics.World(
        *(ones, ones, inertia_of(ones, ones, 2), material, jnp.full(2, side), jnp.zeros(2)),
        *(zero, zero, jnp.asarray(2e-3), jnp.asarray(SKIN)),
    )
    columns = int(jnp.ceil(jnp.sqrt(number)))
    index = jnp.arange(number)
    place = (jnp.stack([index % columns, index // columns]) + 0.5) * (side / columns)
    velocity = jax.random.normal(jax.random.key(0), (2, number))
    state = jax.jit(lambda place, velocity: dynamics.start(rules, world, place, velocity))(place, velocity)

    @jax.jit
    def advance(state):
        nothing = jnp.zeros((2, number)), jnp.zeros((1, number))
        return dynamics.advance_many(rules, world, state, *nothing, STEPS)[0]

    return advance, state


def measure(number: int) -> dict[str, float]:
    """Return the microseconds of a step of each way that a number of particles allows."""
    ways = {"cell list": True} | ({"all pairs": False} if number <= 4 * MAX_ALL_TO_ALL else {})
    programs = {name: program(number, by_cells) for name, by_cells in ways.items()}
    for name, (advance, state) in programs.items():
        programs[name] = advance, jax.block_until_ready(advance(state))
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(ROUNDS):
        for name, (advance, state) in programs.items():
            begun = time.perf_counter()
            after = jax.block_until_ready(advance(state))
            seconds[name].append(time.perf_counter() - begun)
            if not bool(jnp.isfinite(after.position).all()):
                raise SystemExit(f"{number} particles by {name}: not all places are finite")
    return {name: statistics.median(x) / STEPS * 1e6 for name, x in seconds.items()}


def main() -> None:
    """Measure each number of particles and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parsed = parser.parse_args()
    machine.prepare()
    print(
        "| particles | all pairs, µs a step | cell list, µs a step | cell list, ns a particle |\n"
        "| --- | --- | --- | --- |"
    )
    rows = {}
    for number in NUMBERS:
        rows[number] = found = measure(number)
        pairs = f"{found['all pairs']:,.0f}" if "all pairs" in found else "-"
        cells = found["cell list"]
        print(f"| {number:,} | {pairs} | {cells:,.0f} | {cells / number * 1e3:,.0f} |", flush=True)
    if parsed.json:
        parsed.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
