"""One GPU as the worker sees it: its fingerprint, its clocks and who else is on it. Imports torch and cuda.core."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version

import torch
from cuda.bindings import nvml
from cuda.core import Device

from megatune_kernels.artifact import DSL
from megatune_kernels.errors import MegatuneError
from megatune_kernels.target import Hardware
from megatune_kernels.target import Target
from megatune_kernels.target import Toolchain

THROTTLE_REASONS = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""Power cap, slowdown, software and hardware thermal limits, power brake: ``nvmlClocksEventReason*`` of nvml.h."""
LEAST_FREE_BYTES = 2 << 30


class GpuDevice:
    """The current device of this process, and its NVML handle."""

    def __init__(self, index: int) -> None:
        """:raises MegatuneError: where there is no such GPU, or too little of its memory is free."""
        count = torch.cuda.device_count()
        if index >= count:
            raise MegatuneError(f"no GPU {index}: this machine shows {count}; see megatune doctor")
        torch.cuda.set_device(index)
        self.device = Device(index)
        self.device.set_current()
        free, total = torch.cuda.mem_get_info()
        if free < LEAST_FREE_BYTES:
            raise MegatuneError(
                f"GPU {index} has {free >> 20} of {total >> 20} MiB free, measuring needs {LEAST_FREE_BYTES >> 20}: "
                "stop what else uses it"
            )
        self.l2_bytes = int(self.device.properties.l2_cache_size)
        self.memory_bytes = int(total)
        nvml.init_v2()
        self._handle = nvml.device_get_handle_by_pci_bus_id_v2(self.device.pci_bus_id)

    def target(self) -> Target:
        properties = self.device.properties
        major, minor = self.device.compute_capability
        pci = nvml.device_get_pci_info_v3(self._handle)
        try:
            dsl = version(DSL)
        except PackageNotFoundError:
            dsl = "none"
        hardware = Hardware(
            gpu=self.device.name,
            arch=f"sm_{major}{minor}a",
            # NVML gives device id and vendor id in one word, the vendor in the lower half.
            device_id=f"{pci.pci_device_id >> 16:04x}",
            sms=int(properties.multiprocessor_count),
            l2_bytes=self.l2_bytes,
            memory_bytes=self.memory_bytes,
            links="none",
        )
        toolchain = Toolchain(
            driver=nvml.system_get_driver_version(),
            cuda=str(torch.version.cuda),
            dsl=dsl,
            torch=str(torch.__version__),
        )
        return Target(hardware, toolchain)

    def links_to(self, bus: str) -> int:
        """NVLinks that lead to the GPU at a PCI bus id, on their own or through a switch; 0: none does."""
        peer = _place(nvml.device_get_pci_info_v3(nvml.device_get_handle_by_pci_bus_id_v2(bus)))
        return sum(self._leads(link, peer) for link in range(nvml.NVLINK_MAX_LINKS))

    def _leads(self, link: int, peer: tuple[int, ...]) -> bool:
        try:
            if not nvml.device_get_nvlink_state(self._handle, link):
                return False
        except nvml.NvmlError:  # this GPU has no such link
            return False
        try:
            if (
                nvml.device_get_nvlink_remote_device_type(self._handle, link)
                != nvml.IntNvLinkDeviceType.NVLINK_DEVICE_TYPE_GPU
            ):
                return True  # to a switch, and through it to every GPU
            return _place(nvml.device_get_nvlink_remote_pci_info_v2(self._handle, link)) == peer
        except nvml.NvmlError:  # a virtual machine may hide where a link leads
            return True

    def sm_clock_mhz(self) -> int:
        return int(nvml.device_get_clock_info(self._handle, nvml.ClockType.CLOCK_SM))

    def throttled(self) -> bool:
        return bool(nvml.device_get_current_clocks_event_reasons(self._handle) & THROTTLE_REASONS)

    def running(self) -> list[int]:
        """Ids of all processes that compute on this GPU; in a container they may be those of the host."""
        return [int(entry.pid) for entry in nvml.device_get_compute_running_processes_v3(self._handle)]

    def others(self) -> list[int]:
        """Ids of other processes that compute on this GPU.

        In a container NVML gives the ids of the host, so one process, whatever its id, is taken for this one.
        """
        running = self.running()
        if os.getpid() in running:
            running.remove(os.getpid())
        else:
            running = running[1:]
        return running


def _place(info: nvml.PciInfo) -> tuple[int, ...]:
    """Of a device on the PCI bus."""
    return int(info.domain), int(info.bus), int(info.device_)
