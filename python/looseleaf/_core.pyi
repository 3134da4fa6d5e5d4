"""The compiled part of looseleaf. Blocks are numbers; handles are integers that name open sequences."""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import ClassVar, Literal, Self, SupportsIndex, final, overload

from typing_extensions import Buffer

__all__ = [
    "AllBlocksCleared",
    "BlockHasher",
    "BlockKeys",
    "BlockList",
    "BlockPool",
    "BlockRemoved",
    "BlockSnapshot",
    "BlockStored",
    "CpuAttention",
    "ExtraKey",
    "FinishedRow",
    "GroupSpec",
    "KVCacheManager",
    "LayerSpec",
    "PrefixMatch",
    "RunningOutcome",
    "StepInfo",
    "__version__",
]

__version__: str

_TokenIds = Sequence[int] | Buffer
_HashAlgo = Literal["sha256_cbor", "sha256", "blake3", "xxh3"]
_FinishReason = Literal["eos", "stop_token", "length"]
_DType = Literal["float32", "float16", "bfloat16", "fp8_e4m3"]

@final
class BlockList:
    """References to blocks that are given back exactly once, tail first: by ``release()``, at the end of a
    ``with`` block, or when the last Python reference goes away."""

    @property
    def ids(self) -> list[int]: ...
    def release(self) -> None: ...
    def into_ids(self) -> list[int]: ...
    def share(self) -> BlockList: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: type[BaseException] | BaseException | TracebackType | None) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> int: ...
    def __iter__(self) -> Iterator[int]: ...

@final
class BlockKeys:
    """Hashes of consecutive blocks, kept as the pool reads them: calls that take it copy nothing.

    Args:
        keys: hashes computed elsewhere, all of 32 or all of 16 bytes.

    Raises:
        InvalidConfigError: a hash has another length.
    """

    def __new__(cls, keys: Sequence[bytes]) -> Self: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: SupportsIndex, /) -> bytes: ...
    @overload
    def __getitem__(self, index: slice, /) -> BlockKeys: ...
    def __iter__(self) -> Iterator[bytes]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class ExtraKey:
    """Something beside the tokens that a block's keys and values depend on, and that goes into its hash: an
    adapter, a media item, or embeddings. The kinds are tagged, so equal values of two kinds differ."""

    @staticmethod
    def lora(name: str, path: str) -> ExtraKey:
        """An adapter, for the whole sequence. The name must tell two versions of it apart."""

    @staticmethod
    def media(identifier: str, start: int, length: int) -> ExtraKey:
        """A media item in place of ``length`` tokens from position ``start`` on.

        Raises:
            InvalidConfigError: ``length`` is 0.
        """

    @staticmethod
    def embeds(
        sha256: bytes, dtype: str, shape: Sequence[int], mask: bytes, start: int, length: int
    ) -> ExtraKey:
        """Embeddings in place of tokens, in ``length`` positions from ``start`` on: one block, or a part.

        Args:
            sha256: digest of the raw bytes of the block's slice, 32 bytes.
            dtype: element type, such as ``"bfloat16"``.
            shape: shape of the block's slice.
            mask: one byte per position of the block, 1 where an embedding stands.

        Raises:
            InvalidConfigError: ``length`` is 0.
        """

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

_Keys = Sequence[bytes] | BlockKeys
_BlockIds = Sequence[int] | Buffer | BlockList

@final
class BlockHasher:
    """Computes the chained hashes of a sequence's full blocks.

    Args:
        block_size: tokens per block.
        hash_algo: ``"sha256_cbor"`` (``"sha256"`` means the same) equals vLLM's ``sha256_cbor`` bit for bit;
            ``"blake3"`` needs ``hash_key``; ``"xxh3"`` only where all users trust each other.
        hash_key: 32 secret bytes for ``"blake3"``.
        hash_seed: start of every chain; vLLM's fixed one if not given.

    Raises:
        InvalidConfigError: a value is not allowed.
    """

    def __new__(
        cls,
        block_size: int,
        *,
        hash_algo: _HashAlgo = "sha256_cbor",
        hash_key: bytes | None = None,
        hash_seed: str | None = None,
    ) -> Self: ...
    def hash_blocks(
        self,
        token_ids: _TokenIds,
        *,
        parent: bytes | None = None,
        cache_salt: str | None = None,
        extra_keys: Sequence[ExtraKey] = ...,
    ) -> BlockKeys:
        """The hashes of all full blocks.

        Args:
            token_ids: tokens; those after the last full block are not hashed.
            parent: hash of the block before the first one, if the sequence began earlier.
            cache_salt: keeps sequences with another salt from finding these blocks; empty is none.
            extra_keys: positions count from the first of ``token_ids``.
        """

