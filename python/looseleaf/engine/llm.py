"""Offline inference: ``LLM``, with vLLM's names."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import fields, replace
from typing import Any

from looseleaf.engine.beam_rules import FinishedBeam
from looseleaf.engine.beam_search import BeamSearchParams
from looseleaf.engine.config import DEFAULT_WATERMARK, EngineConfig, PolicyName
from looseleaf.engine.detokenizer import Tokenizer, decode_output
from looseleaf.engine.engine import LLMEngine
from looseleaf.engine.interrupts import DeferredInterrupt
from looseleaf.engine.one_user import OneUser
from looseleaf.engine.outputs import BeamSearchOutput, BeamSearchSequence, RequestOutput
from looseleaf.engine.prompts import Prompt, TokenPrompt, conversations, listed, rendered, tokenized
from looseleaf.engine.request import listed_priorities, listed_timeouts
from looseleaf.engine.sampling_params import RequestOutputKind, SamplingParams, one_for_each
from looseleaf.engine.startup import start_engine
from looseleaf.engine.vllm_arguments import accept_vllm_arguments
from looseleaf.errors import EngineError, InvalidConfigError, RequestError

Message = Mapping[str, Any]
Params = SamplingParams | Sequence[SamplingParams] | None
Timeout = float | Sequence[float | None] | None


class LLM:
    """A model with its engine.

    Takes the fields of :class:`EngineConfig` by name. ``page_size`` is another name for ``block_size``.
    vLLM's other arguments are accepted where their value asks for what is done anyway, and refused by name
    otherwise.

    An LLM is for one thread at a time, and does not wait: while calls or streams of one thread have not
    ended, a call from another raises ConcurrentUseError and disturbs nothing, and so does a call from within
    a step (a hook of the model, say). Calls of one thread may overlap, as when it pauses a stream. A stream
    that is alone may be handed to another thread.

    Args:
        model: folder with a Hugging Face model, a GGUF file, or ``smollm2``.

    Raises:
        InvalidConfigError: a value is not allowed, or the longest request would not fit in the pool.
        UnsupportedError: an argument asks for something that looseleaf does not do.
        ModelLoadError: the model is missing or broken.
        TypeError: an argument that nobody knows.
        ConcurrentUseError: from its methods, as said above.

    Attributes:
        llm_engine: the engine.
    """

    def __init__(
        self,
        model: str,
        *,
        dtype: str = "auto",
        block_size: int | None = None,
        kv_cache_dtype: str = "auto",
        kv_cache_memory_bytes: int | None = None,
        gpu_memory_utilization: float = 0.92,
        num_gpu_blocks_override: int | None = None,
        enable_prefix_caching: bool = True,
        prefix_caching_hash_algo: str = "sha256",
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        long_prefill_token_threshold: int = 0,
        scheduling_policy: PolicyName = "fcfs",
        priority_aging_steps: int = 0,
        watermark: float = DEFAULT_WATERMARK,
        swap_space: float = 0.0,
        max_model_len: int | None = None,
        seed: int = 0,
        page_size: int | None = None,
        **others: Any,
    ) -> None:
        accept_vllm_arguments(others, frozenset(field.name for field in fields(EngineConfig)))
        if page_size is not None and block_size is not None and page_size != block_size:
            raise InvalidConfigError(
                f"page_size ({page_size}) and block_size ({block_size}) mean the same; give one"
            )
        config = EngineConfig(
            model=model,
            dtype=dtype,
            block_size=page_size if block_size is None else block_size,
            kv_cache_dtype=kv_cache_dtype,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            gpu_memory_utilization=gpu_memory_utilization,
            num_gpu_blocks_override=num_gpu_blocks_override,
            enable_prefix_caching=enable_prefix_caching,
            prefix_caching_hash_algo=prefix_caching_hash_algo,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            long_prefill_token_threshold=long_prefill_token_threshold,
            scheduling_policy=scheduling_policy,
            priority_aging_steps=priority_aging_steps,
            watermark=watermark,
            swap_space=swap_space,
            max_model_len=max_model_len,
            seed=seed,
        )
        self._serve(start_engine(config))

    @classmethod
    def from_engine(cls, engine: LLMEngine) -> LLM:
        """The same front over an engine that was built elsewhere."""
        llm = cls.__new__(cls)
        llm._serve(engine)
        return llm

    def _serve(self, engine: LLMEngine) -> None:
        self.llm_engine = engine
        self._ids = itertools.count()
        # Outputs that a call has not taken yet, by request; calls may overlap where one streams.
        self._boxes: dict[str, deque[RequestOutput]] = {}
        self._one_user = OneUser(self._abort)

    def get_tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer, if it has one."""
        return self.llm_engine.tokenizer

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False, and nothing is forgotten, while requests hold some."""
        with self._one_user.call():
            return self.llm_engine.reset_prefix_cache()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
        timeout: Timeout = None,
    ) -> list[RequestOutput]:
        """Complete prompts.

        Args:
            prompts: one or many, each text, token ids, or a dictionary with ``prompt`` or
                ``prompt_token_ids``, and ``cache_salt`` where it is not to share cached blocks.
            sampling_params: for all prompts, or one for each.
            use_tqdm: show a progress bar, on a terminal only.
            priority: one for each prompt, smaller numbers first; looked at under the policy ``priority``.
            timeout: seconds from now after which a prompt ends with what it has written and the reason
                ``timeout``, waiting for its turn included; for all prompts, or one for each.

        Returns:
            one output for each prompt, in the order of the prompts.

        Raises:
            RequestError: a prompt is refused; nothing was computed.
            ConcurrentUseError: the LLM is in use; nothing was computed.
            KeyboardInterrupt: Ctrl-C; all prompts of this call are aborted and their blocks given back.
        """
        with self._one_user.call():
            requests = self._paired(listed(prompts), sampling_params)
            priorities = listed_priorities(priority, len(requests))
            timeouts = listed_timeouts(timeout, len(requests))
            finals = [
                (prompt, replace(params, output_kind=RequestOutputKind.FINAL_ONLY))
                for prompt, params in requests
            ]
            outputs: list[RequestOutput | None] = [None] * len(requests)
            with (
                _progress_bar(len(requests), shown=use_tqdm) as bar,
                closing(self._run(finals, timeouts, priorities)) as run,
            ):
                for output in run:
                    outputs[output.prompt_index] = output
                    bar.update(1)
        return [output for output in outputs if output is not None]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: Params = None,
        *,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        cache_salt: str | None = None,
        timeout: Timeout = None,
    ) -> list[RequestOutput]:
        """Answer conversations through the model's chat template.

        Args:
            messages: one conversation or several: dictionaries with ``role`` and ``content``, oldest first.
            sampling_params: as in :meth:`generate`.
            use_tqdm: as in :meth:`generate`.
            chat_template: a template in place of the model's own.
            add_generation_prompt: end the prompt where an answer begins.
            continue_final_message: go on with the last message instead of answering it.
            tools: described to the model, if its template does.
            chat_template_kwargs: further arguments of the template.
            cache_salt: only conversations with the same salt share cached blocks.
            timeout: as in :meth:`generate`.

        Returns:
            one output for each conversation.
        """
        with self._one_user.call():
            several = conversations(messages)
            prompts: list[Prompt] = []
            for number, conversation in enumerate(several):
                with _naming("conversation", number, len(several)):
                    prompt = self.chat_prompt(
                        conversation,
                        chat_template=chat_template,
                        add_generation_prompt=add_generation_prompt,
                        continue_final_message=continue_final_message,
                        tools=tools,
                        **(chat_template_kwargs or {}),
                    )
                prompts.append(prompt if cache_salt is None else prompt | {"cache_salt": cache_salt})
            return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, timeout=timeout)

    def chat_prompt(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **template_arguments: Any
    ) -> dict[str, Any]:
        """The prompt that :meth:`chat` makes of one conversation, for :meth:`generate` and :meth:`stream`."""
        return rendered(
            messages,
            self.llm_engine.tokenizer,
            add_generation_prompt=add_generation_prompt,
            **template_arguments,
        )

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: Params = None,
        *,
        timeout: Timeout = None,
    ) -> Generator[RequestOutput, None, None]:
        """Complete prompts and yield outputs while they grow; ``prompt_index`` says which prompt is meant.

        What an output carries is decided by ``SamplingParams.output_kind``. Nothing is computed before the
        first output is asked for. Leaving early aborts what has not ended. On Ctrl-C the last outputs, with
        what was written, come before KeyboardInterrupt.

        Args:
            prompts: as in :meth:`generate`.
            sampling_params: as in :meth:`generate`.
            timeout: as in :meth:`generate`, from the first output that is asked for.
        """
        with self._one_user.call():
            requests = self._paired(listed(prompts), sampling_params)
            return self._run(requests, listed_timeouts(timeout, len(requests)))

    def abort(self, request_ids: str | Iterable[str]) -> None:
        """End requests of calls and streams that go on; each gets its last output, with the reason ``abort``.

        May be called at any moment, from within a step and from another thread: while a step runs, or another
        thread has the LLM, it takes effect when the step is over. Ids that name nothing, or nothing any more,
        are passed over.

        Args:
            request_ids: ``request_id`` of outputs.
        """
        names = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        self._one_user.end(object(), names)

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams
    ) -> list[BeamSearchOutput]:
        """The likeliest texts for each prompt, as ``generate(num_beams=k)`` of transformers finds them.

        Args:
            prompts: as in :meth:`generate`.
            params: how to search.

        Returns:
            one output for each prompt, in the order of the prompts, with ``beam_width`` texts, best first.

        Raises:
            RequestError: a prompt is refused; nothing was computed.
            EngineError: an unfinished :meth:`stream` has requests, or the pool is too small for one search.
        """
        engine = self.llm_engine
        with self._one_user.call():
            token_prompts = [tokenized(prompt, engine.tokenizer) for prompt in listed(prompts)]
            search = engine.beam_search(token_prompts, params)
            try:
                running = True
                while running:
                    with DeferredInterrupt():
                        running = search.step()
            finally:
                with DeferredInterrupt():
                    search.close()
        return [
            BeamSearchOutput([self._beam(prompt.token_ids, beam) for beam in beams])
            for prompt, beams in zip(token_prompts, search.finished, strict=True)
        ]

    def _beam(self, prompt_ids: Sequence[int], beam: FinishedBeam) -> BeamSearchSequence:
        output_ids, tokenizer = list(beam.token_ids), self.llm_engine.tokenizer
        shown = output_ids[:-1] if beam.finish_reason == "stop" else output_ids
        text = (
            decode_output(tokenizer, list(prompt_ids), shown, skip_special_tokens=True) if tokenizer else ""
        )
        return BeamSearchSequence(
            [*prompt_ids, *output_ids], beam.cum_logprob, beam.score, text, beam.finish_reason
        )

    def validate(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> None:
        """Raise what :meth:`generate` would raise for this prompt, and change nothing."""
        (params,) = one_for_each(sampling_params, 1)
        self.llm_engine.check(tokenized(prompt, self.llm_engine.tokenizer), params)

    def _paired(
        self, prompts: list[Prompt], sampling_params: Params
    ) -> list[tuple[TokenPrompt, SamplingParams]]:
        """Each prompt with its parameters, all of them checked."""
        params = one_for_each(sampling_params, len(prompts))
        pairs = []
        for number, (prompt, param) in enumerate(zip(prompts, params, strict=True)):
            with _naming("prompt", number, len(prompts)):
                pair = tokenized(prompt, self.llm_engine.tokenizer), param
                self.llm_engine.check(*pair)
            pairs.append(pair)
        return pairs

    def _run(
        self,
        requests: list[tuple[TokenPrompt, SamplingParams]],
        timeouts: Sequence[float | None],
        priorities: Sequence[int] = (),
    ) -> Generator[RequestOutput, None, None]:
        """Submit requests and drive the engine until they have ended."""
        call = object()
        box: deque[RequestOutput] = deque()
        index_of: dict[str, int] = {}
        try:
            with self._one_user.inside(call):
                for index, (prompt, params) in enumerate(requests):
                    name = str(next(self._ids))
                    priority = priorities[index] if priorities else 0
                    self.llm_engine.add_request(
                        name, prompt, params, priority=priority, timeout=timeouts[index]
                    )
                    index_of[name] = index
                    self._boxes[name] = box
            unfinished = len(requests)
            while unfinished:
                if not box:
                    with self._one_user.inside(call):
                        self._deliver(self.llm_engine.step())
                if not box and not self.llm_engine.has_unfinished_requests():
                    raise EngineError(
                        f"{unfinished} requests were ended and their last outputs taken by somebody else: use"
                        " LLM.abort, which leaves the outputs to the call that waits for them"
                    )
                for output in _taken(box, index_of):
                    unfinished -= output.finished
                    yield output
        except KeyboardInterrupt:
            with self._one_user.inside(call):
                self._deliver(self.llm_engine.abort_request(index_of))
            yield from _taken(box, index_of)
            raise
        finally:
            self._one_user.end(call, index_of)
            for name in index_of:
                self._boxes.pop(name, None)

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        """Put each output where the call that asked for it looks, unless that call has ended."""
        for output in outputs:
            if (box := self._boxes.get(output.request_id)) is not None:
                box.append(output)

    def _abort(self, names: Iterable[str]) -> None:
        self._deliver(self.llm_engine.abort_request(names))


@contextmanager
def _naming(what: str, number: int, total: int) -> Iterator[None]:
    """Have a refusal say which of several it means."""
    try:
        yield
    except RequestError as error:
        if total == 1:
            raise
        raise RequestError(f"{what} {number} of {total} (from 0): {error}") from None


def _taken(box: deque[RequestOutput], index_of: Mapping[str, int]) -> Iterator[RequestOutput]:
    while box:
        output = box.popleft()
        output.prompt_index = index_of[output.request_id]
        yield output


def _progress_bar(total: int, *, shown: bool) -> Any:
    from tqdm import tqdm  # comes with transformers

    return tqdm(
        total=total, desc="Processed prompts", unit="prompt", disable=not (shown and sys.stderr.isatty())
    )
