"""Launching artifacts through cuda.core, one by one and many in a graph. Imports cuda.core."""

from __future__ import annotations

import contextlib
import ctypes
import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from cuda.bindings import driver
from cuda.core import LaunchConfig
from cuda.core import ObjectCode

from megatune_kernels.operator import Artifact
from megatune_kernels.operator import Launch
from megatune_kernels.parameters import check_compiled
from megatune_kernels.parameters import places
from megatune_tuner.workers.failures import Infeasible


def load(artifact: Artifact, shape: Launch, device_id: int) -> tuple[Any, LaunchConfig]:
    """The kernel of an artifact, with the shared memory that it needs allowed, and how it is launched.

    :raises Unknown: when its parameters are not those that it is launched with.
    :raises RuntimeError: in the driver's words, when it refuses.
    """
    if shape.parameters:
        check_compiled(shape.parameters, artifact.cubin, artifact.entry)
    kernel = ObjectCode.from_cubin(artifact.cubin).get_kernel(artifact.entry)
    attributes = driver.CUfunction_attribute
    wanted = {attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: shape.shared_bytes}
    if shape.carveout is not None:
        wanted[attributes.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = shape.carveout
    handle = driver.CUkernel(int(kernel.handle))
    for attribute, value in wanted.items():
        (error,) = driver.cuKernelSetAttribute(attribute, value, handle, driver.CUdevice(device_id))
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{error.name}: {attribute.name} {value}")
    # cuda.core counts a grid in clusters where there are some.
    clustered = shape.cluster != (1, 1, 1)
    return kernel, LaunchConfig(
        grid=tuple(g // c for g, c in zip(shape.grid, shape.cluster, strict=True)),
        block=shape.block,
        cluster=shape.cluster if clustered else None,
        shmem_size=shape.shared_bytes,
        programmatic_stream_serialization=shape.programmatic,
    )


def check_resident(kernel: Any, config: LaunchConfig, shape: Launch, device: Any, stream: Any, shares: int = 1) -> None:
    """Refuse blocks that would wait for one another without all being on the GPU.

    :param shares: launches of so many ranks share the GPU.
    :raises Infeasible: when the GPU, or a share of it, does not hold all of them at once.
    """
    if shape.cluster == (1, 1, 1):
        a_multiprocessor = kernel.occupancy.max_active_blocks_per_multiprocessor(
            math.prod(shape.block), shape.shared_bytes
        )
        most = a_multiprocessor * int(device.properties.multiprocessor_count)
    else:
        most = kernel.occupancy.max_active_clusters(config, stream=stream) * math.prod(shape.cluster)
    if shares > 1:
        # A launch that starts while its predecessor runs takes another share.
        most //= shares * (2 if shape.programmatic else 1)
    blocks = math.prod(shape.grid)
    if blocks > most:
        whose = f"a share of 1/{shares} of this GPU" if shares > 1 else "this GPU"
        raise Infeasible(f"{blocks} blocks wait for one another, and {whose} holds {most} at once")


def passing(kernel: Any, shape: Launch, operands: Sequence[tuple[int, ...]]) -> Callable[[Any, int], None]:
    """What enqueues a kernel that takes structures, which ``cuda.core.launch`` does not pass, over one of several sets
    of operands.

    :raises RuntimeError: from what is returned: in the driver's words, when it refuses a launch.
    """
    function = driver.CUfunction(int(kernel.handle))
    packed = [_Packed(shape, pointers) for pointers in operands]
    configs: dict[int, driver.CUlaunchConfig] = {}

    def enqueue(stream: Any, copy: int, loaded: Any = kernel) -> None:
        # cuda.core unloads code that no kernel of it refers to any more, so that this one is kept.
        # A graph that is being captured has the stream that it captures.
        handle = int(getattr(stream, "stream", stream).handle)
        if handle not in configs:
            configs[handle] = driver_config(shape, handle)
        (error,) = driver.cuLaunchKernelEx(configs[handle], function, packed[copy].address, 0)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{error.name}: cuLaunchKernelEx")

    return enqueue


class _Packed:
    """The parameters of one launch in memory, and their addresses."""

    def __init__(self, shape: Launch, pointers: tuple[int, ...]) -> None:
        found = places(shape.parameters)
        self._bytes = ctypes.create_string_buffer(found[-1].offset + found[-1].bytes)
        start = ctypes.addressof(self._bytes)
        for parameter, place in zip(shape.parameters, found, strict=True):
            ctypes.memmove(start + place.offset, parameter.pack(pointers), place.bytes)
        self._addresses = (ctypes.c_void_p * len(found))(*(start + place.offset for place in found))
        self.address = ctypes.addressof(self._addresses)


def driver_config(shape: Launch, stream: int) -> driver.CUlaunchConfig:
    """How the driver launches a kernel on the stream of that handle."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = shape.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = shape.block
    config.sharedMemBytes = shape.shared_bytes
    config.hStream = driver.CUstream(stream)
    attributes = []
    if shape.programmatic:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    if shape.cluster != (1, 1, 1):
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dims = attribute.value.clusterDim
        dims.x, dims.y, dims.z = shape.cluster
        attributes.append(attribute)
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


def capture(stream: Any, run: Callable[[Any], None]) -> Any:
    """A graph of what ``run`` enqueues on the stream that it is given, uploaded and ready to launch."""
    builder = stream.create_graph_builder()
    builder.begin_building()
    try:
        run(builder)
        graph = builder.end_building().complete()
    except Exception:
        # A launch that is refused leaves the stream capturing, and nothing else would run on it. Ending the
        # capture may say so again; what counts is why.
        with contextlib.suppress(Exception):
            if builder.is_building:
                builder.end_building()
        raise
    finally:
        with contextlib.suppress(Exception):
            builder.close()
    graph.upload(stream)
    return graph
