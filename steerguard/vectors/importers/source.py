"""A foreign file: its bytes, where they came from, and which kind of container they are, by their first bytes."""

import hashlib
import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from steerguard.vectors.gguf_file import MAGIC as GGUF_MAGIC
from steerguard.vectors.torch_file import ZIP_MAGIC
from steerguard.vectors.vector import VectorError

MAX_SOURCE_BYTES = 24 * 1024 * 1024
"""Three times the canonical file of 126 blocks of 16,384 values: room for float64, and for numbers as text."""

NPY_MAGIC = b"\x93NUMPY"
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


class Container(StrEnum):
    """How a file holds its arrays."""

    SAFETENSORS = "safetensors"
    GGUF = "GGUF"
    TORCH = "torch.save archive"
    NPY = "npy"
    JSON = "JSON"


@dataclass(frozen=True)
class Source:
    """A file's bytes and its name, which is for people and decides nothing."""

    data: bytes
    name: str = ""

    def __post_init__(self) -> None:
        if len(self.data) > MAX_SOURCE_BYTES:
            raise VectorError("file", f"at most {MAX_SOURCE_BYTES} bytes", "more")

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def label(self) -> str:
        """The name as text that can be stored and shown."""
        return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in self.name)

    @cached_property
    def container(self) -> Container:
        """Raises VectorError for what isn't one of them, by what it is where that can be told."""
        data = self.data
        if data.startswith(GGUF_MAGIC):
            return Container.GGUF
        if data.startswith(ZIP_MAGIC):
            return Container.TORCH
        if data.startswith(NPY_MAGIC):
            return Container.NPY
        # safetensors begins with a length in eight bytes, of which no sensible one is without a zero.
        if data.lstrip()[:1] == b"{" and 0 not in data[:8]:
            return Container.JSON
        if data[8:9] == b"{":
            return Container.SAFETENSORS
        raise VectorError("file", f"one of {', '.join(Container)}", _other_kind(data))


def read_source(path: str | os.PathLike[str]) -> Source:
    """The regular file at `path`, whole. Raises VectorError, without following a link or waiting for a pipe.

    OSError when it isn't there or can't be read.
    """
    path = Path(path)
    mode = path.lstat().st_mode
    if not stat.S_ISREG(mode):
        raise VectorError("file", "a regular file", _file_kind(mode))
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise VectorError("file", "a regular file", _file_kind(status.st_mode))
        if status.st_size > MAX_SOURCE_BYTES:
            raise VectorError("file", f"at most {MAX_SOURCE_BYTES} bytes", str(status.st_size))
        return Source(file.read(MAX_SOURCE_BYTES + 1), path.name)


def _file_kind(mode: int) -> str:
    kinds = {
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a device")


def _other_kind(data: bytes) -> str:
    if not data:
        return "an empty file"
    if data.startswith(_LFS_POINTER):
        return "a Git LFS pointer (`git lfs pull` fetches the file)"
    if data.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        return "a plain pickle, which can run code when it is loaded (save it anew with torch.save, or as .npy)"
    return f"bytes {data[:8].hex()}"
