"""The registered grid worlds: name, constructor, and the parameters that the name sets.

The names, sizes and time limits are those of xminigrid 0.9.3; those that end in -RGB are the same worlds with
images as observations. This module imports nothing, so that listing names is fast.
"""

from typing import Any

XLAND_SIZES = {
    "R1": (9, 11, 13, 15, 17),
    "R2": (9, 11, 13, 15, 17),
    "R4": (9, 11, 13, 15, 17),
    "R6": (13, 17, 19),
    "R9": (16, 19, 25),
}
TIME_LIMIT = "max_episode_steps"

# Tasks of one size: the class, which has the sizes, and the time limit in steps.
SINGLE_SIZE_TASKS = (
    ("BlockedUnlockPickUp", 576),
    ("FourRooms", 100),
    ("LockedRoom", 190),
    ("Playground", 512),
    ("Unlock", 288),
    ("UnlockPickUp", 288),
)
SQUARE_TASKS = (  # the class, its side lengths, and its time limit in units of the area
    ("DoorKey", (5, 6, 8, 16), 10),
    ("Empty", (5, 6, 8, 16), 4),
    ("EmptyRandom", (5, 6, 8, 16), 4),
)
MEMORY_WIDTHS = (8, 16, 32, 64, 128)
IMAGE_VARIANTS = ("MiniGrid-EmptyRandom-6x6",)  # have a name of their own, for which presets can exist


def names() -> list[tuple[str, str, None, dict[str, Any]]]:
    """List every name with its constructor (as "module:attribute" under `shoal.envs`) and its parameters.

    The third entry is the limit of a registration, None, since it is among the parameters.
    """
    listed: list[tuple[str, str, dict[str, Any]]] = []
    for rooms, sizes in XLAND_SIZES.items():
        for size in sizes:
            parameters = {"rooms": rooms, "height": size, "width": size, TIME_LIMIT: 3 * size**2}
            listed.append((f"XLand-MiniGrid-{rooms}-{size}x{size}", "xland:XLand", parameters))
    for task, limit in SINGLE_SIZE_TASKS:
        listed.append((f"MiniGrid-{task}", f"minigrid:{task}", {TIME_LIMIT: limit}))
    for task, sizes, steps_per_cell in SQUARE_TASKS:
        for size in sizes:
            parameters = {"height": size, "width": size, TIME_LIMIT: steps_per_cell * size**2}
            listed.append((f"MiniGrid-{task}-{size}x{size}", f"minigrid:{task}", parameters))
    for width in MEMORY_WIDTHS:
        listed.append(
            (f"MiniGrid-MemoryS{width}", "minigrid:Memory", {"width": width, TIME_LIMIT: 5 * width**2})
        )
    for name, constructor, parameters in tuple(listed):
        if name in IMAGE_VARIANTS:
            listed.append((f"{name}-RGB", constructor, {**parameters, "observe_image": True}))
    return [(name, f"grid.tasks.{constructor}", None, parameters) for name, constructor, parameters in listed]
