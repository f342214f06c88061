"""Any algorithm for the gradients of a model of one's own, in ``DistributedDataParallel``.

    model = DistributedDataParallel(module)
    state = CompressionState.of(model, "laplace-0.01")
    model.register_comm_hook(state, compressed_hook)

Every rank compresses its gradients bucket by bucket, while the backward pass goes on, sends them to
all others, and works out the mean of what it received: the same bits everywhere.
``docs/how-to/ddp-hook.md``.
"""

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, Self

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from testbed.algorithm import Algorithm
from testbed.compress import kernels
from testbed.compress.base import Recipe
from testbed.compress.compressor import Checkpoint
from testbed.compress.kernels import compilation
from testbed.control.base import Controller, Observation, controller_seed, controllers
from testbed.errors import InputError
from testbed.training.data import derive
from testbed.training.ddp.bucket import (
    VECTORS,
    BucketTurn,
    CarriedState,
    DdpBucket,
    HookReport,
    Parameters,
    row_of,
)

__all__ = ["CompressionState", "HookReport", "compressed_hook"]


class CompressionState:
    """The state of a model's hook: residuals by parameter, the step, and how much to send.

    ``parameters``: names and tensors of the module that is wrapped. ``algorithm``: a row or a
    pattern of ``testbed algorithms``, an ``Algorithm``, or a ``Recipe``, whose density is 1 unless
    given. ``density``: instead of the algorithm's, if that has a fixed one. ``seed``: the same on
    all ranks. ``clock``: gives seconds, e.g. ``time.perf_counter``; without it no delays are
    measured.

    Raises InputError for an algorithm that is not known or does not suit, and for parameters that
    are not float32, float16 or bfloat16.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, Tensor]],
        algorithm: str | Algorithm | Recipe,
        *,
        density: float | None = None,
        process_group: dist.ProcessGroup | None = None,
        seed: int = 0,
        find_unused: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if not dist.is_initialized():
            raise InputError(
                "there is no process group", hint="Call torch.distributed.init_process_group first"
            )
        group = dist.group.WORLD if process_group is None else process_group
        assert group is not None
        self.algorithm, self._group = row_of(algorithm, density), group
        self._parameters, self._find_unused = Parameters(parameters), find_unused
        self._seed, self._clock = seed, clock
        self.controller = self._make_controller()
        self._buckets: dict[tuple[str, ...], DdpBucket] = {}
        self._carried = CarriedState(self.algorithm.memory)
        self._open: list[DdpBucket] = []
        self._turn = self._turn_of(0)
        self._began_s = 0.0
        self._last, self._totals = HookReport(), HookReport()
        compilation.all()
        for tensor in self._parameters.tensors():
            kernels.of(tensor)  # which compiles those for its device

    @classmethod
    def of(
        cls,
        model: DistributedDataParallel,
        algorithm: str | Algorithm | Recipe,
        *,
        density: float | None = None,
        seed: int = 0,
        clock: Callable[[], float] | None = None,
    ) -> Self:
        """For ``model``, with its parameters' names and its process group."""
        return cls(
            model.module.named_parameters(),
            algorithm,
            density=density,
            process_group=model.process_group,
            seed=seed,
            find_unused=model.find_unused_parameters,
            clock=clock,
        )

    @property
    def buckets(self) -> list[list[str]]:
        """Names of the parameters that are compressed together, as it stands."""
        return [bucket.names for bucket in self._buckets.values()]

    def exchange(self, bucket: GradBucket) -> Future[Tensor]:
        """Run the hook: begin with ``bucket``'s gradient; after the last one of a step, end all.

        The last bucket's gradients end the backward pass, so nothing is held up by waiting there,
        and an error is raised where the caller of ``backward`` meets it, on all ranks.
        """
        if bucket.index() == 0:
            self._begin()
        own = self._bucket(bucket)
        future = own.launch(bucket, self._turn)
        self._open.append(own)
        if bucket.is_last():
            self._end()
        return future

    def report(self) -> HookReport:
        """Return the counts of the last step."""
        return self._last

    def totals(self) -> HookReport:
        """Return the counts of all steps since the state was made."""
        return self._totals

    def observe(self, *, accuracy: float, epoch: int = 1, delay_s: float | None = None) -> None:
        """Tell the controller how the last step went, so that it can choose the next density.

        ``accuracy``: of this rank's mini-batch. ``delay_s``: the clock's unless given. Raises
        InputError where there is neither.
        """
        if delay_s is None and self._clock is None:
            raise InputError(
                "the controller needs a delay", hint="Give `delay_s`, or a `clock` from the start"
            )
        observed = Observation(
            step=self._turn.step,
            epoch=epoch,
            delay_s=self._last.delay_s if delay_s is None else delay_s,
            accuracy=accuracy,
            bytes_sent=self._last.bytes_sent,
            density=self._turn.density,
        )
        self.controller.observe(observed)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint, between two steps: each rank's own, as its residuals are."""
        state = self._carried.together([bucket.state() for bucket in self._buckets.values()])
        for part in VECTORS:
            state[part] = self._parameters.to_checkpoint(state[part])
        return {**state, "step": self._turn.step, "controller": self.controller.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` of this rank gave, whatever the buckets were.

        Raises InputError when the residuals are those of other parameters, or of another memory, or
        the controller is another; then all is as before.
        """
        Checkpoint.read(state, self.algorithm.memory)
        known, controller = dict(state), self._make_controller()
        for part in VECTORS:
            known[part] = self._parameters.from_checkpoint(state[part])
        try:
            controller.load(state["controller"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"controller {self.algorithm.controller!r} cannot go on from this state",
                hint="Load it into a state with the algorithm that it was saved with",
            ) from error
        self._carried, self._buckets, self._open = CarriedState(self.algorithm.memory), {}, []
        self._carried.add(known)
        self.controller = controller
        self._turn = self._turn_of(state["step"])

    def _make_controller(self) -> Controller[Any]:
        make = controllers.get(self.algorithm.controller)
        rank = 0 if self.algorithm.agree else self._group.rank()
        return make(seed=controller_seed(self._seed, rank), **self.algorithm.options)

    def _turn_of(self, step: int) -> BucketTurn:
        """The same randomness for a step in every run, also in one that was resumed."""
        own = derive(self._seed, "ddp", self._group.rank(), step)
        common = derive(self._seed, "ddp reply", step)
        return BucketTurn(step, self.controller.density(), Random(own), Random(common))

    def _begin(self) -> None:
        self._open = []
        self._turn = self._turn_of(self._turn.step + 1)
        self._began_s = self._now()

    def _end(self) -> None:
        buckets, self._open = self._open, []
        for bucket in buckets:
            bucket.land(self._turn)
        ranks = self._group.size()
        message_bytes = sum(bucket.message_bytes for bucket in buckets)
        elements = sum(bucket.layout.size for bucket in buckets)
        self._last = HookReport(
            steps=1,
            elements=elements,
            sent_count=sum(bucket.sent_count for bucket in buckets),
            payload_bytes=sum(bucket.payload_bytes for bucket in buckets),
            message_bytes=message_bytes,
            bytes_sent=(ranks - 1) * message_bytes,
            bytes_received=(ranks - 1) * message_bytes,
            dense_bytes=-(-2 * (ranks - 1) * 4 * elements // ranks),  # ring all-reduce
            delay_s=self._now() - self._began_s,
        )
        self._totals += self._last

    def _now(self) -> float:
        return 0.0 if self._clock is None else self._clock()

    def _bucket(self, bucket: GradBucket) -> DdpBucket:
        """Ours for ``bucket``; a new one takes over from those that had its parameters before."""
        layout = self._parameters.layout(bucket.parameters())
        names = tuple(part.name for part in layout)
        if names not in self._buckets:
            for key in [key for key in self._buckets if {*names} & {*key}]:
                self._carried.add(self._buckets.pop(key).state())
            own = DdpBucket(
                layout,
                self.algorithm,
                self._group,
                bucket.buffer().device,
                find_unused=self._find_unused,
                seed=self._seed,
            )
            own.load(self._carried.take(layout))
            self._buckets[names] = own
        return self._buckets[names]


def compressed_hook(state: CompressionState, bucket: GradBucket) -> Future[Tensor]:
    """For ``DistributedDataParallel.register_comm_hook(state, compressed_hook)``."""
    return state.exchange(bucket)
