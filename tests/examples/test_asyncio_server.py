"""The asyncio server, run for real: many clients, few blocks, some who leave, a model that breaks."""

from __future__ import annotations

import asyncio
import random
import threading

import numpy as np
import pytest
from asyncio_server import MadeUpModel, Server, client, main, next_token, running

from looseleaf.errors import NeverFitsError

NUM_BLOCKS, BLOCK_SIZE = 13, 4
SYSTEM_PROMPT = [7, 7, 3, 1, 9, 2]


def expected(prompt: list[int], num_tokens: int) -> list[int]:
    """What a client must get, from the text alone."""
    text = list(prompt)
    for _ in range(num_tokens):
        text.append(next_token(np.array(text)))
    return text[len(prompt) :]


def make_server(**options: int) -> Server:
    return Server(MadeUpModel(NUM_BLOCKS, BLOCK_SIZE), NUM_BLOCKS, BLOCK_SIZE, **options)


def assert_empty(server: Server) -> None:
    server.manager.check_invariants()
    assert (server.waiting, server.running, server.streams) == (type(server.waiting)(), [], {})
    assert (server.manager.num_open, server.manager.stats()["steps_in_flight"]) == (0, 0)
    assert server.pool.num_free == server.pool.num_usable


def random_prompt(choose: random.Random) -> list[int]:
    own = [choose.randrange(50) for _ in range(choose.randint(1, 12))]
    return SYSTEM_PROMPT + own if choose.random() < 0.5 else own


@pytest.mark.parametrize("seed", range(3))
def test_many_clients_with_few_blocks_all_get_their_own_text(seed):
    choose = random.Random(seed)

    async def visit(server: Server) -> None:
        await asyncio.sleep(choose.random() * 0.05)
        prompt, max_tokens = random_prompt(choose), choose.randint(1, 20)
        patience = choose.choice([99, 99, 1, 5])
        answer = await client(server, prompt, max_tokens, patience)
        assert answer == expected(prompt, min(max_tokens, patience))

    async def serve() -> Server:
        async with running(make_server(max_num_seqs=6, max_num_batched_tokens=16)) as server:
            await asyncio.gather(*(visit(server) for _ in range(60)))
        return server

    server = asyncio.run(serve())
    assert_empty(server)
    counts = server.manager.stats()
    assert counts["preemptions"] > 0
    assert counts["prefix_hits"] > 0


def test_clients_that_are_cut_off_in_any_state_leave_nothing_behind():
    choose = random.Random(4)
    outcomes: list[object] = []

    async def serve() -> Server:
        async with running(make_server(max_num_seqs=3, max_num_batched_tokens=4)) as server:
            for _ in range(20):
                prompts = [random_prompt(choose) for _ in range(6)]
                tasks = [asyncio.create_task(client(server, prompt, 20, 99)) for prompt in prompts]
                await asyncio.sleep(choose.random() * 0.01)
                for task in tasks[1:]:
                    task.cancel()
                assert await tasks[0] == expected(prompts[0], 20)
                outcomes.extend(await asyncio.gather(*tasks, return_exceptions=True))
        return server

    assert_empty(asyncio.run(serve()))
    assert sum(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes) > 10


def test_a_client_that_leaves_while_a_step_runs_gets_no_more_and_holds_up_nobody():
    async def serve() -> Server:
        async with running(make_server()) as server:
            compute, entered, left = server.model.forward, asyncio.Event(), threading.Event()
            loop = asyncio.get_running_loop()

            def wait_for_the_client_to_leave(step, arrays):
                if step.num_rows == 2:
                    loop.call_soon_threadsafe(entered.set)
                    assert left.wait(timeout=60)
                return compute(step, arrays)

            server.model.forward = wait_for_the_client_to_leave
            goes = asyncio.create_task(client(server, [1, 2, 3], 8, 99))
            stays = asyncio.create_task(client(server, [5, 6], 8, 99))
            await entered.wait()
            goes.cancel()
            await asyncio.wait([goes])
            in_use = server.pool.num_usable - server.pool.num_free
            left.set()
            assert in_use == 2, "the step may still write to the block of who left"
            assert await stays == expected([5, 6], 8)
        return server

    assert_empty(asyncio.run(serve()))


def test_a_model_that_raises_ends_the_requests_of_that_step_alone():
    async def serve() -> Server:
        async with running(make_server(max_num_seqs=2)) as server:
            compute = server.model.forward

            def fail_once(step, arrays):
                server.model.forward = compute
                raise FloatingPointError("not a number")

            server.model.forward = fail_once
            prompts = [[n, n, n] for n in range(4)]
            answers = await asyncio.gather(
                *(client(server, prompt, 6, 99) for prompt in prompts), return_exceptions=True
            )
            assert [type(answer) for answer in answers[:2]] == [FloatingPointError] * 2
            assert answers[2:] == [expected(prompt, 6) for prompt in prompts[2:]]
        return server

    assert_empty(asyncio.run(serve()))


def test_a_prompt_that_can_never_fit_is_refused_at_once():
    async def serve() -> Server:
        async with running(make_server()) as server:
            with pytest.raises(NeverFitsError, match="max_model_len"):
                await client(server, [1] * 48, 1, 99)
            # 47 tokens fit, and one more ends the text, whatever was asked for.
            assert await client(server, [1] * 47, 9, 99) == expected([1] * 47, 1)
        return server

    assert_empty(asyncio.run(serve()))


def test_the_script_prints_a_line_for_each_client(capsys):
    asyncio.run(main())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 13
    assert "num_free=32" in lines[-1]
