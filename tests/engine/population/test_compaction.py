"""Members that go on, dealt out over devices."""

import numpy as np
import pytest

from shoal.engine.population.compaction import dealt


@pytest.mark.parametrize(
    ("going_on", "size", "shards"), [([1, 2, 7], 8, 2), ([0, 1, 2, 3], 4, 2), ([5], 8, 4)]
)
def test_every_device_has_as_many_members_that_go_on(going_on, size, shards):
    places = dealt(going_on, 8, size, shards)
    assert len(set(places.tolist())) == size
    counts = np.isin(places, going_on).reshape(shards, -1).sum(axis=1)
    assert counts.max() - counts.min() <= 1
    assert set(going_on) <= set(places.tolist())
