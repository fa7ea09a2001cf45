"""Every vLLM internal that the plugin replaces or relies on, in one place. Checked against vLLM 0.32.0.

| where in vLLM | what is done | why there |
|---|---|---|
| `v1.worker.gpu_model_runner.GPUModelRunner.load_model`, `v1.worker.cpu_model_runner.CPUModelRunner.load_model`, `v1.worker.gpu.model_runner.GPUModelRunner.load_model` | after it: buffers onto the decoder blocks | the last moment before profiling, torch.compile and graph capture |
| `v1.worker.gpu_model_runner.GPUModelRunner._prepare_inputs` (V1) | after it: this step's row of each token | `input_batch` has this step's order only now |
| `v1.worker.gpu.model_runner.GPUModelRunner.add_requests`, `._remove_request`, `.prepare_inputs` (V2) | plans kept by request; rows of each token | V2 keeps no sampling parameters by request |
| `v1.worker.worker_base.WorkerBase` | gains `steerguard_…` methods | what `collective_rpc` can call |
| `v1.core.kv_cache_utils.generate_block_hash_extra_keys` | steered blocks get a key of their own | the one place where block keys are made |
| `v1.engine.core.EngineCore` | gains `steerguard_…` methods; `preprocess_add_request`, `add_request` keep count of what is in use | the only process that knows every unfinished request |
| `v1.engine.input_processor.InputProcessor.__init__`, `.process_inputs` | the engine's `Admission`; its verdict on each request | every request of server and `LLM` passes here, before it is scheduled |
| `sampling_params.SamplingParams.from_optional` | early check | a streamed response has begun by the time of `process_inputs`; this runs before, so a bad spec is still a 400 |
| `entrypoints.openai.{chat_completion,completion}.protocol.….to_beam_search_params` | refuses a steered beam search | vLLM gives its beams parameters of their own, without the request's extra args |
| `entrypoints.serve.engine.protocol.UsageInfo.__init__`, `entrypoints.openai.responses.protocol.ResponseUsage.__init__` | `usage.steering` | a streamed answer's headers are sent before its tokens are counted |
| `config.vllm.VllmConfig.compute_hash` | the plugin enters the key | vLLM hashes no plugins: a stale compile cache would serve the model without steering |
"""

import functools
import hashlib
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from steerguard.blend import BlendError
from steerguard.integrations.vllm.admission import Admission, current_receipt
from steerguard.integrations.vllm.config import PluginConfig
from steerguard.integrations.vllm.engine_core import CoreRegistry
from steerguard.integrations.vllm.wire import SPEC_KEY, block_extra_key, plan_of
from steerguard.integrations.vllm.worker import EngineShape, WorkerSteering

_installed = False
_admission: Admission | None = None


def install() -> None:
    """Installs all patches, once per process. Raises if vLLM's internals aren't where they should be."""
    global _installed
    if _installed:
        return
    _patch_config()
    _patch_front_end()
    _patch_block_keys()
    _patch_engine_core()
    _patch_workers()
    _installed = True


def is_installed() -> bool:
    return _installed


def current_admission() -> Admission:
    """The admission of this process's engine. RuntimeError before the engine has been made."""
    if _admission is None:
        raise RuntimeError("no vLLM engine has been started in this process with the steerguard plugin")
    return _admission


def engine_shape(vllm_config: Any) -> EngineShape:
    """The engine's shape, from its vLLM configuration."""
    model = vllm_config.model_config
    return EngineShape(
        num_layers=model.get_total_num_hidden_layers(),
        hidden_size=model.get_hidden_size(),
        dtype=model.dtype,
        max_num_seqs=vllm_config.scheduler_config.max_num_seqs,
        max_num_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
    )


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replaces `owner.name` by `make(original)`, keeping its looks; AttributeError if it isn't there."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


def _module(name: str) -> Any:
    return importlib.import_module(f"vllm.{name}")


