"""Activations of a whole extraction, on disk and layer by layer, so that a killed one goes on where it was.

A folder holds `means.npy` [layers, answers, hidden_size] and `norms.npy` [layers, answers], both float32 and
mapped into memory, and `manifest.json`, which says what they belong to and which batches are in. The manifest is
replaced after a batch's numbers have been flushed, so it never names a batch that isn't there.
"""

import fcntl
import json
import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np

from steerguard.command_line import write_whole
from steerguard.vectors.vector import FloatArray

FORMAT = "steerguard.activations.v1"
SPARE_BYTES = 64 * 1024 * 1024


class ActivationStore:
    """Where the means and norms of answers are collected: in `folder`, or in memory without one.

    `key` is the digest of everything the numbers depend on; a folder made for another key is begun anew. Raises
    RuntimeError when another process has the folder, or its disk has no room for the arrays.
    """

    def __init__(self, key: str, *, layers: int, answers: int, hidden_size: int, folder: Path | None) -> None:
        self._key = key
        self._folder = folder
        self._shapes = {"means": (layers, answers, hidden_size), "norms": (layers, answers)}
        self.done: set[int] = set()
        if folder is None:
            self.means: FloatArray = np.zeros(self._shapes["means"], np.float32)
            self.norms: FloatArray = np.zeros(self._shapes["norms"], np.float32)
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise RuntimeError(f"work folder {folder}: expected one that nobody uses, found it in use") from None
        self.done = self._finished_batches(folder)
        if not self.done:
            (folder / "manifest.json").unlink(missing_ok=True)
            self._check_room(folder)
        self.means = self._open(folder, "means")
        self.norms = self._open(folder, "norms")

    def finish(self, batch: int) -> None:
        """Counts a batch whose numbers have been written as done."""
        self.done.add(batch)
        if self._folder is None:
            return
        for array in (self.means, self.norms):
            assert isinstance(array, np.memmap)
            array.flush()
        manifest = {"format": FORMAT, "key": self._key, "batches": sorted(self.done)}
        write_whole(self._folder / "manifest.json", json.dumps(manifest).encode())

    def close(self) -> None:
        """Gives the folder back. The arrays stay readable."""
        if self._folder is not None:
            self._lock.close()

    def _finished_batches(self, folder: Path) -> set[int]:
        """The batches that a former run of the same work finished."""
        try:
            manifest: Any = json.loads((folder / "manifest.json").read_bytes())
            if (manifest["format"], manifest["key"]) != (FORMAT, self._key):
                return set()
            for name, shape in self._shapes.items():
                if np.load(folder / f"{name}.npy", mmap_mode="r").shape != shape:
                    return set()
            return {int(batch) for batch in manifest["batches"]}
        except (OSError, ValueError, KeyError, TypeError):
            return set()

    def _open(self, folder: Path, name: str) -> FloatArray:
        mode: Literal["r+", "w+"] = "r+" if self.done else "w+"
        path, shape = folder / f"{name}.npy", self._shapes[name]
        return np.lib.format.open_memmap(path, mode, dtype=np.float32, shape=None if self.done else shape)

    def _check_room(self, folder: Path) -> None:
        for name in self._shapes:
            (folder / f"{name}.npy").unlink(missing_ok=True)
        needed = sum(4 * int(np.prod(shape)) for shape in self._shapes.values()) + SPARE_BYTES
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise RuntimeError(f"work folder {folder}: expected {needed} bytes of free disk, found {free}")
