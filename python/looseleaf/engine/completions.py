"""From a request's tokens to what is handed out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from looseleaf.engine.detokenizer import Tokenizer, decode_output
from looseleaf.engine.outputs import CompletionOutput, FinishReason, RequestOutput
from looseleaf.engine.request import Request
from looseleaf.engine.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from looseleaf._core import KVCacheManager


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ends.

    Attributes:
        finish_reason: as in :class:`CompletionOutput`.
        stop_reason: likewise.
        by_token: whether its last token is one that ends a text, and so is no part of it.
        error: why, for the reason ``error``.
    """

    finish_reason: FinishReason
    stop_reason: int | str | None = None
    by_token: bool = False
    error: str | None = None


class Completions:
    """Makes outputs of requests.

    Args:
        manager: knows the tokens.
        tokenizer: None where no text is made.
    """

    def __init__(self, manager: KVCacheManager, tokenizer: Tokenizer | None) -> None:
        self._manager = manager
        self._tokenizer = tokenizer

    def progress(self, request: Request) -> RequestOutput:
        """The output of a request that goes on: everything so far, or with ``DELTA`` what is new."""
        prompt_ids, output_ids = self._token_ids(request)
        text = ""
        if request.detokenizer is not None:
            delta = request.params.output_kind is RequestOutputKind.DELTA
            text = request.detokenizer.new() if delta else request.detokenizer.shown()
        return self._output(request, prompt_ids, self._unreported(request, output_ids), text, None)

    def final(self, request: Request, ending: Ending) -> RequestOutput:
        """The last output of a request, whose sequence is still open."""
        prompt_ids, output_ids = self._token_ids(request)
        if request.detokenizer is not None:
            delta = request.params.output_kind is RequestOutputKind.DELTA
            text = request.detokenizer.new(finished=True) if delta else request.detokenizer.text
        elif self._tokenizer is not None and request.params.detokenize:
            hidden = ending.by_token and not request.params.include_stop_str_in_output
            text = decode_output(
                self._tokenizer,
                prompt_ids,
                output_ids[:-1] if hidden else output_ids,
                skip_special_tokens=request.params.skip_special_tokens,
            )
        else:
            text = ""
        return self._output(request, prompt_ids, self._unreported(request, output_ids), text, ending)

    def unwritten(self, request: Request, first: RequestOutput, ending: Ending) -> RequestOutput:
        """The output of a sample that ends before it had a sequence, beside that of the ``first`` one."""
        return self._output(request, first.prompt_token_ids, [], "", ending)

    def _token_ids(self, request: Request) -> tuple[list[int], list[int]]:
        token_ids = self._manager.tokens(request.handle)
        prompt_len = len(token_ids) - self._manager.output_len(request.handle)
        return token_ids[:prompt_len], token_ids[prompt_len:]

    def _unreported(self, request: Request, output_ids: list[int]) -> list[int]:
        if request.params.output_kind is not RequestOutputKind.DELTA:
            return output_ids
        unreported = output_ids[request.num_reported :]
        request.num_reported = len(output_ids)
        return unreported

    def _output(
        self, request: Request, prompt_ids: list[int], token_ids: list[int], text: str, ending: Ending | None
    ) -> RequestOutput:
        completion = CompletionOutput(
            index=0,
            text=text,
            token_ids=token_ids,
            finish_reason=ending.finish_reason if ending else None,
            stop_reason=ending.stop_reason if ending else None,
        )
        return RequestOutput(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=prompt_ids,
            outputs=[completion],
            finished=ending is not None,
            num_cached_tokens=request.num_cached_tokens,
            error=ending.error if ending else None,
        )