def _patch_config() -> None:
    def make(original: Any) -> Any:
        def compute_hash(self: Any, *args: Any, **kwargs: Any) -> str:
            text = f"{original(self, *args, **kwargs)} {PluginConfig.from_environment().compile_factors()}"
            return hashlib.sha256(text.encode()).hexdigest()[:10]

        return compute_hash

    _replace(_module("config.vllm").VllmConfig, "compute_hash", make)


def _patch_front_end() -> None:
    validation_error = _module("exceptions").VLLMValidationError

    class SteeringRefused(validation_error, ValueError):  # type: ignore[valid-type,misc]
        """HTTP 400 in vLLM's server; a ValueError too, which is what offline callers are promised."""

    def refuse(error: BlendError) -> Exception:
        inside = f"vllm_xargs.{error.field}" if error.field.startswith(SPEC_KEY) else error.field
        return SteeringRefused(str(error), parameter=inside)  # type: ignore[call-arg]

    def make_init(original: Any) -> Any:
        def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
            global _admission
            original(self, vllm_config, *args, **kwargs)
            shape = engine_shape(vllm_config)
            config = PluginConfig.from_environment()
            self.steerguard = _admission = Admission(
                num_layers=shape.num_layers,
                hidden_size=shape.hidden_size,
                dtype_max=torch.finfo(shape.dtype).max,
                blend_layers=config.blend_layers(
                    num_layers=shape.num_layers,
                    hidden_size=shape.hidden_size,
                    itemsize=shape.dtype.itemsize,
                    max_num_seqs=shape.max_num_seqs,
                ),
                config=config,
            )

        return __init__

    def make_process(original: Any) -> Any:
        def process_inputs(self: Any, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
            extra = getattr(params, "extra_args", None)
            admitted = extra
            if extra:
                try:
                    admitted = self.steerguard.admit_into(extra)
                except BlendError as error:
                    raise refuse(error) from error
                if admitted is not extra and kwargs.get("resumable"):
                    raise refuse(BlendError(SPEC_KEY, "no steering in a resumable session", "a blend"))
            request = original(self, request_id, prompt, params, *args, **kwargs)
            if admitted is not extra:
                # process_inputs has made its own copy of the parameters; the caller's stay as they were.
                request.sampling_params.extra_args = admitted
            return request

        return process_inputs

    def make_from_optional(original: Any) -> Any:
        def from_optional(*args: Any, **kwargs: Any) -> Any:
            params = original(*args, **kwargs)
            if _admission is not None and params.extra_args:
                try:
                    _admission.note(params.extra_args)
                except BlendError as error:
                    raise refuse(error) from error
            return params

        return from_optional

    def make_usage(prompt: str, answer: str) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def __init__(self: Any, **counts: Any) -> None:
                original(self, **counts)
                receipt = current_receipt()
                if receipt is not None:
                    steering = receipt.usage(getattr(self, prompt), getattr(self, answer) or 0)
                    if steering is not None:
                        self.steering = steering

            return __init__

        return make

    def make_beam_search(original: Any) -> Any:
        def to_beam_search_params(self: Any, *args: Any, **kwargs: Any) -> Any:
            if SPEC_KEY in (self.vllm_xargs or {}):
                raise refuse(BlendError("use_beam_search", "no beam search in a steered request", "true"))
            return original(self, *args, **kwargs)

        return to_beam_search_params

    chat = _module("entrypoints.openai.chat_completion.protocol").ChatCompletionRequest
    completion = _module("entrypoints.openai.completion.protocol").CompletionRequest
    for request in (chat, completion):
        _replace(request, "to_beam_search_params", make_beam_search)
    usage = _module("entrypoints.serve.engine.protocol").UsageInfo
    _replace(usage, "__init__", make_usage("prompt_tokens", "completion_tokens"))
    usage = _module("entrypoints.openai.responses.protocol").ResponseUsage
    _replace(usage, "__init__", make_usage("input_tokens", "output_tokens"))
    processor = _module("v1.engine.input_processor").InputProcessor
    _replace(processor, "__init__", make_init)
    _replace(processor, "process_inputs", make_process)
    sampling_params = _module("sampling_params").SamplingParams
    original = sampling_params.from_optional
    sampling_params.from_optional = staticmethod(functools.wraps(original)(make_from_optional(original)))


def _patch_block_keys() -> None:
    def make(original: Any) -> Any:
        def generate_block_hash_extra_keys(
            request: Any, start_token_idx: int, end_token_idx: int, start_mm_idx: int
        ) -> tuple[tuple[Any, ...] | None, int]:
            keys, next_mm_idx = original(request, start_token_idx, end_token_idx, start_mm_idx)
            plan = _plan_of_request(request)
            if plan is None:
                return keys, next_mm_idx
            key = block_extra_key(plan, start_token_idx, end_token_idx, request.num_prompt_tokens)
            if key is not None:
                keys = (*(keys or ()), ("steerguard", key))
            return keys, next_mm_idx

        return generate_block_hash_extra_keys

    _replace(_module("v1.core.kv_cache_utils"), "generate_block_hash_extra_keys", make)


def _plan_of_request(request: Any) -> Any:
    """A scheduler request's plan, decoded once and kept on the request (its hashes are made block by block)."""
    try:
        return request.steerguard_plan
    except AttributeError:
        request.steerguard_plan = plan_of(request.sampling_params)
        return request.steerguard_plan


def _patch_engine_core() -> None:
    core = _module("v1.engine.core").EngineCore

    def registry(self: Any) -> CoreRegistry:
        if not hasattr(self, "_steerguard_registry"):
            self._steerguard_registry = CoreRegistry()
        found: CoreRegistry = self._steerguard_registry
        return found

    def unfinished_plans(self: Any) -> list[Any]:
        plans = (_plan_of_request(request) for request in self.scheduler.requests.values())
        return [plan for plan in plans if plan is not None]

    def make_preprocess(original: Any) -> Any:
        def preprocess_add_request(self: Any, request: Any) -> Any:
            plan = plan_of(request.sampling_params)
            if plan is not None:
                registry(self).arrive(request.request_id, plan)
            try:
                return original(self, request)
            except Exception:
                # vLLM answers this one with an error; it won't come to `add_request`.
                registry(self).settle(request.request_id)
                raise

        return preprocess_add_request

    def make_add(original: Any) -> Any:
        def add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, request, *args, **kwargs)
            finally:
                registry(self).settle(request.request_id)

        return add_request

    def steerguard_register(self: Any, payload: bytes) -> dict[str, Any]:
        return registry(self).register(self.collective_rpc, payload)

    def steerguard_remove(self: Any, digest: str) -> str:
        return registry(self).remove(self.collective_rpc, digest, unfinished_plans(self))

    def steerguard_state(self: Any) -> dict[str, Any]:
        return registry(self).state(self.collective_rpc, unfinished_plans(self))

    def steerguard_start_probe(self: Any) -> None:
        self.collective_rpc("steerguard_start_probe")

    def steerguard_finish_probe(self: Any) -> list[dict[str, float]]:
        # msgpack has text keys only.
        return [{str(b): n for b, n in part.items()} for part in self.collective_rpc("steerguard_finish_probe")]

    _replace(core, "preprocess_add_request", make_preprocess)
    _replace(core, "add_request", make_add)
    core.steerguard_register = steerguard_register
    core.steerguard_remove = steerguard_remove
    core.steerguard_state = steerguard_state
    core.steerguard_start_probe = steerguard_start_probe
    core.steerguard_finish_probe = steerguard_finish_probe


