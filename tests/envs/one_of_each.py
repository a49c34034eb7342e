"""Names that stand for all environments: every class once, and of the grid worlds one of each module."""

from shoal.envs import environments, registry


def one_of_each():
    """The first name of every constructor; the grid worlds of a module have all but their start in common."""
    names = {}
    for name in environments():
        constructor = registry._entries[name].constructor
        kind = constructor.split(":")[0] if ".grid." in constructor else constructor
        names.setdefault(kind, name)
    return list(names.values())
