"""Lets vLLM's Model Runner V2, which needs Triton, run on a machine without a GPU, under Triton's interpreter.

On PYTHONPATH of the processes that are to use it (with `TRITON_INTERPRET=1` and `VLLM_USE_V2_MODEL_RUNNER=1`). vLLM
looks for an active driver of a backend named `cpu` (vllm/triton_utils/importing.py); the interpreter needs none, so
the entry only answers that question.
"""

from types import SimpleNamespace

from triton.backends import backends

backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True), compiler=None)
