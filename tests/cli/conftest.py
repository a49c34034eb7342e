"""The command in this process."""

import sys

import pytest


@pytest.fixture
def command(monkeypatch, tmp_path):
    """The command in this process, from an empty directory that it may import from."""
    from shoal.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return lambda *arguments: main([str(word) for word in arguments])
