"""The check that an adapter passes before anything of it is stored or loaded.

Measured on vLLM 0.32.0, each of these loads with 200 and then serves wrong answers, or other tenants' empty ones:
another base of the same shapes, missing or surplus layers, an `r` that isn't the tensors', a NaN. So vLLM's own checks
are only a part of these. Whatever is wrong is listed, not just what comes first.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from steerguard.adapters.archive import LIMITS, WEIGHTS_FILE
from steerguard.adapters.base_model import BaseModel, model_name, read_base_model
from steerguard.adapters.config import CONFIG_FILE, MAX_RANK, AdapterConfig, read_config
from steerguard.adapters.json_file import read_object
from steerguard.adapters.problems import AdapterError, Problem, Problems
from steerguard.adapters.safetensors_file import FLOATS, Tensor, as_float32, measure, pieces, read_header
from steerguard.adapters.source import AdapterFiles, open_source
from steerguard.adapters.targets import check_targets
from steerguard.adapters.tensor_names import Pair, Repeated, pair_tensors

_TUNED = re.compile(r"[-_.](instruct|it|chat|sft|dpo|rlhf)\b", re.IGNORECASE)


class NamePolicy(StrEnum):
    """When `base_model_name_or_path` names the base: the whole text, or its last part whatever the case."""

    EXACT = "exact"
    BASENAME = "basename"


@dataclass(frozen=True)
class CheckedAdapter:
    """An adapter in which nothing was found to be wrong. `weights` is valid as long as its source is open."""

    base: BaseModel
    config: AdapterConfig
    weights: Path
    modules: Mapping[str, Pair]

    @property
    def rank(self) -> int:
        """The largest rank of any module, which is what an engine's max_lora_rank has to reach."""
        return max(self.config.rank_of(module)[0] for module in self.modules)

    @property
    def num_parameters(self) -> int:
        return sum(int(np.prod(t.shape)) for pair in self.modules.values() for t in (pair.a, pair.b))


def check_adapter(
    path: Path,
    base_folder: Path,
    *,
    max_lora_rank: int,
    name_policy: NamePolicy = NamePolicy.BASENAME,
    base_names: Collection[str] = (),
) -> list[Problem]:
    """What is wrong with the adapter in a folder, zip or tar, for the model in `base_folder`. Empty: nothing is."""
    problems = Problems()
    base: BaseModel | None = None
    try:
        base = read_base_model(base_folder)
    except AdapterError as error:
        problems.extend(error.problems)
    except OSError as error:
        problems.add("base", "files that can be read", error.strerror or str(error))
    try:
        with open_source(path, problems) as files:
            if base is not None:
                check_files(
                    files, base, problems, max_lora_rank=max_lora_rank, name_policy=name_policy, base_names=base_names
                )
    except OSError as error:
        problems.add("path", "files that can be read", error.strerror or str(error))
    return problems.listed()


def check_files(
    files: AdapterFiles,
    base: BaseModel,
    problems: Problems,
    *,
    max_lora_rank: int,
    name_policy: NamePolicy = NamePolicy.BASENAME,
    base_names: Collection[str] = (),
) -> CheckedAdapter | None:
    """The adapter in two files, with what is wrong added to `problems`; None where there is anything.

    `base_names` are further names that the operator takes for the base's.
    """
    if not 1 <= max_lora_rank <= MAX_RANK:
        problems.add("max_lora_rank", f"1 to {MAX_RANK}", str(max_lora_rank))
        return None
    config = None
    if files.config is not None:
        try:
            said = read_object(files.config, CONFIG_FILE, LIMITS[CONFIG_FILE])
            config = read_config(said, problems, max_lora_rank=max_lora_rank)
            _check_base_name(said.get("base_model_name_or_path"), base, name_policy, base_names, problems)
        except AdapterError as error:
            problems.extend(error.problems)
    modules: dict[str, Pair] = {}
    if files.weights is not None:
        try:
            tensors = read_header(files.weights, WEIGHTS_FILE, max_bytes=LIMITS[WEIGHTS_FILE])
            modules = _check_tensors(tensors, files.weights, config, base, problems)
        except AdapterError as error:
            problems.extend(error.problems)
    if problems or config is None or files.weights is None:
        return None
    return CheckedAdapter(base, config, files.weights, modules)


def _check_base_name(
    found: object, base: BaseModel, policy: NamePolicy, base_names: Collection[str], problems: Problems
) -> None:
    if not isinstance(found, str) or not found.strip():
        return  # which the config's own check has said
    if found in {base.name, str(base.folder), str(base.folder.resolve()), *base_names}:
        return
    name = model_name(found)
    if policy is NamePolicy.BASENAME:
        names = {model_name(one).casefold() for one in (base.name, str(base.folder), *base_names)}
        if name.casefold() in names:
            return
    expected = base.name
    if _TUNED.sub("", name).casefold() == _TUNED.sub("", base.name).casefold() and name != base.name:
        expected += " (one is tuned to follow instructions or to chat, the other isn't)"
    problems.add("base_model_name_or_path", expected, found)


