"""Two fake CPU devices for every test, set before the backend starts.

Nearly all of the suite's time is compilation, so the fast tests compile without LLVM's optimisations
(the mathematics is the same); `XLA_FLAGS` in the environment wins.
"""

import os

os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
)

import jax  # noqa: E402

jax.config.update("jax_num_cpu_devices", 2)
