"""One pool under eight Python threads, and managers on several threads over one pool.

A shared list stands for the contents of the blocks. Whoever holds a block looks there: what it wrote, or what
the hash under which it found the block promises, must still be there when it lets go.
"""

from __future__ import annotations

import random
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from field_cases.made_up_server import MadeUpServer, text_after
from looseleaf import BlockHasher, BlockKeys, BlockList, BlockPool, errors

NUM_THREADS = 8
NUM_USABLE = 24
CHAIN = 5


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    """Under a global lock, let threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def run_in_threads(works: list[Callable[[], None]]) -> None:
    """Run each on a thread of its own, all from the same instant; raise what one of them raised."""
    start, failures = threading.Barrier(len(works)), []

    def run(work: Callable[[], None]) -> None:
        start.wait()
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


class Worker:
    """Takes, publishes, finds and gives back blocks at random, and checks the contents of all it holds."""

    def __init__(self, pool: BlockPool, contents: list[object], chains: list[BlockKeys], seed: int) -> None:
        self.pool, self.contents, self.chains = pool, contents, chains
        self.choose = random.Random(seed)
        self.held: list[tuple[BlockList, list[object]]] = []
        self.counts: Counter[str] = Counter()

    def work(self) -> None:
        for _ in range(1500):
            self.choose.choice(
                [self.allocate, self.publish, self.match, self.admit, self.share, self.release]
            )()
            while len(self.held) > 4:
                self.release()
        while self.held:
            self.release()

    def hold(self, blocks: BlockList, known: list[object]) -> None:
        """Note blocks, of which the first have known contents and the others are ours to write."""
        ids = blocks.ids
        assert [self.contents[block] for block in ids[: len(known)]] == known
        mine = [object() for _ in ids[len(known) :]]
        for block, content in zip(ids[len(known) :], mine, strict=True):
            self.contents[block] = content
        self.held.append((blocks, known + mine))

    def allocate(self) -> None:
        blocks = self.pool.try_allocate(self.choose.randint(1, 6))
        if blocks is None:
            self.counts["refused"] += 1
        else:
            self.hold(blocks, [])

    def publish(self) -> None:
        """Write a chain into fresh blocks, then let others find it."""
        keys = self.choose.choice(self.chains)
        blocks = self.pool.try_allocate(len(keys))
        if blocks is None:
            return
        content = [keys[i] for i in range(len(keys))]
        for block, key in zip(blocks, content, strict=True):
            self.contents[block] = key
        for block, key in zip(blocks, content, strict=True):
            self.counts[self.pool.publish(block, key)] += 1
        self.hold(blocks, content)

    def match(self) -> None:
        keys = self.choose.choice(self.chains)
        blocks = self.pool.match_prefix(keys)
        self.counts["hits"] += len(blocks)
        self.hold(blocks, [keys[i] for i in range(len(blocks))])

    def admit(self) -> None:
        keys = self.choose.choice(self.chains)
        try:
            blocks, num_hits = self.pool.admit(keys, self.choose.randint(0, 4))
        except errors.OutOfBlocksError:
            self.counts["refused"] += 1
        else:
            self.counts["hits"] += num_hits
            self.hold(blocks, [keys[i] for i in range(num_hits)])

    def share(self) -> None:
        if self.held:
            blocks, content = self.choose.choice(self.held)
            self.held.append((blocks.share(), content))

    def release(self) -> None:
        if not self.held:
            return
        blocks, content = self.held.pop(self.choose.randrange(len(self.held)))
        assert [self.contents[block] for block in blocks] == content
        if self.choose.random() < 0.5:
            blocks.release()
        else:
            self.pool.release(blocks.into_ids()[::-1])


@pytest.mark.parametrize("policy", ["first_wins", "keep_all"])
def test_no_thread_finds_its_blocks_changed_and_all_are_free_in_the_end(policy):
    pool = BlockPool(NUM_USABLE + 1, duplicate_policy=policy)
    contents: list[object] = [None] * pool.num_blocks
    chains = [BlockHasher(1).hash_blocks([number] * CHAIN) for number in range(4)]
    workers = [Worker(pool, contents, chains, seed) for seed in range(NUM_THREADS)]
    run_in_threads([worker.work for worker in workers])
    assert pool.num_free == NUM_USABLE
    assert sorted(pool.free_order()) == list(range(1, NUM_USABLE + 1))
    pool.check_invariants()
    counts = sum((worker.counts for worker in workers), Counter())
    assert min(counts["refused"], counts["hits"], counts["cached"]) > 0
    assert counts["duplicate"] > 0 or policy == "keep_all"
    assert pool.stats()["evictions"] > 0


def test_managers_on_several_threads_share_one_pool_and_each_finds_what_others_wrote():
    first = MadeUpServer(40)
    servers = [first, *(MadeUpServer(40, beside=first) for _ in range(NUM_THREADS - 1))]

    def serve(server: MadeUpServer, seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(25):
            prompt = [choose.randrange(3)] * 8 + [choose.randrange(100) for _ in range(choose.randint(1, 6))]
            num_tokens = choose.randint(1, 6)
            handle = server.manager.open(prompt, max_tokens=num_tokens)
            server.manager.admit(handle)
            while server.manager.finish_reason(handle) is None:
                step, num_samples = server.prepare()
                server.manager.commit_step(step, server.compute(num_samples))
            assert server.manager.tokens(handle) == prompt + text_after(prompt, num_tokens)
            server.manager.close(handle)

    run_in_threads([lambda at=at: serve(servers[at], at) for at in range(NUM_THREADS)])
    for server in servers:
        server.assert_empty()
    assert sum(server.manager.stats()["prefix_hits"] for server in servers) > 0
    assert first.pool.stats()["evictions"] > 0


@pytest.mark.skipif(
    not sysconfig.get_config_var("Py_GIL_DISABLED"),
    reason="built for, not tested here: no free-threaded build",
)
def test_a_free_threaded_interpreter_stays_so():
    assert not sys._is_gil_enabled()  # type: ignore[attr-defined]
