"""Programs of runs that are compiled once for all the tests of a file: most of the time of a tiny run is compilation.

Use it where neither the programs nor their compilation are what is tested, and no test of the file replaces a function
that they are made of.
"""

import contextlib
import functools
import types

import jax
import pytest

from shoal.engine.population import member_layout as populations
from shoal.runs.train import compiled_trainer, pieces


class Kept:
    """A jitted function whose compiled programs are kept by what their arguments look like."""

    def __init__(self, program):
        self.program = program
        self.compiled, self.jaxprs = {}, {}

    def __call__(self, *arguments):
        return self.program(*arguments)

    def trace(self, *arguments):
        """Return what has the program `jaxpr` and the method `lower` of a traced one; each is traced once."""
        key = form(arguments)
        if key not in self.jaxprs:
            self.jaxprs[key] = self.program.trace(*arguments).jaxpr
        return types.SimpleNamespace(jaxpr=self.jaxprs[key], lower=lambda: self.lower(*arguments))

    def lower(self, *arguments):
        """Return what has the method `compile` of a lowered program; nothing is lowered whose program is there."""
        return Lowered(self, form(arguments), arguments)


class Lowered:
    """What `Kept.lower` returns."""

    def __init__(self, kept, key, arguments):
        self.kept, self.key = kept, key
        self.lowered = None if key in kept.compiled else kept.program.lower(*arguments)

    def compile(self, options=None):
        """Return the compiled program for these arguments; the options are those of a layout, and of the key so."""
        if self.lowered is not None and self.key not in self.kept.compiled:
            self.kept.compiled[self.key] = self.lowered.compile(options)
        return self.kept.compiled[self.key]


def form(tree):
    """The structure of a tree with the shapes, dtypes and places of its leaves."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((x.shape, x.dtype, getattr(x, "sharding", None)) for x in leaves)


@contextlib.contextmanager
def keep_programs():
    """Let runs that are made of equal parts share their compiled programs."""
    start_program, run_program = populations.start_program, populations.run_program
    compile_evaluation, evaluations = compiled_trainer.compile_evaluation, {}

    def kept_evaluation(shapes, subject, layout):
        key = form(shapes), subject, layout
        if key not in evaluations:
            evaluations[key] = compile_evaluation(shapes, subject, layout)
        return evaluations[key]

    @functools.cache
    def kept_start(*arguments):
        return Kept(start_program(*arguments))

    @functools.cache
    def kept_run(*arguments, **named):
        return Kept(run_program(*arguments, **named))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(populations, "start_program", kept_start)
        patch.setattr(populations, "run_program", kept_run)
        for module in (compiled_trainer, pieces):
            patch.setattr(module, "compile_evaluation", kept_evaluation)
        yield


@pytest.fixture(scope="module", autouse=True)
def shared_programs():
    """For a file that imports this fixture: its runs share their programs."""
    with keep_programs():
        yield
