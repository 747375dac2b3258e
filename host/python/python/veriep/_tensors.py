"""Arrays as the native half takes and gives them. NumPy is imported when there are some, and not before."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    import numpy as np

    # Arrays by the names that files have for them; ``torch`` tensors and lists are taken, too.
    Tensors = Mapping[str, Any]
    Case = Union[Tensors, str, os.PathLike[str]]

# The names of types: NumPy's, and those of safetensors.
_TYPES = {
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "bool": "BOOL",
}


def type_named(name: str) -> np.dtype[Any]:
    import ml_dtypes
    import numpy as np

    # NumPy knows this one by its class alone.
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def is_torch(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "torch"


def _array(value: Any) -> np.ndarray[Any, Any]:
    import ml_dtypes
    import numpy as np

    if is_torch(value):
        import torch

        value = value.detach().cpu().contiguous()
        # NumPy has no such type; the bits of one are those of an integer.
        is_bf16 = value.dtype == torch.bfloat16
        bits = value.view(torch.int16).numpy() if is_bf16 else value.numpy()
        return np.asarray(bits.view(ml_dtypes.bfloat16) if is_bf16 else bits)
    array = np.asarray(value)
    return array.astype(array.dtype.newbyteorder("<"), copy=False) if array.dtype.kind in "iuf" else array


def given(tensors: Tensors) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    def one(name: str, array: np.ndarray[Any, Any]) -> tuple[str, str, tuple[int, ...], bytes]:
        return name, _TYPES.get(array.dtype.name, array.dtype.name), array.shape, array.tobytes()

    return [one(name, _array(value)) for name, value in tensors.items()]


def taken(tensors: list[tuple[str, str, list[int], bytearray]], as_torch: bool) -> dict[str, Any]:
    import numpy as np

    dtypes = {theirs: type_named(ours) for ours, theirs in _TYPES.items()}
    arrays = {name: np.frombuffer(data, dtypes[kind]).reshape(shape) for name, kind, shape, data in tensors}
    return {name: _torch(array) for name, array in arrays.items()} if as_torch else arrays


def _torch(array: np.ndarray[Any, Any]) -> Any:
    import numpy as np
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def keys(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Values as TOML has them. Those of NumPy are numbers, too."""

    import json

    def plain(value: Any) -> Any:
        return value.tolist() if hasattr(value, "tolist") else value

    def text(value: Any) -> str:
        if isinstance(value, float) and not isinstance(value, bool):
            return repr(value)
        return json.dumps(value, ensure_ascii=False, default=plain)

    return [(name, text(plain(value))) for name, value in config.items()]


def subject(case: Case | None, preset: str | None, config: Mapping[str, Any]) -> tuple[Any, ...]:
    """A case and its configuration, for the native half."""
    if isinstance(case, (str, os.PathLike)):
        if preset is not None:
            raise TypeError("preset: a folder has a configuration of its own")
        return os.fspath(case), [], None, keys(config)
    return None, given(case or {}), preset, keys(config)
