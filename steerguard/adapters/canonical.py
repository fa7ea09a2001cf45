"""What is kept of an adapter, and what identifies it.

The two files that are stored, and that engines read, are always written here: of the settings those that make a
difference when serving, with ranks and alphas by plain module names; of the tensors only LoRA's. Equal adapters give
equal bytes. An adapter's digest is the SHA-256 of

    "steerguard.adapter.v1", the length of adapter_config.json as a little-endian u64, that file, the safetensors file

so a dropout, a training script's leftovers, a peft version or the order of tensors are no part of it, and a changed
number, rank, alpha or base model's name is.
"""

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import IO, Any

from steerguard.adapters.archive import WEIGHTS_FILE
from steerguard.adapters.check import CheckedAdapter
from steerguard.adapters.config import CONFIG_FILE
from steerguard.adapters.module_patterns import ends_with
from steerguard.adapters.safetensors_file import ITEM_BITS, Tensor, pieces
from steerguard.adapters.tensor_names import EMBEDDING, LINEAR, PREFIX

DIGEST_DOMAIN = b"steerguard.adapter.v1"


def write_adapter(adapter: CheckedAdapter, folder: Path) -> str:
    """Writes the two files into `folder`, readable by their owner only and synced to disk, and returns the digest."""
    config = json.dumps(canonical_config(adapter), sort_keys=True, indent=1).encode() + b"\n"
    sha = hashlib.sha256(DIGEST_DOMAIN + struct.pack("<Q", len(config)) + config)
    with _new_file(folder / CONFIG_FILE) as file:
        _write(file, config)
    with _new_file(folder / WEIGHTS_FILE) as file:
        tensors = _named_tensors(adapter)
        header = _header(tensors)
        sha.update(header)
        file.write(header)
        for _, tensor in tensors:
            for piece in pieces(adapter.weights, tensor):
                data = piece.tobytes()
                sha.update(data)
                file.write(data)
        _write(file, b"")
    return sha.hexdigest()


def digest_of(folder: Path) -> str:
    """The digest of what lies in a folder that `write_adapter` wrote. OSError when a file is missing."""
    config = (folder / CONFIG_FILE).read_bytes()
    sha = hashlib.sha256(DIGEST_DOMAIN + struct.pack("<Q", len(config)) + config)
    with (folder / WEIGHTS_FILE).open("rb") as file:
        while piece := file.read(1024 * 1024):
            sha.update(piece)
    return sha.hexdigest()


def canonical_config(adapter: CheckedAdapter) -> dict[str, Any]:
    """The settings that peft and vLLM need to serve the adapter as it was trained."""
    config = adapter.config
    modules = sorted(adapter.modules)
    ranks = {module: config.rank_of(module)[0] for module in modules}
    alphas = {module: config.alpha_of(module) for module in modules}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": adapter.base.name,
        "inference_mode": True,
        "r": config.r,
        "lora_alpha": config.lora_alpha,
        "use_rslora": config.use_rslora,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": _targets(adapter),
        "rank_pattern": {module: rank for module, rank in ranks.items() if rank != config.r},
        "alpha_pattern": {module: alpha for module, alpha in alphas.items() if alpha != config.lora_alpha},
    }


def _targets(adapter: CheckedAdapter) -> list[str]:
    """The last parts of the modules' names, if they mean just these modules; else the names."""
    last_parts = sorted({module.rpartition(".")[2] for module in adapter.modules})
    meant = {module for module in adapter.base.known if any(ends_with(module, part) for part in last_parts)}
    return last_parts if meant == set(adapter.modules) else sorted(adapter.modules)


def _named_tensors(adapter: CheckedAdapter) -> list[tuple[str, Tensor]]:
    """In the order of the file: wider items first, as the safetensors library does, so that all are aligned."""
    named = []
    for module, pair in adapter.modules.items():
        endings = EMBEDDING if module == adapter.base.embedding else LINEAR
        for ending, tensor in zip(endings, (pair.a, pair.b), strict=True):
            named.append((f"{PREFIX}{module}{ending}", tensor))
    return sorted(named, key=lambda one: (-ITEM_BITS[one[1].dtype], one[0]))


def _header(tensors: list[tuple[str, Tensor]]) -> bytes:
    at = 0
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name, tensor in tensors:
        end = at + tensor.end - tensor.start
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _new_file(path: Path) -> IO[bytes]:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _write(file: IO[bytes], data: bytes) -> None:
    """The last of a file's bytes."""
    file.write(data)
    file.flush()
    os.fsync(file.fileno())
