"""The sections [replay], [learner] and [actor], one per service."""

from typing import Annotated, Literal

import pydantic
from pydantic import ByteSize, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from penstock.config import alternatives
from penstock.config.code_names import CallbackNames, CodeName, OwnOptimizer
from penstock.config.setting_types import (
    ActorSlots,
    Addresses,
    Count,
    Device,
    ListenAddress,
    MetricsPort,
    Names,
    ReplayAddresses,
    Temperature,
)
from penstock.config.settings.section import Section
from penstock.types.extents import StoreSize
from penstock.types.spaces import Inference

Precision = Literal["float32", "tf32", "bfloat16"]
Execution = Literal["auto", "eager", "compiled", "graphed"]

_LOSS = CodeName(
    "a function or a class in a module or a file, such as my_package.my_module:MyLoss or file.py:my_loss",
    "loss",
    "penstock.losses",
)

_STORE_BYTES = 64 * 2**20
"""Size of a store by default: thousands of segments of small observations."""


class ReplayConfig(Section):
    """[replay] The replay service."""

    listen: ListenAddress = "127.0.0.1:7431"
    """Address of its gRPC server: host:port, with port 0 for any free port, [IPv6]:port, or unix:PATH for a socket file
    of its host. 0.0.0.0 or [::] as host: all networks, which needs security.certificate, or
    security.insecure."""
    health_listen: ListenAddress | None = None
    """Address of a second gRPC server, for health checks alone and without TLS, as listen: for probes that have no
    certificate, such as Kubernetes' probes. Unset: none."""
    stream_port: MetricsPort = "auto"
    """Port, on the host of listen, to which the streams of other hosts move from gRPC, which takes more processor time;
    with certificates, by TLS. auto: any free port. 0: none. Where a firewall closes it, streams stay with gRPC."""
    advertise: Names = ()
    """Names by which others reach it, in order of preference: hosts, or host:port if its port is another one for them.
    A list, or separated by commas. Unset: the host of listen, or the host's own name where that is 0.0.0.0 or [::]."""
    metrics_port: MetricsPort = 9431
    """Port of its Prometheus metrics; 0: none; auto: any free port, which its log names."""
    address_file: str | None = None
    """File into which the service writes its advertised addresses while it serves, for learner.replay_addresses: for a
    port that is chosen at its start, or a host that is not known before. Unset: none."""
    folder: str | None = None
    """Folder of the mapped store, which survives the process, on this host's own disk or memory. With `penstock train`,
    the folder in which it makes one for each run. Unset: anonymous memory, or with `penstock train` the run's folder,
    but one for temporary files if that is on a network file system."""
    stop_with_run: bool = False
    """Whether an individually started service, not one of `penstock train`, exits with code 0 when the learner has
    finished the run, so that a batch system's job ends. It continues if a learner is only stopped or lost."""
    capacity_bytes: Annotated[ByteSize, Field(ge=2**16)] | None = None
    """Size of the store in bytes, allocated at start. Unset: 64 MiB or, with `penstock train`, more if two batches and
    the segments in collection for them would not fit, as with large images."""
    capacity_segments: Count | None = None
    """Size of the store in segments, instead of in bytes. It is allocated when the first actor has sent the schema of
    its segments."""
    capacity_steps: Count | None = None
    """Size of the store in steps, instead of in bytes: in segments of actor.unroll_length steps, rounded up. It is
    allocated as with capacity_segments."""
    staging_bytes: ByteSize = ByteSize(2**30)
    """Upper bound in bytes on shared memory for the windows of actors on the same host (four windows each). Actors for
    which there is no room use gRPC. 0: all use gRPC."""
    max_actors: ActorSlots = 256
    """Append streams served at once, at most 4096; more are refused."""
    grant_timeout_s: Annotated[float, Field(ge=2.0)] = 10.0
    """Seconds without a message from an actor after which its grants are withdrawn. Actors send a message every
    second."""
    snapshot_folder: str | None = None
    """Folder of the snapshots; each service needs its own. Unset: the folder `snapshots` in replay.folder."""
    snapshots_kept: PositiveInt = 3
    """Snapshots taken by checkpoint.snapshot_interval_s that are kept; a new one, once complete, replaces the oldest.
    They share unchanged data. Snapshots that a user requested are kept until their folder is removed."""
    snapshot_bytes_per_s: ByteSize = Field(default=ByteSize(256 * 2**20), ge=2**16)
    """Largest rate at which snapshots are written, in bytes per second; a disk sustains the default without delaying
    the store's own pages."""

    @property
    def store_size(self) -> StoreSize:
        """Size of the store."""
        if self.capacity_segments is not None:
            return StoreSize(self.capacity_segments, "segments")
        if self.capacity_steps is not None:
            return StoreSize(self.capacity_steps, "steps")
        return StoreSize(_STORE_BYTES if self.capacity_bytes is None else int(self.capacity_bytes))

    @pydantic.model_validator(mode="after")
    def _check_capacity(self) -> "ReplayConfig":
        alternatives.check_single(self, "replay", alternatives.CAPACITIES)
        return self

    @property
    def snapshots(self) -> str | None:
        """The folder of the snapshots; None if no folder is set, so that no snapshots can be taken."""
        return self.snapshot_folder or (f"{self.folder}/snapshots" if self.folder else None)