@final
class BlockStored:
    """A hash became resident: from now on it can be hit.

    ``parent_block_hash`` is that of the block before it in the sequence, ``None`` for the first block or if
    the publisher did not say. ``token_ids`` is empty if it did not say or the pool leaves tokens out.
    """

    @property
    def block_hash(self) -> bytes: ...
    @property
    def parent_block_hash(self) -> bytes | None: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def group_idx(self) -> int: ...

@final
class BlockRemoved:
    """The last block with that hash lost it."""

    @property
    def block_hash(self) -> bytes: ...
    @property
    def group_idx(self) -> int: ...

@final
class AllBlocksCleared:
    """No hash is resident but those stored from here on; ``resync`` says that earlier events are missing."""

    @property
    def resync(self) -> bool: ...

@final
class BlockPool:
    """A fixed set of equal blocks with reference counts and a hashed prefix cache; safe from many threads.

    Args:
        num_blocks: blocks, the null block included.
        reserve_null_block: keep block 0 back, so that padding has a block to name.
        free_order: ``"unhashed_first"`` is vLLM's order, ``"append_all"`` a plain queue.
        duplicate_policy: ``"first_wins"`` caches one block per hash, ``"keep_all"`` every copy, as vLLM does.
        key_bits: width of the block hashes, 128 or 256.
        event_capacity: events that can wait for ``drain_events``; 0 for none. If more happen between two
            calls, the second starts over: ``AllBlocksCleared``, then a ``BlockStored`` per resident hash.
        event_tokens: tokens of a block that its event carries, which is the block size; 0 to leave them out.
        verify_tokens: tokens of a block, if hits are to compare the tokens of the whole prefix beside its
            hash; 0 to trust the hash. Calls with ``keys`` then need ``token_ids``, the tokens of all their
            blocks; other pools ignore these. Extra keys and salts are compared as part of the hash only.

    Raises:
        InvalidConfigError: a value is not allowed.
    """

    def __new__(
        cls,
        num_blocks: int,
        *,
        reserve_null_block: bool = True,
        free_order: Literal["unhashed_first", "append_all"] = "unhashed_first",
        duplicate_policy: Literal["first_wins", "keep_all"] = "first_wins",
        key_bits: Literal[128, 256] = 256,
        event_capacity: int = 0,
        event_tokens: int = 0,
        verify_tokens: int = 0,
    ) -> Self: ...
    def allocate(self, n: int) -> BlockList: ...
    def try_allocate(self, n: int) -> BlockList | None: ...
    def allocate_into(self, row: Buffer) -> None: ...
    def release(self, ids: Sequence[int] | Buffer) -> None: ...
    def share(self, ids: _BlockIds) -> None: ...
    def publish(
        self, block_id: int, key: bytes, *, parent: bytes | None = None, token_ids: _TokenIds | None = None
    ) -> Literal["cached", "duplicate", "full"]: ...
    def publish_prefix(
        self, blocks: _BlockIds, keys: _Keys, start: int = 0, *, token_ids: _TokenIds | None = None
    ) -> int:
        """Publish ``blocks[start:]`` under ``keys[start:]``, once their keys and values are written.

        Returns:
            How many of them can be found now: not duplicates, nor those the index has no room for.

        Raises:
            PoolError: as ``publish``; nothing is published then.
            InvalidConfigError: there are fewer blocks than keys, ``start`` is behind the last key, or the
                pool verifies tokens and not all are given.
        """

    def retract(self, block_id: int) -> bool: ...
    def match_prefix(self, keys: _Keys, *, token_ids: _TokenIds | None = None) -> BlockList: ...
    def peek_prefix(self, keys: _Keys, *, token_ids: _TokenIds | None = None) -> tuple[int, int]: ...
    def admit(self, keys: _Keys, n: int, *, token_ids: _TokenIds | None = None) -> tuple[BlockList, int]: ...
    def admit_table(
        self, keys: _Keys, num_blocks: int, *, token_ids: _TokenIds | None = None
    ) -> tuple[BlockList, int]:
        """Take ``num_blocks`` blocks, all or none: the cached prefix of ``keys``, and new ones for the rest.

        Returns:
            The blocks in order, and how many of them are cached.

        Raises:
            OutOfBlocksError: fewer are free; nothing was taken.
            InvalidConfigError: the pool verifies tokens, and not all are given.
        """

    def ref_cnt(self, block_id: int) -> int: ...
    def is_writable(self, block_id: int) -> bool: ...
    def key_of(self, block_id: int) -> bytes | None: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def num_usable(self) -> int: ...
    @property
    def num_free(self) -> int: ...
    def snapshot(self) -> BlockSnapshot:
        """Every block's references and use, without stopping anybody: each entry is right by itself."""

    def free_order(self) -> list[int]: ...
    def stats(self) -> dict[str, int]: ...
    def reset_prefix_cache(self) -> None: ...
    def drain_events(self) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
        """What has changed in the set of cached hashes since the last call.

        Replaying all events gives the hashes that are resident. A hash that several blocks hold is stored
        with the first and removed with the last. No block comes before a parent that comes in the same call.

        Raises:
            ConcurrentUseError: another thread is in this call; none waits.
            InvalidConfigError: the pool was built with ``event_capacity`` 0.
        """

    def check_invariants(self) -> None: ...