def _patch_workers() -> None:
    def steering_of(self: Any) -> WorkerSteering:
        found: WorkerSteering = self.model_runner.steerguard
        return found

    worker = _module("v1.worker.worker_base").WorkerBase
    worker.steerguard_register = lambda self, payload: steering_of(self).register(payload)
    worker.steerguard_remove = lambda self, digest: steering_of(self).remove(digest)
    worker.steerguard_state = lambda self: steering_of(self).state()
    worker.steerguard_start_probe = lambda self: steering_of(self).start_probe()
    worker.steerguard_finish_probe = lambda self: steering_of(self).finish_probe()

    v1 = _module("v1.worker.gpu_model_runner").GPUModelRunner
    _replace(v1, "load_model", _make_load_model)
    _replace(v1, "_prepare_inputs", _make_prepare_inputs_v1)
    platforms = _module("platforms")
    if platforms.current_platform.is_cpu():
        _replace(_module("v1.worker.cpu_model_runner").CPUModelRunner, "load_model", _make_load_model)
    if _module("triton_utils").HAS_TRITON:
        v2 = _module("v1.worker.gpu.model_runner").GPUModelRunner
        _replace(v2, "load_model", _make_load_model)
        _replace(v2, "add_requests", _make_add_requests_v2)
        _replace(v2, "_remove_request", _make_remove_request_v2)
        _replace(v2, "prepare_inputs", _make_prepare_inputs_v2)


