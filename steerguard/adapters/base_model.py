"""The base model that adapters are checked against: its name, and the shape of every module LoRA may go on.

Shapes are read from the headers of the model's own safetensors files where they are there, which is right for any
head layout; without them (or with quantized ones, whose shapes are packed) they follow from config.json.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from steerguard.adapters.architectures import ARCHITECTURES, WITHOUT_LORA, Architecture, Shape, read_sizes
from steerguard.adapters.json_file import read_object
from steerguard.adapters.problems import AdapterError, refusal
from steerguard.adapters.safetensors_file import Tensor, read_header

MAX_CONFIG_BYTES = 1024 * 1024
MAX_LAYERS = 1_024
MAX_WEIGHT_FILES = 1_000
MAX_WEIGHT_FILE_BYTES = 2**50

LARGEST = {"float16": 65_504.0, "bfloat16": 3.3895e38}
"""The largest finite number of the dtypes that vLLM runs adapters in; of a float32 model it makes bfloat16."""

_UNPACKED = ("F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
_SNAPSHOT = re.compile(r"models--[^/]+--(?P<name>[^/]+)/snapshots/[^/]+/?\Z")


@dataclass(frozen=True)
class BaseModel:
    """`modules` has the (out, in) shape of each module that vLLM takes LoRA on; for embeddings (vocabulary, width).

    `known` are these and the model's other matrices; `weights` says where a module's own weight is, if it is.
    """

    name: str
    folder: Path
    architecture: str
    num_layers: int
    dtype: str
    block_path: str
    embedding: str
    modules: Mapping[str, Shape]
    known: Mapping[str, Shape]
    weights: Mapping[str, tuple[Path, Tensor]]

    @property
    def largest(self) -> float:
        """The largest number that an engine can hold of this model's adapters."""
        return LARGEST.get(self.dtype, LARGEST["bfloat16"])


def read_base_model(folder: Path) -> BaseModel:
    """The model in a folder, as save_pretrained or a hub download leaves it. Raises AdapterError about `base`."""
    if not folder.is_dir():
        raise refusal("base", "a folder with a model's config.json", f"no such folder: {folder}")
    path = folder / "config.json"
    if not path.is_file():
        raise refusal("base", "a folder with a model's config.json", "no config.json")
    config = read_object(path, "base config.json", MAX_CONFIG_BYTES)
    name = _architecture_of(config)
    architecture = ARCHITECTURES[name]
    num_layers = config.get("num_hidden_layers")
    if type(num_layers) is not int or not 1 <= num_layers <= MAX_LAYERS:
        raise refusal("base config.json num_hidden_layers", f"1 to {MAX_LAYERS}", num_layers)
    weights = _read_weights(folder)
    shapes = _shapes_from_config(config, architecture, num_layers)
    if not config.get("quantization_config"):
        for module in shapes:
            found = weights.get(module)
            if found is not None and found[1].dtype in _UNPACKED and len(found[1].shape) == 2:
                shapes[module] = (found[1].shape[0], found[1].shape[1])
        if architecture.output not in weights and architecture.embedding in weights:
            shapes[architecture.output] = shapes[architecture.embedding]  # tied
    ends = {architecture.embedding, architecture.output}
    dtype = config.get("dtype", config.get("torch_dtype"))
    return BaseModel(
        name=model_name(str(folder.resolve())),
        folder=folder,
        architecture=name,
        num_layers=num_layers,
        dtype=dtype if isinstance(dtype, str) else "bfloat16",
        block_path=architecture.blocks,
        embedding=architecture.embedding,
        modules={k: v for k, v in shapes.items() if k not in ends or k in architecture.embeddings},
        known=shapes | {k: (t.shape[0], t.shape[1]) for k, (_, t) in weights.items() if len(t.shape) == 2},
        weights=weights,
    )


def model_name(text: str) -> str:
    """The last part of a folder or hub id; of a folder in the hub's cache, the model's name. Looks at no disk."""
    text = text.strip().replace("\\", "/")
    snapshot = _SNAPSHOT.search(text)
    return snapshot["name"] if snapshot else PurePosixPath(text).name


def _architecture_of(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None
    if name in WITHOUT_LORA:
        raise refusal("base", "an architecture that vLLM serves adapters on", name)
    if name not in ARCHITECTURES:
        raise refusal("base", f"one of {', '.join(sorted(ARCHITECTURES))}", name)
    return name


def _shapes_from_config(config: Mapping[str, Any], architecture: Architecture, num_layers: int) -> dict[str, Shape]:
    try:
        sizes = read_sizes(config)
    except KeyError as error:
        raise refusal("base config.json", f"{error.args[0]}", "nothing") from None
    except ValueError as error:
        raise refusal("base config.json", "sizes that are positive integers", str(error)) from None
    shapes = {
        f"{architecture.blocks}.{block}.{module}": shape(sizes)
        for block in range(num_layers)
        for module, shape in architecture.block_modules.items()
    }
    ends = (sizes.vocabulary, sizes.hidden)
    return {**shapes, architecture.embedding: ends, architecture.output: ends}


def _read_weights(folder: Path) -> dict[str, tuple[Path, Tensor]]:
    """Where each `<module>.weight` is. A model without safetensors files has none."""
    found: dict[str, tuple[Path, Tensor]] = {}
    paths = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("adapter_"))
    for path in paths[:MAX_WEIGHT_FILES]:
        try:
            header = read_header(path, f"base {path.name}", max_bytes=MAX_WEIGHT_FILE_BYTES)
        except AdapterError as error:
            raise refusal("base", f"{path.name} as safetensors", str(error)) from None
        for name, tensor in header.items():
            if name.endswith(".weight"):
                found[name.removesuffix(".weight")] = (path, tensor)
    return found
