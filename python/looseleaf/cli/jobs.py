"""From what the command line was given to what the engine takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from looseleaf.cli.prompts import BadPrompt, Prompt
from looseleaf.cli.results import Refused
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.errors import LooseleafError, RequestError

if TYPE_CHECKING:
    from looseleaf.engine.llm import LLM


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
    """Give each prompt its sampling parameters; its own fields win over the flags."""
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
            jobs.append(Job(index, entry, SamplingParams(**flags | entry.sampling)))
        except LooseleafError as error:
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
    """
    if chat is None:
        chat = system is not None or bool(getattr(llm.get_tokenizer(), "chat_template", None))
    agreed: list[EngineJob] = []
    refused: list[Refused] = []
    for job in jobs:
        try:
            request = _rendered(llm, job.prompt, chat=chat, system=system)
            llm.validate(request, job.params)
        except RequestError as error:
            refused.append(Refused(job.index, BadPrompt(job.prompt.source, str(error))))
        else:
            agreed.append(EngineJob(job, request))
    return agreed, refused


def _rendered(llm: LLM, prompt: Prompt, *, chat: bool, system: str | None) -> dict[str, Any]:
    request: dict[str, Any]
    if not isinstance(prompt.content, str):
        request = {"prompt_token_ids": prompt.content}
    elif chat:
        messages = [] if system is None else [{"role": "system", "content": system}]
        request = llm.chat_prompt([*messages, {"role": "user", "content": prompt.content}])
    else:
        request = {"prompt": prompt.content}
    return request if prompt.cache_salt is None else request | {"cache_salt": prompt.cache_salt}
