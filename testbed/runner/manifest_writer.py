"""Conditions of a run, written into its directory before t0: manifest and resolved scenario, paces
and profiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

from testbed.algorithm import Algorithm
from testbed.compatibility import resolve
from testbed.compress.layout import Layer, Layout, pieces
from testbed.errors import InputError
from testbed.records.manifest import cpu_model, manifest
from testbed.records.run_directory import RunDirectory
from testbed.scenario.load import Loaded, dump
from testbed.scenario.model import LogNormalPace, Pace, RecordedPace, Scenario, Train
from testbed.scenario.profile import Profile, ProfileFile, file_of, shipped
from testbed.scenario.recorded_paces import worker_paces
from testbed.topology import NodeSpec
from testbed.training.pacing import StepTimes, times_of
from testbed.training.tasks.base import check_data as check_missing
from testbed.training.tasks.base import tasks

if TYPE_CHECKING:
    import torch

    from testbed.training.replica import FlatModel


P = TypeVar("P")


def recorded_times(pace: Pace | None, loaded: Loaded) -> tuple[float, ...]:
    """Seconds of model time that ``pace`` plays; none where it plays none."""
    return loaded.step_times[pace.key] if isinstance(pace, RecordedPace) else ()


def longest_pace_s(paces: Iterable[Pace | None], loaded: Loaded) -> float:
    """Wall seconds that a worker's computation may take, whichever it is."""
    different = dict.fromkeys(paces)
    times = (_times(pace, loaded, loaded.scenario.dilation) for pace in different)
    return max(
        (pace_times.longest_s for pace_times in times if pace_times is not None), default=0.0
    )


def usual_pace_s(loaded: Loaded) -> float | None:
    """Model seconds of a usual step by ``train.pace``; None: nothing is held."""
    times = _times(loaded.scenario.train.pace, loaded)
    return None if times is None else times.usual_s


def slowest_pace_s(loaded: Loaded) -> float:
    """Model seconds of a usual step of the slowest worker; 0 where nothing is held."""
    times = (_times(pace, loaded) for pace in dict.fromkeys(worker_paces(loaded.scenario).values()))
    return max((pace_times.usual_s for pace_times in times if pace_times is not None), default=0.0)


def one_pace_s(loaded: Loaded) -> float | None:
    """Wall seconds that every step of every worker is held to; None where there is no such time."""
    paces = set(worker_paces(loaded.wall()).values())
    pace = paces.pop() if len(paces) == 1 else None
    return None if pace is None or not isinstance(pace, float) else float(pace)


def paces_told(loaded: Loaded) -> dict[str, dict[str, Any]] | None:
    """Return the pace of every worker in model time; None where all have the same time, or none."""
    paces = worker_paces(loaded.scenario)
    if len(set(paces.values())) == 1 and isinstance(next(iter(paces.values())), float | None):
        return None
    return {node: _pace_record(pace, loaded) for node, pace in paces.items()}


def keep_paces(directory: RunDirectory, loaded: Loaded) -> Scenario:
    """Write recorded times beside the scenario, and return it with their names."""
    kept = {key: f"pace-{index}.json" for index, key in enumerate(loaded.step_times)}
    for key, name in kept.items():
        directory.write_json(name, {"step_s": loaded.step_times[key]})

    def here(pace: P) -> P | RecordedPace:
        if isinstance(pace, RecordedPace):
            return pace.model_copy(update={"file": kept[pace.key], "column": None})
        return pace

    train = loaded.scenario.train
    paces = {name: here(pace) for name, pace in train.paces.items()}
    train = train.model_copy(update={"pace": here(train.pace), "paces": paces})
    return loaded.scenario.model_copy(update={"train": train})


def in_words(paces: dict[str, dict[str, Any]]) -> str:
    """Return the result of ``paces_told`` for people to read."""
    counted = Counter(_words(pace) for pace in paces.values())
    if len(counted) == 1:
        return next(iter(counted))
    return "; ".join(f"{words} ({count} of the workers)" for words, count in counted.items())


def _times(pace: Pace | None, loaded: Loaded, dilation: float = 1.0) -> StepTimes | None:
    return times_of(pace, 0, "", recorded_times(pace, loaded), dilation)


def _pace_record(pace: Pace | None, loaded: Loaded) -> dict[str, Any]:
    times = _times(pace, loaded)
    usual = {"usual_s": None if times is None else times.usual_s}
    if isinstance(pace, LogNormalPace):
        return {"name": pace.name, **usual, "sigma": pace.sigma}
    if isinstance(pace, RecordedPace):
        return {"name": pace.name, **usual, "file": pace.key, "begin": pace.begin}
    return {"name": "constant", **usual}


