"""The editor for each kind of array. What needs torch or Triton is imported where it is there."""

import logging
from functools import singledispatch
from typing import Any

import numpy as np

from .editors import Editor, HostEditor

logger = logging.getLogger(__name__)


@singledispatch
def editor_for(logits: Any) -> Editor:
    """Make the editor for a kind of array. Adapters register editors for their engines' arrays.

    Args:
        logits: an array; only its type and its device matter.

    Raises:
        TypeError: if there is no editor for this kind of array.
    """
    if any(
        (base.__module__, base.__name__) == ("torch", "Tensor") for base in type(logits).__mro__
    ):
        return _editor_for_tensor(logits)
    raise TypeError(f"Expected logits that there is an editor for, got {type(logits).__name__}")


@editor_for.register
def _(logits: np.ndarray) -> Editor:
    return HostEditor()


def check_logits(logits: Any) -> None:
    """Check the shape and the type of an array, of whatever library it is.

    Raises:
        TypeError: if they are not those of logits.
    """
    shape = getattr(logits, "shape", ())
    dtype = str(getattr(logits, "dtype", type(logits).__name__))
    if len(shape) != 2 or "float" not in dtype:
        expected = "Expected logits [rows, vocabulary] of a floating-point type"
        raise TypeError(f"{expected}, got {[*shape]} of {dtype}")


def _editor_for_tensor(logits: Any) -> Editor:
    from .tensor_editors import HostTensorEditor, TensorEditor

    if logits.is_cpu:
        return HostTensorEditor()
    if logits.device.type == "cuda":  # the type of ROCm devices, too
        try:
            from .triton_editor import TritonEditor
        except ImportError as error:
            logger.warning("No Triton (%s): logits are edited with torch operations", error)
        else:
            return TritonEditor(logits.device)
    return TensorEditor()