def _make_load_model(original: Any) -> Any:
    def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if getattr(self, "steerguard", None) is None:
            _refuse_unsupported(self)
            self.steerguard = WorkerSteering(
                self.model, engine_shape(self.vllm_config), self.device, PluginConfig.from_environment()
            )
            self.steerguard_plans = {}
        return result

    return load_model


def _refuse_unsupported(runner: Any) -> None:
    """Raises for set-ups in which wrong tokens or none would be steered, or the bank be lost."""
    config = runner.vllm_config
    reasons = {
        "dual batch overlap (--enable-dbo)": getattr(config.parallel_config, "use_ubatching", False),
        "prefill context parallelism": getattr(config.parallel_config, "prefill_context_parallel_size", 1) > 1,
        "sleep mode (--enable-sleep-mode)": getattr(config.model_config, "enable_sleep_mode", False),
        "adaptive verification of draft tokens": getattr(runner, "adaptive_verification", None) is not None,
        "vLLM's Rust front end (VLLM_USE_RUST_FRONTEND), which checks no specs": _module("envs").VLLM_USE_RUST_FRONTEND,
    }
    found = [name for name, on in reasons.items() if on]
    if found:
        raise RuntimeError(f"SteerGuard can't steer together with {', '.join(found)}: switch it off, or the plugin")


def _make_prepare_inputs_v1(original: Any) -> Any:
    def _prepare_inputs(self: Any, scheduler_output: Any, num_scheduled_tokens: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, scheduler_output, num_scheduled_tokens, *args, **kwargs)
        batch = self.input_batch
        count = batch.num_reqs
        states = [self.requests[req_id] for req_id in batch.req_ids[:count]]
        self.steerguard.prepare_step(
            states,
            lambda state: (_plan_of_request(state), state.num_prompt_tokens),
            batch.num_computed_tokens_cpu[:count],
            num_scheduled_tokens,
        )
        return result

    return _prepare_inputs


def _make_add_requests_v2(original: Any) -> Any:
    def add_requests(self: Any, scheduler_output: Any) -> Any:
        result = original(self, scheduler_output)
        for new in scheduler_output.scheduled_new_reqs:
            self.steerguard_plans[new.req_id] = (plan_of(new.sampling_params), new.prompt_len)
        return result

    return add_requests


def _make_remove_request_v2(original: Any) -> Any:
    def _remove_request(self: Any, req_id: str) -> Any:
        self.steerguard_plans.pop(req_id, None)
        return original(self, req_id)

    return _remove_request


def _make_prepare_inputs_v2(original: Any) -> Any:
    def prepare_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = original(self, *args, **kwargs)
        self.steerguard.prepare_step(
            [self.steerguard_plans[req_id] for req_id in batch.req_ids],
            lambda described: described,
            batch.num_computed_tokens_np[: batch.num_reqs],
            np.asarray(batch.num_scheduled_tokens),
        )
        return batch

    return prepare_inputs