class LearnerConfig(Section):
    """[learner] The learner service."""

    listen: ListenAddress = "127.0.0.1:7432"
    """Address of its gRPC server, as replay.listen."""
    health_listen: ListenAddress | None = None
    """Address of a second gRPC server, for health checks alone, as replay.health_listen. Unset: none."""
    stream_port: MetricsPort = "auto"
    """Port for the streams of other hosts, as replay.stream_port."""
    advertise: Names = ()
    """Names by which others reach it, as replay.advertise. It writes them into the run's folder."""
    metrics_port: MetricsPort = 9432
    """Port of its Prometheus metrics; 0: none; auto: any free port, which its log names."""
    replay_addresses: ReplayAddresses = ("127.0.0.1:7431",)
    """Address of each replay service, as the learner reaches it; a list, or separated by commas. Several services are
    shards of one buffer. Actors get the addresses that each service advertises. file:PATH: the addresses in the
    service's replay.address_file, which are read before each attempt to connect."""
    shard_timeout_s: PositiveFloat = 5.0
    """Seconds that a batch waits for a shard once another shard's segments have arrived, doubled for a shard that does
    not answer at all. Longer than a brief pause of a service, and short beside the minutes that a run may lose by
    waiting."""
    device: Device = "auto"
    """Torch device: cpu, cuda, or cuda:N for GPU number N. auto: cuda if available, except for
    small networks, which a core trains faster; else cpu."""
    threads: PositiveInt = 1
    """Threads on a CPU. Small networks gain from them without autograd, in minibatches of more than 256 rows, where a
    core is idle; with autograd, more than one slows them down."""
    precision: Precision = "float32"
    """Precision of the networks in both passes. float32: as the actors compute, on every device. tf32: matrix products
    and convolutions with factors of 10 bits, on CUDA alone. bfloat16: hidden layers by autocast, with 8 bits. All other
    numbers (parameters, losses, advantages, ratios) are float32 in each of them."""
    execution: Execution = "auto"
    """Execution of gradient steps. eager: operation by operation. graphed: captured into a CUDA graph and replayed, on
    CUDA only. auto: graphed on CUDA; on a CPU eager, but in float32 small networks without autograd and an LSTM by
    torch's kernel, which are faster and round differently. compiled: by torch.compile, which needs a C++ compiler and
    takes up to a minute at first."""
    loss: Annotated[str, _LOSS] | None = None
    """Your own loss in place of PPO's: file.py:my_loss or my_package.my_module:MyLoss. It is a function of the policy,
    a minibatch and the settings of [ppo] that returns the loss and statistics, or a class whose instance is such a
    function (docs/change-the-algorithm.md). torch computes its gradients, which is slower for small networks on a CPU.
    Unset: the loss of PPO."""
    optimizer: OwnOptimizer = None
    """Your own optimizer in place of Adam: torch.optim:AdamW, or file.py:my_optimizer. It is a function of the list of
    the policy's parameters and ppo.learning_rate that returns a torch.optim.Optimizer, whose rates follow
    ppo.learning_rate_schedule (docs/change-the-algorithm.md). torch takes the steps, as with loss. Unset: Adam with
    epsilon 1e-5."""
    callbacks: CallbackNames = ()
    """Your own callbacks: file.py:MyCallback or my_package.my_module:MyCallback, subclasses of
    penstock.callbacks.Callback. The learner calls them after each batch and evaluation; they add numbers to the records
    and may end the run (docs/callbacks.md). Training waits for them. Empty: none."""
    prefetch_batches: PositiveInt = 1
    """Batches requested ahead of the one in training. Over a long round trip, the learner requests as many more as it
    trains meanwhile, up to sampling.off_policy_degree - 1."""
    max_actors: ActorSlots = 256
    """Actors that may join, at most 4096, the number of slots in a store; more are refused."""
    least_wanted_actors: PositiveInt = 1
    """Least number of actors that the learner asks for. `penstock_learner_wanted_actors` and `penstock status --json`
    tell it to what starts actors. It is never below the number of replay services and of environment.variants, each of
    which needs an actor."""
    most_wanted_actors: PositiveInt | None = None
    """Largest number of actors that the learner asks for, such as the cores that a cluster has for them. Unset:
    learner.max_actors; with `penstock train --actors auto`, the cores of the machine."""
    expected_actors: PositiveInt | Literal["wanted"] | None = None
    """Number of actors that an engine was asked to start. If fewer are connected for a minute, `penstock status` and
    the learner's log say so. wanted: as many as the learner asks for, where something starts that many. Unset: nothing
    is expected."""
    actors_command: str = ""
    """Command of the engine that shows its actors, which `penstock status` names when actors are missing."""
    rejoin_timeout_s: NonNegativeFloat = 10.0
    """Seconds that a lost actor keeps its slot."""
    rank_timeout_s: Annotated[float, Field(ge=10.0)] = 300.0
    """Seconds that the ranks of a learner under torchrun wait for one another, at the start and in each sum of a
    gradient, before they end. A rank that has ended is noticed at once; this is for one that hangs, and longer than a
    slow start or a first step that is compiled."""


