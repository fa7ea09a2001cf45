"""LoRA adapters: whether one may be served on a base model, what identifies it, and where it is kept.

Needs numpy and safetensors only; the check reads neither torch nor peft.
"""

from steerguard.adapters.base_model import BaseModel, read_base_model
from steerguard.adapters.check import CheckedAdapter, NamePolicy, check_adapter, check_files
from steerguard.adapters.problems import AdapterError, Problem, Problems
from steerguard.adapters.source import AdapterFiles, open_source
from steerguard.adapters.store import AdapterStore, engine_id

__all__ = [
    "AdapterError",
    "AdapterFiles",
    "AdapterStore",
    "BaseModel",
    "CheckedAdapter",
    "NamePolicy",
    "Problem",
    "Problems",
    "check_adapter",
    "check_files",
    "engine_id",
    "open_source",
    "read_base_model",
]
