"""Process groups.

Torch needs two classes. Users hold a :class:`KoloGroup`: its methods run without torch's C++ in between, and return Kolo's works.
Torch looks up the :class:`KoloBackend` registered on it by device, for coalescing, splitting and checkpoints. Where a group has
different backends for different devices, only the backend is Kolo's.
"""

from __future__ import annotations

import weakref
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as TorchBackend

from .. import _kolo
from ..communicator import Communicator
from ..errors import Error
from . import hooks, patches, recorder, rendezvous, splitting
from .board import StoreBoard, innermost
from .coalesced import Coalesced
from .engine import Engine
from .errors import Unsupported, translate
from .messages import Messages
from .monitored import MonitoredBarrier
from .operations import Collectives

#: The devices that Kolo serves. The order matters: torch asks for the first one only if Kolo serves all devices of the group.
DEVICES = ["cuda", "cpu"]


class Operations(Collectives, Coalesced, Messages, MonitoredBarrier):
    """The operations that a group and a backend have in common."""

    _engine: Engine

    # Torch renamed some operations in 2.14 and calls both names.
    _allgather_base = all_gather_into_tensor = Collectives.all_gather_single
    _reduce_scatter_base = reduce_scatter_tensor = Collectives.reduce_scatter_single
    gather_into_tensor = Collectives.gather_single
    alltoall_base = Collectives.all_to_all_single
    allgather_into_tensor_coalesced = Coalesced.all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = Coalesced.reduce_scatter_single_coalesced

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time limit of all later operations that have none of their own."""
        self._engine.seconds = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def abort(self) -> None:
        """Aborts the group: every operation in progress on any rank, and every later one, fails. Returns at once."""
        self._engine.abort("abort was called on the process group")

    def shutdown(self) -> None:
        """Leaves the group. Waits up to five seconds until the data of started operations has left; may be called again."""
        self._engine.close()

    @property
    def supports_splitting(self) -> bool:
        return True

    # False, although coalescing regions work: batch_isend_irecv then starts each message by itself, as it should.
    @property
    def supports_coalescing(self) -> bool:
        return False

    @property
    def supports_shrinking(self) -> bool:
        return False

    @property
    def supports_reconfigure(self) -> bool:
        return False

    def get_reconfigure_handle(self) -> str:
        raise _not_reconfigurable()

    def reconfigure(self, opts) -> dist.Work:
        raise _not_reconfigurable()

    @property
    def supports_window(self) -> bool:
        return False

    @property
    def _supports_time_estimate(self) -> bool:
        return False

    def _get_sequence_number_for_group(self) -> int:
        """Returns how many collectives were called on the group."""
        return self._engine.sequence

    def kolo_flight_record(self) -> dict:
        """Returns the last collectives in the form that ``torchfrtrace`` reads: see :func:`kolo.torch.dump_flight_record`."""
        return recorder.record([self._engine])

    def kolo_explain(self, collective: str, elements: int, dtype: torch.dtype = torch.float32) -> str:
        """Returns the algorithm for a collective of ``elements`` elements per rank, its expected time, and why others were not
        chosen."""
        return Communicator(self._engine.comm).explain(collective, elements, dtype)

    def kolo_summary(self) -> str:
        """Returns one line that says which transports are used, and why not others."""
        return self._engine.comm.summary()


class KoloBackend(Operations, TorchBackend):
    """Kolo as the backend of some devices of a group."""

    def __init__(self, engine: Engine, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._engine = engine

    @property
    def options(self) -> TorchBackend.Options:
        """The options that torch passes on to ``split``, with the time limit that holds now."""
        return TorchBackend.Options("kolo", timedelta(seconds=self._engine.seconds))

    def getBackendName(self) -> str:  # noqa: N802
        return "kolo"

    name = getBackendName

    def split(self, store, ranks: list[int], opts=None):
        """Returns a backend for some of the ranks. Only these take part, over the existing connections."""
        if self._engine.comm.rank not in ranks:
            return splitting.Outside()
        timeout = timedelta(0) if opts is None else opts._timeout
        seconds = timeout.total_seconds() if timeout > timedelta(0) else self._engine.seconds
        return _backend(_part(self._engine, ranks, seconds, getattr(opts, "group_name", "") or "split"))

    def merge(self, store, opts, rank: int, size: int) -> KoloBackend:
        """Returns a backend for the members of several groups, which meet in ``store``."""
        seconds = opts._timeout.total_seconds()
        try:
            comm = _connected(store, rank, size, seconds)
        except Error as error:
            raise translate(error) from None
        patches.for_groups_of_torch()
        return _backend(Engine(comm, seconds, getattr(opts, "group_name", "") or "merge", list(range(size))))

    def _enable_collectives_timing(self) -> None:
        """Does nothing: the flight record has times in any case."""

    def perform_nocolor_split(self, device) -> None:
        """Does nothing: a rank takes no part in making a group to which it does not belong.

        Torch calls it on such a rank if ``init_process_group`` was given a ``device_id``.
        """


class KoloGroup(Operations, hooks.Hooked, dist.ProcessGroup):
    """A process group whose only backend is Kolo."""

    def __init__(self, store, backend: KoloBackend, rank: int, size: int) -> None:
        super().__init__(store, rank, size)
        self._engine = backend._engine
        # Torch keeps only the C++ object alive; the group keeps the Python one.
        self._backend = backend
        #: The number of parts that were split off without a description.
        self._splits = 0
        kind = dist.ProcessGroup.BackendType.CUSTOM
        for device in DEVICES if torch.cuda.is_available() else ["cpu"]:
            self._register_backend(torch.device(device), kind, self._backend)
        self._set_default_backend(kind)
        if hooks.checks_for_nan():
            hooks.dispatch(self)

    def getBackendName(self) -> str:  # noqa: N802
        return "kolo"

    _get_backend_name = getBackendName

    def _start_coalescing(self, device) -> None:
        self.start_coalescing(device)

    def _end_coalescing(self, device):
        return self.end_coalescing(device)

    def split_group(
        self, ranks, timeout=None, opts=None, group_name=None, group_desc=None, device_types=None
    ) -> KoloGroup | None:
        """Makes a group of some of the ranks. Only these take part, over the existing connections."""
        # The default names are those of torch's own groups.
        name = group_name if group_name is not None else f"{self.group_name}:split:{list(ranks)}"
        desc = group_desc if group_desc is not None else f"{self.group_desc}:split:{self._splits}"
        self._splits += group_desc is None
        if self._engine.comm.rank not in ranks:
            return None
        seconds = self._engine.seconds if timeout is None else timeout.total_seconds()
        part = _part(self._engine, list(ranks), seconds, name)
        group = _group(dist.PrefixStore(f"{name}/", self.get_group_store()), part)
        group._set_group_name(name)
        group._set_group_desc(desc)
        return group


def create(options, _pg_options=None) -> KoloGroup | KoloBackend:
    """Makes the group or backend; torch calls it for ``backend="kolo"``.

    Joins the other ranks, and blocks until all have joined, except for a group with ``enable_reconfigure``.
    """
    mixed = _is_mixed(options)
    if options.enable_reconfigure:
        if mixed:
            raise Unsupported(
                "enable_reconfigure: a group with other backends besides Kolo cannot be reconfigured. Use 'kolo' "
                "alone, or leave out enable_reconfigure"
            )
        from . import reconfigure

        return reconfigure.create(options)
    engine = _join(options)
    if mixed:
        patches.for_groups_of_torch()
        return _kept(_backend(engine))
    group = _group(options.store, engine)
    engine.at_first = partial(_refuse_others_once, weakref.ref(group))
    return group


def _backend(engine: Engine) -> KoloBackend:
    return KoloBackend(engine, engine.comm.rank, engine.comm.world_size)


def _kept(backend: KoloBackend) -> KoloBackend:
    """Makes torch keep the Python object of a backend for as long as it has the C++ one.

    Torch does so from the registration of the backend on. With ``TORCH_DISTRIBUTED_DEBUG=DETAIL``, it registers a wrapper instead,
    which calls the C++ object alone. So the backend is registered on a group of its own, which then goes.
    """
    group = dist.ProcessGroup(backend.rank(), backend.size())
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, backend)
    return backend


def _group(store, engine: Engine) -> KoloGroup:
    return KoloGroup(store, _backend(engine), engine.comm.rank, engine.comm.world_size)


def _join(options) -> Engine:
    seconds = options.timeout.total_seconds()
    name = options.group_id or "default"
    ranks = list(options.global_ranks_in_group)
    parent = _world_engine() if ranks else None
    everybody = ranks or list(range(options.group_size))
    try:
        if parent is not None:
            return Engine(parent.comm.group(ranks, seconds), seconds, name, everybody)
        met = rendezvous.take(innermost(options.store), options.group_rank, options.group_size)
        if met is not None:
            return Engine(met, seconds, name, everybody)
        comm = _connected(options.store, options.group_rank, options.group_size, seconds)
    except Error as error:
        raise translate(error) from None
    return Engine(comm, seconds, name, everybody)


def _connected(store, rank: int, size: int, seconds: float) -> _kolo.Comm:
    settings = {"KOLO_TIMEOUT": str(seconds), "KOLO_JOIN_TIMEOUT": str(seconds)}
    return _kolo.connect_board(StoreBoard(store), rank, size, settings)


def _world_engine() -> Engine | None:
    """Returns the engine of the default group if Kolo serves it, or some of its devices; all groups then use its connections."""
    world = dist.group.WORLD if dist.is_initialized() else None
    if world is None:
        return None
    for device in world._device_types:
        backend = backend_of(world, device)
        if backend is not None and not backend._engine.comm.closed:
            return backend._engine
    return None


def backend_of(group: dist.ProcessGroup, device: torch.device) -> KoloBackend | None:
    """Returns Kolo's backend of a group for a device; ``None`` if another one serves that device."""
    if isinstance(group, KoloGroup):
        return group._backend
    backend = group._get_backend(device)
    # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a wrapper around each backend.
    backend = getattr(backend, "wrapped_pg", backend)
    return backend if isinstance(backend, KoloBackend) else None


