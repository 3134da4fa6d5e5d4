"""Several outputs of one request: each is a request of its own that forks off when the prompt is computed."""

from __future__ import annotations

from looseleaf.engine.outputs import CompletionOutput, RequestOutput
from looseleaf.engine.sampling_params import RequestOutputKind


class SampleGroup:
    """Puts the outputs of the samples of one request together.

    Args:
        num_samples: how many there are.
        output_kind: with ``FINAL_ONLY`` one output carries all texts when the last has ended; else each
            carries the one text that grew, and the last of them says that the request is finished.
    """

    def __init__(self, num_samples: int, output_kind: RequestOutputKind) -> None:
        self._unfinished = num_samples
        self._together = output_kind is RequestOutputKind.FINAL_ONLY
        self._ended: dict[int, CompletionOutput] = {}
        self._error: str | None = None

    def collect(self, index: int, output: RequestOutput) -> RequestOutput | None:
        """Take a sample's output; returns what is handed out, None if that must wait for others."""
        (completion,) = output.outputs
        completion.index = index
        if completion.finished():
            self._unfinished -= 1
            self._ended[index] = completion
            self._error = self._error or output.error
        output.finished = not self._unfinished
        output.error = self._error if output.finished else None
        if not self._together:
            return output
        if not output.finished:
            return None
        output.outputs = [self._ended[index] for index in sorted(self._ended)]
        return output