@final
class BlockSnapshot:
    """What every block of a pool is used for, in order of id.

    Attributes:
        ref_cnt: int32 [num_blocks], references. Read-only; NumPy and torch read it in place.
        uses: uint8 [num_blocks], index into ``USES``: the null block; free; free and cached; held; held and
            cached.
    """

    USES: ClassVar[tuple[str, ...]]
    @property
    def ref_cnt(self) -> memoryview[int]: ...
    @property
    def uses(self) -> memoryview[int]: ...
    def __len__(self) -> int: ...

@final
class LayerSpec:
    """The cached keys and values of one attention layer.

    Args:
        kv_heads: key/value heads.
        head_size_k: numbers per key of one head.
        head_size_v: numbers per value of one head; like the key's if not given.
        dtype: format of each number.
        scale_bytes: bytes of quantisation scales stored with each token.
    """

    def __new__(
        cls,
        kv_heads: int,
        head_size_k: int,
        head_size_v: int | None = None,
        dtype: _DType = "bfloat16",
        scale_bytes: int = 0,
    ) -> Self: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_size_k(self) -> int: ...
    @property
    def head_size_v(self) -> int: ...
    @property
    def dtype(self) -> _DType: ...
    @property
    def scale_bytes(self) -> int: ...
    @property
    def bytes_per_token(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class GroupSpec:
    """Layers that share one block table.

    Args:
        layers: in the order in which a block stores them.
        block_size: tokens per block.
        kind: how the layers look back; ``"full"`` keeps every token.
        sliding_window: tokens that attention sees, where the model has a window; applied by mask.
    """

    def __new__(
        cls,
        layers: Sequence[LayerSpec],
        block_size: int = 16,
        *,
        kind: Literal["full"] = "full",
        sliding_window: int | None = None,
    ) -> Self: ...
    @property
    def layers(self) -> list[LayerSpec]: ...
    @property
    def block_size(self) -> int: ...
    @property
    def kind(self) -> Literal["full"]: ...
    @property
    def sliding_window(self) -> int | None: ...
    @property
    def bytes_per_token(self) -> int: ...
    @property
    def bytes_per_block(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class StepInfo:
    """What a prepared step contains."""

    @property
    def step(self) -> int: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_samples(self) -> int: ...
    @property
    def num_copies(self) -> int: ...
    @property
    def max_seq_len(self) -> int: ...
    @property
    def max_query_len(self) -> int: ...

@final
class FinishedRow:
    """A sequence that a step completed."""

    @property
    def handle(self) -> int: ...
    @property
    def row(self) -> int: ...
    @property
    def reason(self) -> Literal["eos", "stop_token", "length"]: ...

@final
class RunningOutcome:
    """How far ``schedule_running`` came.

    ``blocked`` is who could not grow, and the blocks it lacks; ``can_never_fit`` says that it needs more
    blocks than the pool has, so that no preemption of others can help.
    """

    @property
    def num_tokens_scheduled(self) -> int: ...
    @property
    def blocked(self) -> tuple[int, int] | None: ...
    @property
    def can_never_fit(self) -> bool: ...

@final
class PrefixMatch:
    """What an admission would find."""

    @property
    def num_cached_tokens(self) -> int: ...
    @property
    def free_hit_blocks(self) -> int: ...
    @property
    def new_blocks(self) -> int: ...

@final
class KVCacheManager:
    """Sequences, their block tables and the steps that compute them, over one pool.

    A manager has one user at a time: a second thread gets ``ConcurrentUseError`` and never waits.

    Args:
        pool: supplies the blocks.
        groups: what the blocks hold; all with the same block size.
        max_num_seqs: row slots, so sequences that can be admitted at once.
        max_model_len: most tokens of a sequence.
        max_num_batched_tokens: most tokens of a step.
        enable_prefix_caching: publish full blocks and look for them.
        hash_algo, hash_key, hash_seed: as for :class:`BlockHasher`.
        verify_tokens: compare the tokens of the whole prefix before a block is reused, and not only its hash.
            The pool must have been built with ``verify_tokens``, for this block size.
        max_steps_in_flight: steps that may be prepared before the oldest is committed, 1 or 2.

    Raises:
        InvalidConfigError: a value is not allowed.
    """

    def __new__(
        cls,
        pool: BlockPool,
        groups: Sequence[GroupSpec],
        *,
        max_num_seqs: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        enable_prefix_caching: bool = True,
        hash_algo: _HashAlgo = "sha256_cbor",
        hash_key: bytes | None = None,
        hash_seed: str | None = None,
        verify_tokens: bool = False,
        max_steps_in_flight: Literal[1, 2] = 1,
    ) -> Self: ...
    @property
    def pool(self) -> BlockPool: ...
    @property
    def block_size(self) -> int: ...
    @property
    def max_blocks_per_seq(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_open(self) -> int: ...
    def open(
        self,
        token_ids: _TokenIds,
        *,
        cache_salt: str | None = None,
        extra_keys: Sequence[ExtraKey] = ...,
        skip_reading_prefix_cache: bool = False,
        max_tokens: int | None = None,
        min_tokens: int = 0,
        eos_token_ids: _TokenIds | None = None,
        stop_token_ids: _TokenIds | None = None,
    ) -> int:
        """Open a sequence; it holds no blocks before ``admit``.

        Args:
            token_ids: the prompt, at least one token.
            cache_salt: sequences share cached blocks only within one salt; empty is none.
            extra_keys: what else its keys and values depend on.
            skip_reading_prefix_cache: compute every token, for callers that want the model's output at each.
                The blocks are cached for others as ever.
            max_tokens: most tokens to generate; as many as fit if not given.
            min_tokens: tokens to generate before an end-of-sequence or stop token counts.
            eos_token_ids, stop_token_ids: tokens that end the sequence.

        Returns:
            The sequence's handle.

        Raises:
            RequestError: the prompt is empty, ``max_tokens`` is 0 or a token id is out of range.
            NeverFitsError: the prompt is larger than the pool or leaves no room below ``max_model_len``.
        """

    def match_prefix(self, handle: int) -> PrefixMatch: ...
    def admit(self, handle: int, external_tokens: int = 0) -> int:
        """Give a sequence a row, its cached prefix, and blocks for all other known tokens; all or nothing.

        Args:
            handle: the sequence, without a row.
            external_tokens: tokens right after the cached prefix that the caller supplies: it fills their
                blocks and then calls :meth:`finish_load`. They count as computed from then on, and never as
                hits. Until then no step takes the sequence, and the blocks are neither found nor given to
                anybody, even if the sequence is preempted or closed.

        Returns:
            How many tokens need not be computed, ``external_tokens`` included.

        Raises:
            OutOfBlocksError: wait until blocks are free. NoFreeRowError: or a row.
            NeverFitsError: the sequence is larger than the pool.
            SequenceStateError: it has a row, has finished, or a load of an earlier admission has not ended.
            RequestError: ``external_tokens`` is negative, or would leave not even the last token to compute.
        """

    def finish_load(self, handle: int, num_tokens: int) -> bool:
        """Say that nothing fills the sequence's blocks any more.

        Args:
            handle: a sequence that was admitted with external tokens, be it closed by now.
            num_tokens: how many of these are there, from the first on; the others are computed.

        Returns:
            Whether the sequence still has the blocks. If not, they become free now.

        Raises:
            SequenceStateError: no load was going on. StaleHandleError: nor for a closed sequence.
            RequestError: more tokens than were to come.
        """

    def is_loading(self, handle: int) -> bool: ...
    def block_hashes(self, handle: int, first: int = 0) -> list[bytes]:
        """The hashes of a sequence's full blocks from index ``first`` on, as far as they are known.

        Those of its prompt, and of what it has computed; none without prefix caching.
        """

    def append(self, handle: int, k: int, draft_tokens: _TokenIds | None = None) -> None: ...
    def schedule_running(self, budget: int, chunk: int) -> RunningOutcome: ...
    def preempt(self, handle: int) -> list[int]: ...
    def bind(
        self,
        *,
        token_ids: Buffer,
        positions: Buffer,
        slot_mapping: Sequence[Buffer],
        block_tables: Sequence[Buffer],
        seq_lens: Buffer,
        cu_seqlens_q: Buffer,
        logits_indices: Buffer,
        sample_rows: Buffer,
        copies: Buffer,
        indptr: Buffer | None = None,
        indices: Sequence[Buffer] | None = None,
        last_page_len: Buffer | None = None,
    ) -> None:
        """Make these the arrays that ``prepare`` fills: in vLLM's form, and on demand also in FlashInfer's.

        Args:
            token_ids: int64 [max_num_batched_tokens]; −1 where a step in flight samples the token.
            positions: int64 [max_num_batched_tokens].
            slot_mapping: per group int64 [max_num_batched_tokens], block · block_size + offset; −1 pads.
            block_tables: per group int32 [max_num_seqs, max_blocks_per_seq], padded with the null block.
            seq_lens: int32 [max_num_seqs], tokens of each row once the step is written; 0 for rows not in it.
            cu_seqlens_q: int32 [max_num_seqs + 1], prefix sum of the rows' tokens.
            logits_indices: int64 [max_num_seqs], last token of each sampling row.
            sample_rows: int32 [max_num_seqs], the sampling rows.
            copies: int32 [max_num_seqs · groups, 2], blocks to copy before any write.
            indptr: int32 [max_num_seqs + 1], where each row's blocks begin in ``indices``. This array and the
                next two are FlashInfer's ``paged_kv_…``; they are written whole at every step, which costs
                more the longer the contexts are.
            indices: per group int32 [max_num_seqs · max_blocks_per_seq], the blocks of all rows without gaps.
            last_page_len: int32 [max_num_seqs], tokens in each row's last block; 0 for rows not in the step.

        Raises:
            InvalidBufferError: an array has the wrong dtype, is read-only, not contiguous, or shares memory
                with another one.
        """

    def prepare(self) -> StepInfo: ...
    def commit_step(self, step: int, sampled: Sequence[int] | Buffer) -> list[FinishedRow]: ...
    def commit(self, handle: int, accepted: int | _TokenIds) -> _FinishReason | None: ...
    def fail_step(self, step: int) -> list[int]: ...
    def fork(self, handle: int, n: int) -> list[int]: ...
    def truncate(self, handle: int, num_tokens: int) -> None: ...
    def close(self, handle: int) -> list[int]: ...
    def push_token(self, handle: int, token: int) -> _FinishReason | None: ...
    def tokens(self, handle: int) -> list[int]: ...
    def num_tokens(self, handle: int) -> int: ...
    def num_computed_tokens(self, handle: int) -> int: ...
    def num_cached_tokens(self, handle: int) -> int: ...
    def output_len(self, handle: int) -> int: ...
    def block_ids(self, handle: int, group: int = 0) -> list[int]: ...
    def slots_of(self, handle: int, group: int = 0) -> list[int]: ...
    def copies(self) -> list[tuple[int, int]]: ...
    def row(self, handle: int) -> int | None: ...
    def finish_reason(self, handle: int) -> _FinishReason | None: ...
    def stats(self) -> dict[str, int]: ...
    def check_invariants(self) -> None: ...

@final
class CpuAttention:
    """Paged attention on the CPU over one cache, in place.

    No argument may be changed by others during a call. Calls run detached from the interpreter; from several
    threads, they may read at the same time but write one after the other.

    Args:
        cache: float32, or bfloat16 viewed as int16 or uint16,
            [num_blocks, num_layers, 2 · num_kv_heads · head_size · block_size], writable and contiguous.
        block_size: tokens per block, a multiple of ``GRAIN``.
        num_kv_heads: key and value heads of a layer.
        head_size: a multiple of ``GRAIN`` up to ``MAX_HEAD_SIZE``.
        num_threads: threads of a call, the calling one included; by default one for each processor.
        isa: "avx512", "avx2" or "portable"; by default the best this processor has.

    Raises:
        InvalidBufferError: the cache has the wrong dtype or shape, or is read-only.
        InvalidConfigError: a size is not supported, or the processor lacks the instructions.
    """

    GRAIN: ClassVar[int]
    MAX_HEAD_SIZE: ClassVar[int]
    def __new__(
        cls,
        cache: Buffer,
        *,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        num_threads: int | None = None,
        isa: Literal["avx512", "avx2", "portable"] | None = None,
    ) -> Self: ...
    @property
    def isa(self) -> Literal["avx512", "avx2", "portable"]: ...
    @property
    def num_threads(self) -> int: ...
    def write(self, layer: int, k: Buffer, v: Buffer, slot_mapping: Buffer) -> None: ...
    def attend(
        self,
        layer: int,
        q: Buffer,
        block_tables: Buffer,
        seq_lens: Buffer,
        cu_seqlens_q: Buffer,
        out: Buffer,
        *,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        sinks: Buffer | None = None,
    ) -> None: ...
    def copy_blocks(self, copies: Buffer) -> None: ...