def _part(engine: Engine, ranks: list[int], seconds: float, name: str) -> Engine:
    try:
        return Engine(engine.comm.group(ranks, seconds), seconds, name, [engine.ranks[rank] for rank in ranks])
    except Error as error:
        raise translate(error) from None


def _not_reconfigurable() -> Unsupported:
    return Unsupported(
        "the group cannot be reconfigured: only the default group can, if init_process_group was called with "
        "enable_reconfigure=True"
    )


def _is_mixed(options) -> bool:
    """Returns whether the group that torch is making has, or may have, other backends for other devices.

    A KoloGroup would replace all of them. A KoloBackend is right in any case, but costs more per call, since calls then go
    through torch's C++.
    """
    group = options.process_group
    # The device types that have a backend already, and the name of the default one: both reveal another backend of torch's own.
    if group._device_types or group._get_backend_name() != "custom":
        return True
    # Other backends from outside of torch are "custom" too. But where Kolo serves all devices, this call is for the first of them.
    return not _is_for(DEVICES[0], options.store)


def _is_for(device: str, store: dist.PrefixStore) -> bool:
    """Returns whether torch is making the backend of this device. Only the last prefix of the store tells, and only the names of
    keys show that prefix."""
    key = "kolo/device"
    store.set(key, b"")
    return store.underlying_store.check([f"{device}//{key}"])


def _refuse_others_once(group) -> None:
    refuse_others(group())


def refuse_others(group: KoloGroup) -> None:
    """Raises if a group that was made as Kolo's alone has other backends too; torch tells that only after it has been made."""
    try:
        config = dist.get_backend_config(group)
    except (ValueError, KeyError):
        return
    pairs = [part.split(":") for part in config.split(",") if ":" in part]
    others = [f"{device}:{name}" for device, name in pairs if name != "kolo"]
    if others:
        raise Unsupported(
            f"the group of '{config}' would belong to Kolo entirely: name other backends before Kolo, as in "
            f"'{','.join(others)},{DEVICES[0]}:kolo'"
        )