class ActorConfig(Section):
    """[actor] An actor service."""

    listen: ListenAddress = "127.0.0.1:0"
    """Address of its gRPC server (health only), as replay.listen. Any free port, so that many actors fit on a host."""
    metrics_port: MetricsPort = "auto"
    """Port of its Prometheus metrics; 0: none; auto: any free port, which its log names and the learner lists in
    targets.json."""
    learner_address: Addresses = ("127.0.0.1:7432",)
    """Address of the learner to join. Several, as a list or separated by commas, are tried in order."""
    run: str | None = None
    """Folder of the run to join, on a shared disk, in place of learner_address: the learner writes its addresses there,
    and the actor reads them before each attempt to connect. It ends with code 0 when the run is over. Unset: the
    actor joins the learner at learner_address."""
    give_up_after_s: PositiveFloat = 600.0
    """Seconds without the learner after which an individually started actor, not one of `penstock train`, ends with
    exit code 3. Ten minutes are longer than the start of a learner on another host, and short beside the time for which
    a cluster's queue would otherwise be occupied."""
    environments: PositiveInt = 8
    """Environments stepped together by one actor, with one policy call per step for all of them."""
    unroll_length: Annotated[int, Field(ge=2)] = 32
    """Steps in a segment (T); at least 2, so that no segment consists only of a row that resets."""
    inference: Inference = "auto"
    """Library that computes actions. auto: NumPy for small policies without convolutions, embeddings, memory, moves and
    own module, because it is faster and an actor then needs no torch, which takes 200 MB; torch for others. torch:
    always torch, whose log probabilities are rounded as in the learner."""
    step_timeout_s: PositiveFloat = 120.0
    """Seconds that one call of an environment (make, reset or step) may take. An actor that waits longer exits and is
    restarted, or with environment.vectorization process replaces the worker. The default is several times the reset of
    a slow simulator."""
    lowest_temperature: Temperature = 1.0
    """Exploration temperature of the first of train.actors. It divides the logits of discrete policies and multiplies
    the standard deviation of others. 1: as learnt. Evaluations always use 1."""
    highest_temperature: Temperature = 1.0
    """Exploration temperature of the last of train.actors. Temperatures in between are spaced geometrically, and actors
    beyond train.actors begin again at the first. The learner corrects for each actor's temperature; actions that the
    policy would rarely take have little weight."""

    @pydantic.model_validator(mode="after")
    def _check_temperatures(self) -> "ActorConfig":
        if self.lowest_temperature > self.highest_temperature:
            raise ValueError(
                f"actor.lowest_temperature {self.lowest_temperature:g} exceeds actor.highest_temperature"
                f" {self.highest_temperature:g}; swap them"
            )
        return self
