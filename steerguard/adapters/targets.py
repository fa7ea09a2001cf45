"""Whether an adapter has tensors for just the modules that its `target_modules` names in the base model.

vLLM ignores `target_modules` and serves what tensors there are: an adapter of a four-layer model on a base of thirty
loads. As peft/tuners/tuners_utils.py check_target_module_exists, 0.21.
"""

from steerguard.adapters.base_model import BaseModel
from steerguard.adapters.config import AdapterConfig
from steerguard.adapters.module_patterns import Matcher, UnsafePattern, ends_with, full_matcher
from steerguard.adapters.problems import Problems
from steerguard.adapters.tensor_names import block_of, relative, spans


def check_targets(found: set[str], config: AdapterConfig, base: BaseModel, problems: Problems) -> None:
    """Adds what is missing from the modules `found`, and what is too much, to `problems`.

    An expression that isn't taken (module_patterns.py) can't be compared with; vLLM doesn't look at it either.
    """
    if not config.target_modules:
        return
    try:
        is_target = _matcher(config, base)
    except UnsafePattern:
        return
    wanted = {module for module in base.modules if is_target(module)}
    outside: dict[str, set[int]] = {}
    missing: dict[str, set[int]] = {}
    for modules, into in ((wanted - found, missing), (found - wanted, outside)):
        for module in modules:
            block = block_of(module, base.block_path)
            into.setdefault(relative(module, base.block_path), set()).update({int(block)} if block else set())
    for place, blocks in sorted(missing.items()):
        there = {int(block_of(m, base.block_path)) for m in found if relative(m, base.block_path) == place and blocks}
        where = f" in layers {spans(blocks | there)}" if blocks else ""
        found_text = f"it in layers {spans(there)}" if there else "none"
        problems.add("target_modules", f"LoRA on {place}{where}, as it says", found_text)
    for place, blocks in sorted(outside.items()):
        where = f" in layers {spans(blocks)}" if blocks else ""
        problems.add("target_modules", f"{place} among them, since it has LoRA{where}", str(config.target_modules))


def _matcher(config: AdapterConfig, base: BaseModel) -> Matcher:
    excluded = _excluded(config.exclude_modules)
    targets = config.target_modules
    if isinstance(targets, str):
        if targets.lower() == "all-linear":
            return lambda module: bool(block_of(module, base.block_path)) and not excluded(module)
        whole = full_matcher(targets)
        return lambda module: whole(module) and not excluded(module)
    layers = config.layers_to_transform

    def is_target(module: str) -> bool:
        if excluded(module):
            return False
        if module in targets:
            return True
        if not any(ends_with(module, target) for target in targets):
            return False
        block = block_of(module, base.block_path)
        return layers is None or (block != "" and int(block) in layers)

    return is_target


def _excluded(names: list[str] | str) -> Matcher:
    if isinstance(names, str):
        return full_matcher(names) if names else lambda module: False
    return lambda module: any(ends_with(module, name) for name in names)
