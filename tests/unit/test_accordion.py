"""Accordion: densities of layers by the change of their gradient's norm, worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.compatibility import resolve
from testbed.control.accordion import Accordion
from testbed.control.base import LayerController, Observation
from testbed.errors import ExperimentError, InputError

HIGH, LOW = 0.99, 0.1
NAMES = ["a", "b"]


def seen(epoch: int, a: float, b: float = 1.0, rate: float | None = 0.1) -> Observation:
    layers = {"a": [300.0, a], "b": [100.0, b]}
    return Observation(0, epoch, 0.1, 0.5, 1000, 0.5, learning_rate=rate, layers=layers)


def course(controller: Accordion, epochs: list[Observation], steps: int = 2) -> list[list[float]]:
    """Densities after all steps of each epoch, every step as it is given."""
    densities = []
    for epoch in epochs:
        for _ in range(steps):
            controller.observe(epoch)
        densities.append(controller.densities(NAMES))
    return densities


def test_constants_and_row() -> None:
    controller = Accordion(seed=0)
    assert controller.options.model_dump() == {
        "k_high": 0.99, "k_low": 0.1, "threshold": 0.5, "every_epochs": 10,
    }  # fmt: skip
    assert isinstance(controller, LayerController)
    assert controller.watches == {"layers"}
    row = resolve("accordion")
    assert (row.selector, row.memory, row.controller, row.buckets) == ("topk", "feedback", "accordion", "layer")  # fmt: skip


def test_all_is_high_up_to_the_first_check() -> None:
    controller = Accordion(seed=0)
    assert controller.density() == HIGH
    assert controller.densities(NAMES) == [HIGH, HIGH]
    epochs = course(controller, [seen(epoch, 1.0) for epoch in range(1, 11)])
    assert epochs == [[HIGH, HIGH]] * 10


def test_each_layer_by_its_change() -> None:
    """a changes by 0.6 of what it was in the first epoch, b by 0.5 exactly, which is not above."""
    controller = Accordion(seed=0)
    epochs = [seen(epoch, 1.0) for epoch in range(1, 10)] + [seen(10, 1.6, 0.5)]
    course(controller, epochs)
    course(controller, [seen(11, 7.0, 7.0)], steps=1)
    assert controller.densities(NAMES) == [HIGH, LOW]
    assert controller.density() == pytest.approx((300 * HIGH + 100 * LOW) / 400)
    # epoch 20 is compared with epoch 10: a has 1.6 again, b has fallen by 0.6 of 0.5
    course(controller, [seen(epoch, 1.6, 0.2) for epoch in range(11, 22)])
    assert controller.densities(NAMES) == [LOW, HIGH]


def test_root_mean_square_of_the_epoch() -> None:
    """Norms 1 and 7 have a root mean square of 5; 7.5 is just within a half of it, 7.6 is not."""
    for norm, expected in ((7.5, LOW), (7.6, HIGH)):
        controller = Accordion(seed=0, every_epochs=2)
        for step in (seen(1, 1.0), seen(1, 7.0), seen(2, norm), seen(3, 1.0)):
            controller.observe(step)
        assert controller.densities(["a"]) == [expected]


def test_an_epoch_ends_with_the_first_step_of_the_next() -> None:
    controller = Accordion(seed=0, every_epochs=1)
    course(controller, [seen(1, 1.0), seen(2, 1.0)], steps=5)
    assert controller.densities(NAMES) == [HIGH, HIGH]
    course(controller, [seen(3, 1.0)], steps=1)
    assert controller.densities(NAMES) == [LOW, LOW]


def test_learning_rate_just_reduced() -> None:
    controller = Accordion(seed=0, every_epochs=2)
    course(controller, [seen(1, 1.0), seen(2, 1.0), seen(3, 1.0)])
    assert controller.densities(NAMES) == [LOW, LOW]
    course(controller, [seen(4, 1.0), seen(5, 1.0, rate=0.01)])
    assert controller.densities(NAMES) == [HIGH, HIGH]
    course(controller, [seen(6, 1.0, rate=0.01), seen(7, 1.0, rate=0.01)])
    assert controller.densities(NAMES) == [LOW, LOW]
    course(controller, [seen(8, 1.0, rate=0.01), seen(9, 1.0, rate=0.1)])
    assert controller.densities(NAMES) == [LOW, LOW], "raised, not reduced"


def test_without_a_learning_rate_norms_decide() -> None:
    controller = Accordion(seed=0, every_epochs=2)
    course(controller, [seen(epoch, 1.0, rate=None) for epoch in range(1, 4)])
    assert controller.densities(NAMES) == [LOW, LOW]


def test_nothing_to_divide_by() -> None:
    controller = Accordion(seed=0, every_epochs=2)
    course(controller, [seen(1, 0.0, 0.0), seen(2, 0.0, 1.0), seen(3, 0.0)])
    assert controller.densities(NAMES) == [LOW, HIGH]


def test_layers_never_seen_are_high() -> None:
    controller = Accordion(seed=0, every_epochs=2)
    course(controller, [seen(1, 1.0), seen(2, 1.0), seen(3, 1.0)])
    assert controller.densities(["new", "a"]) == [HIGH, LOW]


def test_epochs_and_their_steps_are_counted() -> None:
    controller = Accordion(seed=0, k_low=0.5, k_high=0.5)
    course(controller, [seen(1, 1.0), seen(2, 1.0), seen(3, 1.0)], steps=4)
    state = controller.state()
    assert (state["epoch"], state["ended"], state["steps"]) == (3, 2, 4)


def test_needs_norms() -> None:
    bare = replace(seen(1, 1.0), step=7, layers={})
    with pytest.raises(ExperimentError, match="'accordion': step 7 has no `layers`"):
        Accordion(seed=0).observe(bare)
    with pytest.raises(ExperimentError, match="norm of 'a' is not finite"):
        Accordion(seed=0).observe(seen(1, float("nan")))
    with pytest.raises(InputError, match=r"k_low 0.5 is above k_high 0.4"):
        Accordion(seed=0, k_low=0.5, k_high=0.4)


@settings(max_examples=examples(60), deadline=None)
@given(
    norms=st.lists(st.tuples(st.integers(1, 3), st.floats(0, 1e300), st.floats(0, 1e300)), max_size=40),
    every=st.integers(1, 4),
)  # fmt: skip
def test_densities_are_one_of_two(norms: list[tuple[int, float, float]], every: int) -> None:
    controller = Accordion(seed=0, every_epochs=every)
    for epoch, a, b in norms:
        controller.observe(seen(epoch, a, b))
        assert set(controller.densities(NAMES)) <= {HIGH, LOW}
        assert LOW - 1e-12 <= controller.density() <= HIGH + 1e-12
    json.dumps(controller.state(), allow_nan=False)
