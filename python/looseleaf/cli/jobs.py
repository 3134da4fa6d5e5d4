"""From what the command line was given to what the engine takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from looseleaf.cli.prompts import BadPrompt, Prompt
from looseleaf.cli.results import Refused
from looseleaf.engine.prompts import parted
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.errors import LooseleafError, RequestError

if TYPE_CHECKING:
    from looseleaf.engine.llm import LLM

# Sampling fields that only the model can judge.
_STOPS = {"stop", "stop_token_ids"}


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt and how to sample it.

    Attributes:
        index: its place among all prompts, from 0.
        prompt: as it was given.
        params: valid.
    """

    index: int
    prompt: Prompt
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class EngineJob:
    """A job that the engine has agreed to.

    Attributes:
        job: what it was.
        request: the prompt as :meth:`looseleaf.LLM.stream` takes it.
    """

    job: Job
    request: dict[str, Any]


def with_params(
    entries: Sequence[Prompt | BadPrompt], flags: dict[str, Any]
) -> tuple[list[Job], list[Refused]]:
    """Give each prompt its sampling parameters, and check all that can be checked without the model.

    Args:
        entries: in order.
        flags: sampling fields for all prompts; a prompt's own fields win.

    Raises:
        LooseleafError: the flags themselves are at fault, and no prompt is.
    """
    complaint = _complaint(flags)
    jobs: list[Job] = []
    refused: list[Refused] = []
    for index, entry in enumerate(entries):
        if isinstance(entry, BadPrompt):
            refused.append(Refused(index, entry))
            continue
        if not entry.content:  # a chat template would make a prompt even of this
            refused.append(Refused(index, BadPrompt(entry.source, "the prompt is empty")))
            continue
        try:
            parted(_request(entry))
            jobs.append(Job(index, entry, SamplingParams(**flags | entry.sampling)))
        except LooseleafError as error:
            if str(error) == complaint:
                raise
            refused.append(Refused(index, BadPrompt(entry.source, str(error))))
    return jobs, refused


def for_engine(
    llm: LLM, jobs: Sequence[Job], *, chat: bool | None, system: str | None
) -> tuple[list[EngineJob], list[Refused]]:
    """Render each prompt and have the engine check it.

    Args:
        llm: the model.
        jobs: what to run.
        chat: put text into the model's chat template; None does so if the model has one, or ``system`` is
            given.
        system: what the model is told before each prompt of a chat.

    Raises:
        RequestError: what was asked for all prompts does not suit the model.
    """
    has_template = bool(getattr(llm.get_tokenizer(), "chat_template", None))
    if chat is None:
        chat = system is not None or has_template
    if chat and not has_template and any(isinstance(job.prompt.content, str) for job in jobs):
        raise RequestError(
            "the model has no chat template: leave out --chat and --system to have it continue the bare text"
        )
    agreed: list[EngineJob] = []
    refused: list[Refused] = []
    for job in jobs:
        if not _STOPS & job.prompt.sampling.keys():
            llm.llm_engine.check_params(job.params)  # the flags' own
        try:
            request = _rendered(llm, job.prompt, chat=chat, system=system)
            llm.validate(request, job.params)
        except RequestError as error:
            refused.append(Refused(job.index, BadPrompt(job.prompt.source, str(error))))
        else:
            agreed.append(EngineJob(job, request))
    return agreed, refused


def _complaint(flags: dict[str, Any]) -> str | None:
    """What is wrong with the flags alone."""
    try:
        SamplingParams(**flags)
    except LooseleafError as error:
        return str(error)
    return None


def _request(prompt: Prompt) -> dict[str, Any]:
    """The prompt as the engine takes it where there is no chat."""
    key = "prompt" if isinstance(prompt.content, str) else "prompt_token_ids"
    salt = {} if prompt.cache_salt is None else {"cache_salt": prompt.cache_salt}
    return {key: prompt.content} | salt


def _rendered(llm: LLM, prompt: Prompt, *, chat: bool, system: str | None) -> dict[str, Any]:
    request = _request(prompt)
    if not chat or not isinstance(prompt.content, str):
        return request
    messages = [] if system is None else [{"role": "system", "content": system}]
    return request | llm.chat_prompt([*messages, {"role": "user", "content": prompt.content}])
