"""The numbers that the kernels read of each request."""

from typing import Any

import numpy as np
import torch

from .pool import DeviceArray


class RequestInputs:
    """Named arrays, ``[most, requests]`` each, here and on the device.

    ``most`` is as large as the request needs that needs most; others have the array's fill value
    at the indices that they do not need. One copy uploads all arrays.

    Args:
        requests: the maximum number of requests at a time.
        device: the device.
        fills: the fill value of each array. A float makes it float32, an integer int32.

    Attributes:
        requests: the length of a row. It is rounded up, so that each array is aligned as Triton
            prefers it, and no kernel is compiled again for another alignment.
    """

    def __init__(self, requests: int, device: torch.device, **fills: float) -> None:
        self.requests = -(-requests // 4) * 4
        self._fills = fills
        self._arrays = {name: self._fill(name, 0) for name in fills}
        self._copy = DeviceArray(torch.int32, device)
        self._columns: dict[str, torch.Tensor] = {}

    def _fill(self, name: str, most: int) -> Any:
        fill = self._fills[name]
        dtype = np.float32 if isinstance(fill, float) else np.int32
        return np.full((most, self.requests), fill, dtype)

    def put(self, request: int, **values: Any) -> None:
        """Set a request's values in some arrays."""
        for name, own in values.items():
            if (missing := len(own) - len(self._arrays[name])) > 0:
                grown = self._arrays[name], self._fill(name, missing)
                self._arrays[name] = np.concatenate(grown)
            column = self._arrays[name][:, request]
            column[len(own) :] = self._fills[name]
            column[: len(own)] = own

    def upload(self) -> None:
        """Copy all arrays to the device."""
        every = self._arrays.values()
        self._copy.write(np.concatenate([array.ravel().view(np.int32) for array in every]))
        end = 0
        for name, array in self._arrays.items():
            start, end = end, end + array.size
            flat = self._copy.tensor[start:end]
            flat = flat.view(torch.float32) if array.dtype == np.float32 else flat
            self._columns[name] = flat.view(array.shape)

    def columns(self, *names: str) -> list[torch.Tensor]:
        """Return arrays on the device."""
        return [self._columns[name] for name in names]
