"""Conversion of a program to ONNX, by jax2onnx."""

import contextlib
import logging
import traceback
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn, jaxpr_as_fun
from jax.extend.core.primitives import copy_p
from jax.extend.source_info_util import summarize

from shoal.base.errors import ShoalError
from shoal.base.imports import import_package
from shoal.base.user_errors import shorten
from shoal.export.program import Program
from shoal.types import Array

OPSET, IR_VERSION = 18, 9  # that onnxruntime 1.16 and newer read, and unitree's C++
OLDEST = "0.17.1"  # of jax2onnx


def converter() -> ModuleType:
    """Import jax2onnx.

    Raises:
      ShoalError: it is not installed, or older than what is used here.
    """
    return import_package("exporting to ONNX needs", "jax2onnx", "export", OLDEST)


def to_model(program: Program, metadata: Mapping[str, str]) -> Any:
    """Convert a program to an ONNX model with the names of its inputs and outputs.

    Raises:
      ShoalError: jax2onnx has no conversion of a primitive; the sentence names the line that made it.
    """
    jax2onnx = converter()
    for equation in program.closed.jaxpr.eqns:
        if any(jnp.issubdtype(x.aval.dtype, jax.dtypes.prng_key) for x in equation.invars):
            raise _no_form(equation, "it draws random numbers by a key")

    # Copied, since the converter gives a value one name, and another output or an input may be the same value.
    def step(*inputs: Array) -> list[Array]:
        return [copy_p.bind(x) for x in jaxpr_as_fun(program.closed)(*inputs)]

    logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # warns of values of nodes that it then removes
    with _report_equation():
        model = jax2onnx.to_onnx(
            step,
            list(program.inputs.values()),
            model_name="policy",
            opset=OPSET,
            input_names=list(program.inputs),
            output_names=list(program.outputs),
        )
    model.ir_version = IR_VERSION
    read = {name for node in _nodes(model.graph) for name in node.input}
    for unread in [x for x in model.graph.initializer if x.name not in read]:  # onnxruntime warns of each
        model.graph.initializer.remove(unread)
    for name, text in metadata.items():
        model.metadata_props.add(key=name, value=text)
    return model


def _nodes(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph and of those within it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _nodes(attribute.g)


@contextlib.contextmanager
def _report_equation() -> Iterator[None]:
    """Convert an error of the converter to a sentence with the primitive and the line of the module that made it.

    Raises:
      ShoalError: instead of it, where an equation was converted when it was raised.
    """
    try:
        yield
    except Exception as error:
        scopes = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__)]
        equations = [x for scope in scopes for x in list(scope.values()) if isinstance(x, JaxprEqn)]
        if not equations:
            raise
        raise _no_form(equations[-1], str(error)) from error


def _no_form(equation: JaxprEqn, why: str) -> ShoalError:
    return ShoalError(
        f"ONNX has no form of {equation.primitive.name!r}, made in {summarize(equation.source_info)}: {shorten(why)}; "
        "write the line otherwise, or export to policy.jaxexport."
    )
