"""`shoal.export`: a trained policy as a file that other programs run."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.export
import numpy as np
from jax.extend.core import jaxpr_as_fun

from shoal.base.errors import ShoalError
from shoal.base.files import require_output, write_whole_file
from shoal.base.imports import import_package
from shoal.base.user_errors import reports_user_code
from shoal.config import arguments
from shoal.config.traced import on_host
from shoal.export import onnx_file
from shoal.export.check import Check, Runner, compare, require_same
from shoal.export.describe import as_properties, describe, model_card, origin_of
from shoal.export.program import Program, make_program
from shoal.records.checkpoint_record import Choice
from shoal.records.json_files import json_text
from shoal.runs.policies.load import find, load_policy
from shoal.runs.policies.trained_policy import TrainedPolicy
from shoal.types import Environment

OLDEST_FLATBUFFERS = "23.5.26"


class Exported(NamedTuple):
    """What was written: the file of the policy, and two beside it of the same name, .json and .md.

    Attributes:
      description: the content of the .json.
      check: how far the file is from the policy; None where it was not compared.
    """

    path: Path
    description: dict[str, Any]
    check: Check | None = None


@on_host
@reports_user_code
def export(
    policy: Any,
    out: str | Path,
    *,
    which: str = "best",
    checkpoint: int | str | Choice | None = None,
    seed: int | None = None,
    label: str | None = None,
    environment: Environment | None = None,
    batch: int = 1,
    sample: bool = False,
    check: int = 0,
    force: bool = False,
) -> Exported:
    """Write a policy as a file that runs without Shoal: `.onnx`, or `.jaxexport` for programs with JAX.

    Beside it are a description for programs (.json), which an ONNX file has as metadata_props too, and one for people
    (.md). Names, shapes and the rule for clearing the memory are in `docs/export.md`.

    Args:
      policy: a run directory, that of a sweep, what `train` or `sweep` returned, or a policy from `load`.
      out: the file, whose suffix says what it is.
      which: as in `load`, as `checkpoint`, `seed`, `label` and `environment` are; for a run.
      batch: the number of observations at each step, the first axis of all arrays (the second of stacked memories).
      sample: whether actions are sampled, of the noise that an input `noise` is given, instead of the policy's mode.
      check: the number of steps of the environment for which the file is compared with the policy; 0 for none.
      force: whether files that exist are replaced.
    Raises:
      ShoalError: there is no such policy; the file exists, cannot be written, or has another suffix; a package is
        missing or too old; the policy has a primitive without a form in ONNX, or does not sample by noise.
      DifferentPolicy: the file does not act as the policy does. Nothing is written.
    """
    path, largest = arguments.path("out", out), arguments.LARGEST_INDEX
    batch = arguments.whole_number("batch", batch, 1, largest)
    steps = arguments.whole_number("check", check, 0, largest)
    files = _checked_outputs(path, arguments.boolean("force", force))
    if steps and batch > 1:
        raise ShoalError(
            f"check={steps} compares one environment, and batch={batch} is above 1; leave one of them out."
        )
    form = FORMS[path.suffix]
    form.require()
    loaded, origin = _chosen(
        policy, which=which, checkpoint=checkpoint, seed=seed, label=label, environment=environment
    )
    program = make_program(loaded, batch, sample=arguments.boolean("sample", sample))
    description = describe(loaded, program, origin, form.packages)
    content = form.write(program, description)
    result = compare(loaded, program, form.runner(content, program), steps) if steps else None
    if result is not None:
        require_same(result)
    card = model_card(path, description, str(result or ""))
    with contextlib.ExitStack() as stack:  # all three are complete before the first gets its name
        for file, data in zip(files, (content, json_text(description).encode(), card.encode()), strict=True):
            written = stack.enter_context(write_whole_file(file, parents=False, new=not force))
            written.write(data)
            written.flush()
    return Exported(path, description, result)


def _chosen(
    policy: Any, *, environment: Environment | None, **choice: Any
) -> tuple[TrainedPolicy, dict[str, Any]]:
    """Return the policy that is meant, and where it comes from."""
    if isinstance(policy, TrainedPolicy):
        return policy, {}
    if hasattr(policy, "policy"):  # what `train` or `sweep` returned
        environment = getattr(policy, "environment", None) if environment is None else environment
        policy = policy.path
    stored, place = find(policy, environment=environment, **choice)
    return load_policy(stored, place), origin_of(stored, place, arguments.path("policy", policy))


def _checked_outputs(path: Path, force: bool) -> tuple[Path, Path, Path]:
    """Return the paths of the three files.

    Raises:
      ShoalError: the suffix is unknown, or one of them exists or cannot be written.
    """
    if path.suffix not in FORMS:
        raise ShoalError(
            f"out={str(path)!r} has none of the suffixes {' and '.join(FORMS)}; give one, as policy.onnx."
        )
    files = path, path.with_suffix(".json"), path.with_suffix(".md")
    for file in files:
        require_output(file, force, f"out={str(path)!r}: {str(file)!r}")
    return files


class _Form(NamedTuple):
    """A form in which a policy is written."""

    require: Callable[[], object]  # raises where its packages are missing
    write: Callable[[Program, dict[str, Any]], bytes]
    runner: Callable[[bytes, Program], Runner]
    packages: tuple[str, ...] = ()  # that write it, besides Shoal's own


def _write_onnx(program: Program, description: dict[str, Any]) -> bytes:
    return onnx_file.to_model(program, as_properties(description)).SerializeToString()


def _run_onnx(content: bytes, program: Program) -> Runner:
    import onnxruntime  # noqa: PLC0415 - the converter brings it

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda feed: dict(zip(program.outputs, session.run(list(program.outputs), feed), strict=True))


def _serializer() -> ModuleType:
    # JAX does not require it, and imports it where it writes or reads a program.
    return import_package("exporting to .jaxexport needs", "flatbuffers", "export", OLDEST_FLATBUFFERS)


def _write_jax(program: Program, _: dict[str, Any]) -> bytes:
    def step(inputs: dict[str, Any]) -> dict[str, Any]:
        outputs = jaxpr_as_fun(program.closed)(*(inputs[name] for name in program.inputs))
        return dict(zip(program.outputs, outputs, strict=True))

    exported = jax.export.export(jax.jit(step), platforms=("cpu", "cuda"))(dict(program.inputs))
    return bytes(exported.serialize())


def _run_jax(content: bytes, _: Program) -> Runner:
    call = jax.export.deserialize(bytearray(content)).call
    return lambda feed: {name: np.asarray(x) for name, x in call(dict(feed)).items()}


FORMS = {
    ".onnx": _Form(onnx_file.converter, _write_onnx, _run_onnx, ("jax2onnx", "onnx")),
    ".jaxexport": _Form(_serializer, _write_jax, _run_jax),
}
