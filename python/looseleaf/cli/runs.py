"""Running jobs: the text of one while it grows, or whole texts in the order of the prompts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TextIO

from looseleaf.cli.interruptible import take_all
from looseleaf.cli.jobs import EngineJob
from looseleaf.cli.results import Answered, InOrder
from looseleaf.cli.terminal import LogHandler, Progress
from looseleaf.engine.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from looseleaf.engine.llm import LLM
    from looseleaf.engine.outputs import RequestOutput


@dataclass(slots=True)
class Tally:
    """How a run went.

    Attributes:
        num_finished: prompts whose text came to its end.
        num_failed: prompts that the engine had to give up.
        interrupted: whether Ctrl-C came before the end.
    """

    num_finished: int = 0
    num_failed: int = 0
    interrupted: bool = False

    def count(self, source: str, output: RequestOutput) -> None:
        """Count the last output of the request for ``source``, and report a failure."""
        reason = output.outputs[0].finish_reason
        if reason == "error":
            self.num_failed += 1
            print(f"looseleaf: {source}: {output.error}", file=sys.stderr)
        elif reason != "abort":
            self.num_finished += 1


def write_as_it_grows(llm: LLM, job: EngineJob, stream: TextIO) -> Tally:
    """Run one job and write its text piece by piece."""
    tally = Tally()

    def take(output: RequestOutput) -> None:
        stream.write(output.outputs[0].text)
        stream.flush()
        if output.finished:
            tally.count(job.job.prompt.source, output)

    params = replace(job.job.params, output_kind=RequestOutputKind.DELTA)
    tally.interrupted = not take_all(llm.stream(job.request, params), take)
    stream.write("\n")
    stream.flush()
    return tally


def write_in_order(llm: LLM, jobs: Sequence[EngineJob], results: InOrder, log: LogHandler) -> Tally:
    """Run many jobs; each text is written as soon as it and all before it are whole.

    Args:
        llm: the model.
        jobs: what to run.
        results: where texts go.
        log: where progress is shown, if that is a terminal.
    """
    tally = Tally()
    progress = Progress(log.stream, len(jobs))
    log.progress = progress

    def take(output: RequestOutput) -> None:
        job = jobs[output.prompt_index].job
        progress.clear()
        tally.count(job.prompt.source, output)
        results.add(Answered(job.index, job.prompt, output))
        progress.update(tally.num_finished, llm.llm_engine.stats.num_generation_tokens)

    # Only ends are asked for: the engine then spends no Python on tokens in between.
    params = [replace(job.job.params, output_kind=RequestOutputKind.FINAL_ONLY) for job in jobs]
    progress.update(0, 0)
    try:
        tally.interrupted = not take_all(llm.stream([job.request for job in jobs], params), take)
    finally:
        progress.clear()
    return tally
