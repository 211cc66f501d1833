"""Prints what the CUDA driver says of each GPU, as JSON.

Run as a process of its own: a driver that hangs or crashes then costs a line of a report, not the report.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any

NVLINKS = 18
"""The most that a GPU has."""


def probe() -> dict[str, Any]:
    """The driver's CUDA version and, for each GPU, what could be read; None where it could not.

    :raises RuntimeError: when there is no driver, or it does not start.
    """
    from cuda.bindings import driver

    def asked(result: tuple[Any, ...]) -> Any:
        status, *values = result
        return values[0] if status == driver.CUresult.CUDA_SUCCESS else None

    (status,) = driver.cuInit(0)
    if status == driver.CUresult.CUDA_ERROR_NO_DEVICE:
        return {"cuda": None, "gpus": []}
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"the driver does not start: {status.name}")
    attribute = driver.CUdevice_attribute
    gpus = []
    count = asked(driver.cuDeviceGetCount()) or 0
    for index in range(count):
        device = asked(driver.cuDeviceGet(index))
        read = {
            name: asked(driver.cuDeviceGetAttribute(which, device))
            for name, which in (
                ("major", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                ("minor", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
                ("sms", attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
                ("l2_bytes", attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE),
            )
        }
        name = asked(driver.cuDeviceGetName(128, device)) or b""
        others = {peer: asked(driver.cuDeviceGet(peer)) for peer in range(count) if peer != index}
        gpus.append(
            {
                "index": index,
                "name": name.partition(b"\0")[0].decode(errors="replace") or "unknown",
                "capability": None if read["major"] is None else f"{read['major']}.{read['minor']}",
                "memory_bytes": asked(driver.cuDeviceTotalMem(device)),
                "sms": read["sms"],
                "l2_bytes": read["l2_bytes"],
                "nvlinks": _nvlinks(asked(driver.cuDeviceGetPCIBusId(32, device))),
                "peers": [peer for peer, other in others.items() if asked(driver.cuDeviceCanAccessPeer(device, other))],
            }
        )
    version = asked(driver.cuDriverGetVersion())
    return {"cuda": None if version is None else f"{version // 1000}.{version % 1000 // 10}", "gpus": gpus}


def _nvlinks(bus: bytes | None) -> int | None:
    """Active NVLinks of the GPU at a PCI bus id; None where they cannot be read."""
    from cuda.bindings import nvml

    if bus is None:
        return None
    try:
        nvml.init_v2()
        handle = nvml.device_get_handle_by_pci_bus_id_v2(bus.partition(b"\0")[0].decode())
    except nvml.NvmlError:
        return None
    active = 0
    for link in range(NVLINKS):
        with suppress(nvml.NvmlError):  # a GPU with fewer links
            active += bool(nvml.device_get_nvlink_state(handle, link))
    return active


def main() -> None:
    """Print the JSON, or one line on stderr and exit 1."""
    try:
        print(json.dumps(probe()))
    except (ImportError, RuntimeError) as error:
        sys.exit(str(error).splitlines()[0])


if __name__ == "__main__":
    main()