def _words(pace: dict[str, Any]) -> str:
    usual = f"{1e3 * pace['usual_s']:.4g} ms"
    if pace["name"] == "lognormal":
        return (
            f"times drawn from a log-normal distribution of median {usual}, sigma {pace['sigma']:g}"
        )
    if pace["name"] == "file":
        return f"the times of {pace['file']}, median {usual}"
    return usual


def layout_of(train: Train) -> Layout:
    """Return the layout of the model that is trained; nothing is allocated. Loads torch."""
    from testbed.training.models.base import outline

    named = outline(train.model, train.task, train.width).named_parameters()
    return Layout.of((name, tuple(parameter.shape)) for name, parameter in named)


def check_spread(scenario: Scenario, algorithms: Iterable[Algorithm], where: str) -> None:
    """Raises InputError that names the first algorithm with too few parts for the servers.

    Where there are several servers it loads torch, and raises ImportError without.
    """
    groups = scenario.nodes.values()
    servers = sum(group.count or 1 for group in groups if group.role == "server")
    if servers <= 1:
        return
    layout = layout_of(scenario.train)
    for algorithm in algorithms:
        try:
            pieces(layout, servers, algorithm.bucket_bytes)
        except InputError as error:
            message = f"algorithm {algorithm.name!r}: {error.message}"
            raise InputError(message, where=where, hint=error.hint) from None


def layers_of(train: Train) -> list[Layer]:
    """Return the layers of the model that is trained; nothing is allocated. Loads torch."""
    return layout_of(train).layers()


def check_layers(loaded: Loaded) -> None:
    """Raises InputError where the profile's layers are not the model's."""
    if loaded.profile is None:
        return
    try:
        loaded.profile.profile().of([layer.name for layer in layers_of(loaded.scenario.train)])
    except InputError as error:
        raise InputError(error.message, where=f"{loaded.source}: train.profile") from None


def overlaps(loaded: Loaded) -> bool:
    """Return whether any of a scenario's algorithms computes layer by layer."""
    return any(resolve(entry).overlap for entry in loaded.scenario.algorithms)


def check_fits(loaded: Loaded) -> None:
    """Check what the model's layers tell, where torch is installed. Raises InputError."""
    scenario = loaded.scenario
    with suppress(ImportError):  # without torch it is not known what they are
        check_layers(loaded)
        check_spread(scenario, map(resolve, scenario.algorithms), str(loaded.source))


def check_data(loaded: Loaded, data: str | None) -> tuple[Path, ...]:
    """Return the folders of the task's data, which nodes read. Raises InputError where they, or
    files in them, are not there; ``data``: its full path."""
    train = loaded.scenario.train
    folder = None if data is None else Path(data)
    if folder is not None and not folder.is_dir():
        raise InputError(
            f"the task's data directory {folder} does not exist",
            where=loaded.where("train", "data"),
            hint="Make it, with the files of the task in it, or change `train.data`",
        )
    if train.gradients == "real":
        try:
            check_missing(train.task, folder)
        except InputError as error:
            where = loaded.where("train", "data")
            raise InputError(error.message, where=where, hint=error.hint) from None
    return () if folder is None else (folder,)


def pacing(loaded: Loaded, *, by_layer: bool, virtual: bool = False) -> dict[str, Any] | None:
    """How computation is held, in model time; None: not at all.

    ``by_layer``: with overlap; without, nothing is shared, and so nothing is measured. ``virtual``:
    computation takes no time of its own there.
    """
    train, file = loaded.scenario.train, loaded.profile
    if (usual_s := usual_pace_s(loaded)) is None:
        return None
    return {
        "pace_s": usual_s,
        **({} if (own := paces_told(loaded)) is None else {"workers": own}),
        "profile": train.profile or "measured",
        "by_layer": by_layer,
        "source": _source(train.profile, by_layer, virtual) if file is None else file.source,
        "layers": None if file is None else len(file.layers),
        "own_s": None if file is None else file.total_s,
        "device": None if file is None else file.device,
    }


def _source(profile: str | None, by_layer: bool, virtual: bool) -> str | None:
    """Return the source of the layers' shares, without a file; None where there are none."""
    if not by_layer:
        return None
    return "constant" if virtual or profile == "constant" else "measured"


def in_a_sentence(pacing: dict[str, Any] | None) -> str | None:
    """Return the result of ``pacing`` as a sentence for people."""
    if pacing is None:
        return None
    to = (
        f"{1e3 * pacing['pace_s']:.4g} ms"
        if (own := pacing.get("workers")) is None
        else in_words(own)
    )
    sentence = f"computation is held to {to} a step"
    if not pacing["by_layer"]:
        return f"{sentence} in all: no algorithm overlaps it layer by layer{_of_a_file(pacing)}"
    if pacing["layers"] is None:
        return f"{sentence}, shared among layers {_SHARED[pacing['source']]}"
    layers = f"{pacing['layers']} layers as in {pacing['profile']}"
    return f"{sentence}, shared among {layers}{_of_a_file(pacing)}"


