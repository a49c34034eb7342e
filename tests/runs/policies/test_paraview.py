"""Files for ParaView, read back by VTK's description of the format."""

from xml.etree import ElementTree

import jax.numpy as jnp
import numpy as np
import pytest

from shoal import envs
from shoal.base.errors import ShoalError
from shoal.envs.geometry import Geometry
from shoal.runs.policies import paraview, recording
from shoal.types.spaces import Box, Discrete

pytest.importorskip("pyevtk")
DTYPES = {"Float64": np.float64, "Int64": np.int64, "UInt8": np.uint8}


@envs.environment
class Chain:
    """As many points as the state says; each is joined to the next one."""

    observation_space = Box(0, 1, (1,))
    action_space = Discrete(2)

    def reset(self, key):
        return jnp.int32(1), envs.restart(jnp.zeros(1))

    def step(self, state, action, key):
        return state + 1, envs.transition(jnp.zeros(1), jnp.zeros(()))

    def geometry(self, state):
        points = np.arange(3.0 * state).reshape(-1, 3)
        fields = {"size": np.arange(state) + 0.5, "velocity": -points}
        return Geometry(points, fields, np.stack([points[:-1], points[1:]], axis=1), {"pull": points[1:, 0]})


def read(path):
    """The arrays of a file by name: the header says where each begins in the raw data, where its length precedes it."""
    head, _, raw = path.read_bytes().partition(b'<AppendedData encoding="raw">')
    raw = raw[raw.index(b"_") + 1 :]
    found = {}
    for x in ElementTree.fromstring(head + b"</VTKFile>").iter("DataArray"):
        start = int(x.get("offset"))
        length = int(np.frombuffer(raw, np.uint64, 1, start)[0])
        values = np.frombuffer(raw[start + 8 : start + 8 + length], DTYPES[x.get("type")])
        components = int(x.get("NumberOfComponents"))
        found[x.get("Name")] = values.reshape(-1, components) if components > 1 else values
    return found


def test_what_is_written_can_be_read(tmp_path):
    env = envs.TimeLimit(Chain(), 5)
    path = recording.check_renderable(env, tmp_path / "out.pvd")
    states = [env.reset(None)[0]._replace(env=np.int32(n)) for n in (1, 4)]
    assert paraview.write_states(path, env, states, 5.0) == 2
    files = [dict(x.attrib) for x in ElementTree.parse(path).getroot().iter("DataSet")]
    assert [(x["timestep"], x["part"]) for x in files] == [
        ("0.0", "0"),
        ("0.0", "1"),
        ("0.2", "0"),
        ("0.2", "1"),
    ]
    first, no_lines, points, lines = (read(tmp_path / x["file"]) for x in files)
    expected = Chain().geometry(4)
    assert (
        len(first["points"]) == 1
        and (no_lines["points"] == first["points"]).all()
        and no_lines["pull"] == [0]
    )
    np.testing.assert_array_equal(points["points"], expected.points)
    np.testing.assert_array_equal(points["size"], expected.fields["size"])
    np.testing.assert_array_equal(points["velocity"], expected.fields["velocity"])
    assert points["types"].tolist() == [1] * 4 and points["offsets"].tolist() == [1, 2, 3, 4]
    assert lines["types"].tolist() == [3] * 3 and lines["offsets"].tolist() == [2, 4, 6]
    np.testing.assert_array_equal(lines["points"][lines["connectivity"].reshape(-1, 2)], expected.lines)
    np.testing.assert_array_equal(lines["pull"], expected.line_fields["pull"])
    with pytest.raises(ShoalError, match=r"its data would be in '.*out-data', which exists already"):
        recording.check_renderable(env, path)


def test_nothing_stays_of_what_cannot_be_written_and_refusals_are_early(tmp_path):
    def broken():
        yield jnp.int32(1)
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        paraview.write_states(tmp_path / "a.pvd", Chain(), broken(), 1.0)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(
        ShoalError, match=r"CartPole cannot be written for ParaView: it has no `geometry\(state\)`"
    ):
        recording.check_renderable(envs.make("CartPole-v1"), tmp_path / "a.pvd")
    with pytest.raises(ShoalError, match=r"there is no directory .*none"):
        recording.check_renderable(Chain(), tmp_path / "none" / "a.pvd")