def _check_tensors(
    tensors: Mapping[str, Tensor], path: Path, config: AdapterConfig | None, base: BaseModel, problems: Problems
) -> dict[str, Pair]:
    modules, base_copies = pair_tensors(tensors, base, problems)
    if not modules and not problems:
        problems.add(WEIGHTS_FILE, "LoRA tensors", f"{len(tensors)} tensors, none of them LoRA's")
    repeated = Repeated(base)
    for module, pair in modules.items():
        _check_shapes(module, pair, config, base, repeated)
    repeated.report(problems)
    if config is not None:
        check_targets(set(modules), config, base, problems)
        if config.ensure_weight_tying and any(module not in _in_blocks(base) for module in modules):
            problems.add("ensure_weight_tying", "false where embeddings have LoRA: vLLM doesn't tie it", "true")
    for module, pair in modules.items():
        _check_numbers(module, pair, path, config, base, problems)
    for module, tensor in base_copies.items():
        _check_base_copy(module, tensor, path, base, problems)
    return modules


def _in_blocks(base: BaseModel) -> set[str]:
    return {module for module in base.known if module.startswith(f"{base.block_path}.")}


def _check_shapes(module: str, pair: Pair, config: AdapterConfig | None, base: BaseModel, repeated: Repeated) -> None:
    """A is [r, in] and B [out, r]; an embedding's `in` is the vocabulary and its `out` the width."""
    outputs, inputs = base.modules[module]
    if module == base.embedding:
        outputs, inputs = inputs, outputs
    a, b = pair.a.shape, pair.b.shape
    if len(a) != 2 or a[1] != inputs:
        repeated.add(module, pair.a.name, f"shape [r, {inputs}], as the base model's {module}", str(list(a)))
    if len(b) != 2 or b[0] != outputs:
        repeated.add(module, pair.b.name, f"shape [{outputs}, r], as the base model's {module}", str(list(b)))
    if len(a) != 2 or len(b) != 2:
        return
    if a[0] != b[1] or not a[0]:
        repeated.add(module, pair.b.name, f"the rank that {pair.a.name} has, {a[0] or 'above 0'}", str(b[1]))
    elif config is not None:
        rank, field = config.rank_of(module)
        if rank != a[0]:
            found = f"{rank}, where {pair.a.name} has shape {list(a)}"
            repeated.add(module, field, f"{a[0]}, the rank of the tensors", found, same=f"{rank} for {a[0]}")


def _check_numbers(
    module: str, pair: Pair, path: Path, config: AdapterConfig | None, base: BaseModel, problems: Problems
) -> None:
    for tensor, scaling in ((pair.a, 1.0), (pair.b, config.scaling_of(module) if config else 1.0)):
        if tensor.dtype not in FLOATS:
            problems.add(tensor.name, f"dtype {', '.join(FLOATS)}", tensor.dtype)
            continue
        magnitudes = measure(path, tensor)
        if magnitudes.not_finite:
            problems.add(tensor.name, "finite values", f"{magnitudes.not_finite} NaN or infinite")
        elif magnitudes.largest * max(scaling, 1.0) > base.largest:
            found = f"{magnitudes.largest:.4g}"
            if scaling > 1.0:
                found += f" times alpha's {scaling:.4g}"
            problems.add(tensor.name, f"values that stay finite in the base's dtype, {base.dtype}", found)


def _check_base_copy(module: str, tensor: Tensor, path: Path, base: BaseModel, problems: Problems) -> None:
    """peft copies the base's embedding into the file where LoRA is on it; vLLM passes the copy over, so it has to
    be the base's own and not one that was resized or trained."""
    expected = base.known[module]
    if tensor.shape != expected or tensor.dtype not in FLOATS:
        found = f"{tensor.dtype} {list(tensor.shape)}"
        problems.add(tensor.name, f"the base model's {module}, {list(expected)}, which vLLM uses instead", found)
        return
    if module not in base.weights:
        return
    base_path, original = base.weights[module]
    if original.dtype not in FLOATS or original.shape != tensor.shape:
        return
    for ours, theirs in zip(pieces(base_path, original), pieces(path, tensor), strict=True):
        a, b = as_float32(ours, original.dtype), as_float32(theirs, tensor.dtype)
        # One of the two may have been rounded to bfloat16's eight bits.
        if not np.allclose(a, b, rtol=2**-7, atol=1e-6):
            problems.add(tensor.name, f"the base model's {module}, which vLLM uses instead", "other values")
            return