_SHARED = {
    "measured": "as measured on each node (on sim: the same for every layer)",
    "constant": "the same for every layer",
}


def _of_a_file(pacing: dict[str, Any]) -> str:
    if pacing["layers"] is None:
        return ""
    return f" ({pacing['source']}: {1e3 * pacing['own_s']:.4g} ms on {pacing['device']})"


_PROFILE = "profile.json"


def describe(
    directory: RunDirectory,
    loaded: Loaded,
    specs: Iterable[NodeSpec],
    links: Iterable[Mapping[str, Any]],
    *,
    fabric: str,
    algorithm: Mapping[str, Any],
    seed: int,
    model: Mapping[str, Any] | None = None,
    hosts: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write the manifest, the resolved scenario, and the profile that it names.

    ``links``: every direction as asked and as held. ``model``: of links that are modelled, how.
    """
    directory.write_text("scenario.yaml", dump(_kept(directory, loaded)))
    directory.write_json(
        "manifest.json",
        manifest(
            scenario_name=loaded.scenario.name,
            content_hash=loaded.hash,
            algorithm=algorithm,
            seed=seed,
            dilation=loaded.scenario.dilation,
            pace_s=one_pace_s(loaded),
            pacing=pacing(loaded, by_layer=bool(algorithm.get("overlap")), virtual=fabric == "sim"),
            nodes={spec.name: asdict(spec) for spec in specs},
            links=links,
            fabric=fabric,
            congestion=loaded.scenario.congestion,
            model=model,
            hosts=hosts,
        ),
    )


def _kept(directory: RunDirectory, loaded: Loaded) -> Scenario:
    """The scenario with its profile and recorded paces as files beside it."""
    scenario, profile = keep_paces(directory, loaded), loaded.profile
    if profile is None:
        return scenario
    directory.write_text(_PROFILE, profile.text())
    if scenario.train.profile in shipped():
        return scenario
    train = scenario.train.model_copy(update={"profile": _PROFILE})
    return scenario.model_copy(update={"train": train})


def measured_file(train: Train, device: str, threads: int, passes: int) -> ProfileFile:
    """Measure a profile on random samples. Raises MachineError without that device."""
    import torch

    from testbed.training.models.base import build
    from testbed.training.profiling import WARM_UP, measure
    from testbed.training.replica import FlatModel
    from testbed.training.replica import configure_torch as settle

    flat = FlatModel(build(train.model, train.task, train.width, 0), settle(device, threads))
    step = _Step(flat, *_samples(train, flat.parameters.device))
    about = f"median of {passes} passes after {WARM_UP} to warm up, PyTorch {torch.__version__}"
    profile = measure(flat, step, perf_counter, passes=passes, about=about)
    return _file(train, profile, _device(device, threads))


def estimated_file(train: Train, accelerator: str) -> ProfileFile:
    """Raises InputError for an accelerator that is not known."""
    from testbed.training.models.base import outline
    from testbed.training.profiling import accelerator_of, estimate

    its = accelerator_of(accelerator)
    module = outline(train.model, train.task, train.width)
    shape = tasks.get(train.task, where="train.task").inputs
    return _file(train, estimate(module, shape, train.batch, its), its.name)


class _Step:
    """One forward and backward pass over the same samples."""

    def __init__(self, flat: FlatModel, x: torch.Tensor, y: torch.Tensor) -> None:
        self._flat, self._x, self._y = flat, x, y

    def __call__(self) -> None:
        from torch.nn.functional import cross_entropy

        loss = cross_entropy(self._flat.forward(self._x), self._y)
        loss.backward()


def _samples(train: Train, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    task, generator = tasks.get(train.task, where="train.task"), torch.Generator().manual_seed(0)
    x = torch.randn((train.batch, *task.inputs), generator=generator)
    y = torch.randint(task.classes, (train.batch,), generator=generator)
    return x.to(device), y.to(device)


def _file(train: Train, profile: Profile, device: str) -> ProfileFile:
    sizes = {layer.name: layer.end - layer.begin for layer in layers_of(train)}
    return file_of(
        profile,
        sizes,
        device=device,
        model=train.model,
        task=train.task,
        width=train.width,
        batch=train.batch,
    )


def _device(device: str, threads: int) -> str:
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    return f"{threads} thread{'s' * (threads > 1)} of {cpu_model() or 'a processor'}"
