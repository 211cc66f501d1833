"""Launching a kernel that takes structures: its code stays loaded, and the driver is told what the launch says."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import pytest

from megatune_kernels.operator import Launch
from megatune_kernels.parameters import Field
from megatune_kernels.parameters import Parameter

SHAPE = Launch(
    grid=(6, 1, 1),
    block=(64, 1, 1),
    cluster=(2, 1, 1),
    shared_bytes=100,
    programmatic=True,
    parameters=(
        Parameter((Field("pointer", 1), Field("int32", 7), Field("int64", 9))),
        Parameter((Field("hidden"),)),
        Parameter((Field("int32", 5),)),
    ),
)


@pytest.fixture
def launching() -> Any:
    pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    from megatune_tuner.workers import gpu_launch

    return gpu_launch


class Loaded:
    """A kernel whose code is unloaded with it, as cuda.core's."""

    handle = 1


def test_the_code_stays_loaded_for_as_long_as_it_can_be_launched(launching: Any) -> None:
    kernel = Loaded()
    there = weakref.ref(kernel)
    enqueue = launching.passing(kernel, SHAPE, [(0x1000, 0x2000)])
    del kernel
    gc.collect()
    assert there() is not None
    del enqueue
    gc.collect()
    assert there() is None


def test_parameters_lie_in_memory_as_the_kernel_reads_them(launching: Any) -> None:
    packed = launching._Packed(SHAPE, (0x1000, 0x2000))
    addresses = (ctypes.c_uint64 * 3).from_address(packed.address)
    whole = ctypes.string_at(addresses[0], 16 + 8)
    assert whole[:8] == (0x2000).to_bytes(8, "little")
    assert (whole[8:12], whole[16:]) == ((7).to_bytes(4, "little"), (9).to_bytes(8, "little"))
    assert [addresses[i] - addresses[0] for i in (1, 2)] == [24, 32]
    assert ctypes.c_int32.from_address(addresses[2]).value == 5


def test_the_driver_is_told_grid_stream_and_attributes(launching: Any) -> None:
    from cuda.bindings import driver

    config = launching.driver_config(SHAPE, 0xABC)
    assert (config.gridDimX, config.blockDimX, config.sharedMemBytes) == (6, 64, 100)
    assert (int(config.hStream), config.numAttrs) == (0xABC, 2)
    names = driver.CUlaunchAttributeID
    by_name = {attribute.id: attribute.value for attribute in config.attrs}
    assert by_name[names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION].programmaticStreamSerializationAllowed
    dims = by_name[names.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION].clusterDim
    assert (dims.x, dims.y, dims.z) == (2, 1, 1)
