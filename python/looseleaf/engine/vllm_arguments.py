"""vLLM's other constructor arguments: values that change nothing are accepted, all others refused by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from looseleaf.errors import UnsupportedError

_ONE_PROCESS = "the engine runs in one process on one device"
_NO_SUCH_MODEL = "only plain text models run here"

# name: (values under which looseleaf does what was asked, why others are refused)
_ARGUMENTS: dict[str, tuple[tuple[Any, ...], str]] = {
    "tensor_parallel_size": ((1,), _ONE_PROCESS),
    "pipeline_parallel_size": ((1,), _ONE_PROCESS),
    "data_parallel_size": ((1,), _ONE_PROCESS),
    "distributed_executor_backend": ((None,), _ONE_PROCESS),
    "tokenizer": ((None,), "the tokenizer is the one that lies with the model"),
    "tokenizer_mode": (("auto",), "the tokenizer is the one that lies with the model"),
    "skip_tokenizer_init": ((False,), "the tokenizer is loaded where the model has one"),
    "trust_remote_code": ((False,), "code that comes with a model is not run"),
    "revision": ((None,), "models are read from a local path"),
    "tokenizer_revision": ((None,), "models are read from a local path"),
    "code_revision": ((None,), "models are read from a local path"),
    "download_dir": ((None,), "models are read from a local path"),
    "hf_token": ((None, False), "models are read from a local path"),
    "hf_overrides": ((None,), "the model's configuration is taken as it is"),
    "load_format": (("auto",), "the format is told from the files"),
    "quantization": ((None,), "weights are computed with in dtype"),
    "runner": (("auto", "generate"), "only text generation is built"),
    "task": (("auto", "generate"), "only text generation is built"),
    # Nothing is captured here, so both values mean what is done anyway.
    "enforce_eager": ((True, False), ""),
    "enable_chunked_prefill": ((None, True), "prompts are always computed in pieces when they are long"),
    "async_scheduling": ((None, False), "one step is finished before the next is scheduled"),
    "disable_log_stats": ((True, False), ""),
    "generation_config": ((None, "vllm"), "sampling defaults are those of SamplingParams"),
    "disable_custom_all_reduce": ((True, False), ""),
    "cpu_offload_gb": ((None, 0), "weights stay where they are"),
    "kv_offloading_size": ((None,), "blocks are kept in one pool only"),
    "kv_transfer_config": ((None,), "blocks are kept in one pool only"),
    "kv_events_config": ((None,), "the pool does not publish events"),
    "enable_lora": ((None, False), "adapters are not built"),
    "speculative_config": ((None,), "speculative decoding is not built"),
    "compilation_config": ((None,), "the model is not compiled"),
    "limit_mm_per_prompt": ((None,), _NO_SUCH_MODEL),
    "mm_processor_kwargs": ((None,), _NO_SUCH_MODEL),
    "allowed_local_media_path": (("",), _NO_SUCH_MODEL),
    "structured_outputs_config": ((None,), "output is not constrained to a grammar"),
    "logits_processors": ((None,), "logits go from the model to the sampler unchanged"),
    "max_logprobs": ((20,), "log-probabilities are not returned"),
    "calculate_kv_scales": ((None, False), "the cache is not scaled"),
    "sliding_window": ((None,), "the window is the one the model was built with"),
    "disable_sliding_window": ((False,), "the window is the one the model was built with"),
}


def accept_vllm_arguments(arguments: Mapping[str, Any], own_names: frozenset[str]) -> None:
    """Refuse the first argument that would ask for something the engine does not do.

    Args:
        arguments: keyword arguments that the constructor does not name itself.
        own_names: the names it does know, for the suggestion.

    Raises:
        UnsupportedError: vLLM knows the argument, and it asks for something else than what is done.
        TypeError: nobody knows the argument.
    """
    for name, value in arguments.items():
        if name not in _ARGUMENTS:
            known = own_names | _ARGUMENTS.keys()
            # hash_algo is nearer to nothing than to prefix_caching_hash_algo by letters alone.
            close = difflib.get_close_matches(name, known, n=1) or sorted(k for k in known if name in k)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"LLM() got an unexpected keyword argument {name!r}{hint}")
        accepted, reason = _ARGUMENTS[name]
        if not any(
            value is choice or (type(value) is type(choice) and value == choice) for choice in accepted
        ):
            allowed = " or ".join(repr(choice) for choice in accepted)
            raise UnsupportedError(
                f"{name}={value!r} is not supported: {reason}; leave it out, or pass {allowed}"
            )
