"""Writing safetensors files as other files are written: readable by all, a full disk being an OSError."""

import errno
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes ``tensors`` to ``path``, in the form that transformers reads.

    Raises:
        OSError: the disk is full.
    """
    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except SafetensorError as error:
        if f"os error {errno.ENOSPC}" in str(error):
            raise OSError(errno.ENOSPC, "No space left on device", str(path)) from None
        raise
    path.chmod(mode)  # safetensors writes files that only their owner can read
