"""Record the numbers of rliable that `tests/records/test_comparisons.py` compares with.

    python -m venv .venvs/rliable && .venvs/rliable/bin/pip install rliable "pandas<3"
    .venvs/rliable/bin/python tests/records/data/record_rliable.py > tests/records/data/rliable.json

The `random_state` of rliable 1.2 has no effect, so that the state of NumPy is seeded before each call.
"""

import importlib.metadata
import json
import platform

import numpy as np
from rliable import library, metrics

PACKAGES = ("rliable", "numpy", "scipy", "pandas", "arch")
ORDER = ("median", "iqm", "mean", "optimality_gap")


def aggregate(scores):
    return np.array([getattr(metrics, f"aggregate_{name}")(scores) for name in ORDER])


def main():
    generator = np.random.default_rng(7)
    x = np.round(generator.normal(0.5, 0.3, size=(6, 4)), 3)
    y = np.round(generator.normal(0.65, 0.3, size=(6, 4)), 3)
    y[0, 0] = x[1, 0]  # a tie
    both, thresholds = {"x": x, "y": y}, np.linspace(0, 1, 11)
    np.random.seed(0)
    points, intervals = library.get_interval_estimates(both, aggregate, reps=10_000)
    np.random.seed(0)
    chance, chance_interval = library.get_interval_estimates(
        {"y,x": (y, x)}, metrics.probability_of_improvement, reps=2_000
    )
    np.random.seed(0)
    profiles, profile_intervals = library.create_performance_profile(both, thresholds, reps=2_000)
    lists = {
        "x": x,
        "y": y,
        "thresholds": thresholds,
        "improvement_interval": np.ravel(chance_interval["y,x"]),
    }
    tables = {
        "points": points,
        "intervals": intervals,
        "profiles": profiles,
        "profile_intervals": profile_intervals,
    }
    content = {
        "command": ".venvs/rliable/bin/python tests/records/data/record_rliable.py > tests/records/data/rliable.json",
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in PACKAGES},
        "order": ORDER,
        "improvement": float(np.ravel(chance["y,x"])[0]),
        **{name: values.tolist() for name, values in lists.items()},
        **{name: {key: x.tolist() for key, x in table.items()} for name, table in tables.items()},
    }
    print(json.dumps(content))


if __name__ == "__main__":
    main()
