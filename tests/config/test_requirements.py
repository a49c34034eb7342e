"""A setting that has no effect is refused if the caller gave it, and only then."""

import dataclasses
import typing

import pytest

import shoal
from shoal.algos.catalogue import algorithms, config_class
from shoal.base.errors import ShoalError
from shoal.config.requirements import Needs, check_needs
from shoal.config.settings import flat, needs_of, settings_of
from shoal.records.run_config import RunConfig
from shoal.runs.plan.decide import decide
from shoal.runs.plan.presets import environments as tuned
from shoal.runs.plan.presets import preset


def refused(*, environment="CartPole-v1", **settings):
    with pytest.raises(ShoalError) as error:
        decide(environment, overrides=settings)
    return str(error.value)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"clip_coef": 0.1, "surrogate": "penalty"},
            "clip_coef=0.1 has no effect with surrogate='penalty'; it needs surrogate='clip'.",
        ),
        (
            {"vf_clip_coef": 0.1},
            "vf_clip_coef=0.1 has no effect with clip_vloss=False; it needs clip_vloss=True.",
        ),
        (
            {"desired_kl": 0.02, "lr_schedule": "constant"},
            "desired_kl=0.02 has no effect with lr_schedule='constant' and surrogate='clip'; "
            "it needs lr_schedule='adaptive' or surrogate='penalty'.",
        ),
        (
            {"desired_kl": 0.02, "lr_schedule": "linear", "surrogate": "penalty", "adaptive_kl_coef": False},
            "desired_kl=0.02 has no effect with lr_schedule='linear' and adaptive_kl_coef=False; "
            "it needs lr_schedule='adaptive' or adaptive_kl_coef=True.",
        ),
        (
            {"chunk_length": 4},
            "chunk_length=4 has no effect with core='none'; it needs one, such as core='gru'.",
        ),
        (
            {"critic_optimizer_args": ("eps=1e-5",)},
            "critic_optimizer_args=('eps=1e-5',) has no effect with critic_optimizer=",
        ),
        (
            {"encoder_kernels": (3,)},
            "encoder_kernels=(3,) has no effect with encoder='flatten' and critic_encoder=None; "
            "it needs encoder='cnn' or critic_encoder='cnn'.",
        ),
        (
            {"initial_std": 0.5},
            "initial_std=0.5 has no effect with action_space=Discrete(n=2); it needs an action_space that is a Box.",
        ),
        (
            {"environment": "Pendulum-v1", "initial_std": 0.5, "distribution": "beta"},
            "initial_std=0.5 has no effect with distribution='beta'; it needs distribution='auto' or",
        ),
        (
            {"network": "shoal.nets.q_heads:ContinuousQ", "layer_norm": True},
            "layer_norm=True has no effect with network='shoal.nets.q_heads:ContinuousQ'; it needs network='shoal.nets",
        ),
        (
            {"num_evals": 5, "eval_every": 1000},
            "num_evals=5 has no effect with eval_every=1000; it needs eval_every=-1.",
        ),
    ],
)
def test_a_setting_without_effect_is_refused(settings, sentence):
    assert refused(**settings).startswith(sentence)


@pytest.mark.parametrize(
    "settings",
    [
        {"clip_coef": 0.1},
        {"desired_kl": 0.02, "lr_schedule": "adaptive"},
        {"critic_optimizer": "adam", "critic_optimizer_args": ("eps=1e-5",)},
        {"core": "gru", "core_size": 16},
        {"critic_encoder": "set", "encoder_features": (8,), "encoder_heads": 2},
        {"encoder": "cnn", "encoder_features": (), "encoder_channels": (8,), "encoder_strides": None},
        {"environment": "Pendulum-v1", "initial_std": 0.5, "action_scaling": "clip"},
    ],
)
def test_a_setting_with_effect_is_taken(settings):
    settings = dict(settings)
    environment = settings.pop("environment", "CartPole-v1")
    decided = decide(environment, overrides=settings)
    for name, value in settings.items():
        assert (flat(decided.run) | flat(decided.config))[name] == value


def test_what_a_preset_or_a_file_sets_may_be_without_effect(tmp_path):
    """Switching off what a preset switches on does not refuse what it set for that."""
    sets_a_core = next(name for name in tuned() if "core_size" in preset(name, "ppo"))
    decided = decide(sets_a_core, overrides={"core": "none"})
    decided.validate()  # as a run does
    assert decided.config.network.core == "none"
    assert decided.config.network.core_size == preset(sets_a_core, "ppo")["core_size"]

    import json

    saved = decide("CartPole-v1", overrides={"surrogate": "penalty", "kl_coef": 0.5})
    (tmp_path / "config.json").write_text(json.dumps(saved.as_json()))
    again = decide(None, config_file=tmp_path, overrides={"surrogate": "clip"})
    assert (again.config.surrogate, again.config.kl_coef) == ("clip", 0.5)


def test_an_algorithm_of_ones_own_declares_its_table():
    @dataclasses.dataclass(frozen=True)
    class Config:
        needs: typing.ClassVar = {"width": (Needs("shape", ("round",)),)}
        shape: str = "flat"
        width: int = 3

        def algorithm(self, spec, axis=()):
            raise NotImplementedError

    with pytest.raises(
        ShoalError, match=r"width=4 has no effect with shape='flat'; it needs shape='round'\."
    ):
        decide("CartPole-v1", algorithm=Config(), overrides={"width": 4})
    assert (
        decide("CartPole-v1", algorithm=Config(), overrides={"width": 4, "shape": "round"}).config.width == 4
    )


EVERY_SETTING = {name for x in [RunConfig, *map(config_class, algorithms())] for name in settings_of(x())}


def test_an_alternative_that_an_algorithm_lacks_meets_nothing():
    table = {"a": ((Needs("b", (True,)), Needs("missing", (3,))),)}
    with pytest.raises(ShoalError, match=r"a=1 has no effect with b=False; it needs b=True\."):
        check_needs({"a"}, {"a": 1, "b": False}, table)


@pytest.mark.parametrize("config", [RunConfig, *map(config_class, algorithms())])
def test_the_table_names_settings_and_values_that_there_are(config):
    fields = settings_of(config())
    hints = {name: setting.declared for name, setting in fields.items()}
    entries = [(name, x) for name, needs in needs_of(config()).items() for e in needs
               for x in (e if isinstance(e, tuple) else (e,))]  # fmt: skip
    assert entries
    for name, needs in entries:
        # Of several alternatives some may be settings of another algorithm's.
        assert name in fields and needs.name in EVERY_SETTING | {"action_space", "has_memory", "num_agents"}
        if typing.get_origin(hints.get(needs.name)) is typing.Literal:
            values = {*needs.values, *needs.other_than, *([needs.such_as] if needs.other_than else [])}
            assert values <= set(typing.get_args(hints[needs.name]))


def test_a_need_of_a_class_is_met_by_its_name_or_itself():
    needs = Needs("network", (f"{Needs.__module__}:Needs",))
    assert (
        needs.is_met("shoal.config.requirements:Needs")
        and needs.is_met(Needs)
        and not needs.is_met(RunConfig)
    )
    # Another algorithm's: nothing is known of it.
    check_needs({"a"}, {"a": 1}, {"a": (Needs("missing", (3,)),)})


def test_python_says_the_same():
    with pytest.raises(ShoalError, match=r"clip_coef=0\.1 has no effect with surrogate='dpo'"):
        shoal.train("CartPole-v1", clip_coef=0.1, surrogate="dpo", progress=False)
