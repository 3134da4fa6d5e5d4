//! The keys of one sequence's full blocks, each chained to the one before it.

use crate::{BlockHasher, BlockKey, ExtraKey};

/// An extra key and the tokens it belongs to. It goes into the hash of every block that has one of
/// them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpannedKey {
    /// What else the keys and values of these tokens depend on. The offset of a media item is
    /// worked out per block from `start`; what stands in it is ignored.
    pub key: ExtraKey,
    /// Position of the first token concerned.
    pub start: u32,
    /// Tokens concerned; `u32::MAX` for all that follow, generated ones included.
    pub len: u32,
}

impl SpannedKey {
    /// A key that concerns the whole sequence, such as an adapter's.
    pub fn everywhere(key: ExtraKey) -> Self {
        Self {
            key,
            start: 0,
            len: u32::MAX,
        }
    }

    fn end(&self) -> u32 {
        self.start.saturating_add(self.len)
    }

    fn overlaps(&self, start: u32, end: u32) -> bool {
        self.start < end && start < self.end()
    }

    fn in_block(&self, block_start: u32) -> ExtraKey {
        match &self.key {
            ExtraKey::Media { identifier, .. } => ExtraKey::Media {
                identifier: identifier.clone(),
                offset: i64::from(self.start) - i64::from(block_start),
            },
            key => key.clone(),
        }
    }

    /// Place among the extra keys of one block; the order is part of the hash.
    fn rank(&self) -> u8 {
        match self.key {
            ExtraKey::Lora { .. } => 0,
            ExtraKey::Media { .. } => 1,
            ExtraKey::Salt(_) => 2,
            ExtraKey::Embeds { .. } => 3,
        }
    }

    /// From which position on the key is the same in every block.
    fn settles_at(&self) -> u32 {
        match self.key {
            ExtraKey::Media { .. } => self.end(),
            _ if self.end() == u32::MAX => self.start,
            _ => self.end(),
        }
    }
}

/// The chain of keys, as far as it has been asked for.
#[derive(Clone, Debug)]
pub(crate) struct HashChain {
    /// Parent of the first block; `None` where a sequence begins.
    root: Option<BlockKey>,
    keys: Vec<BlockKey>,
    /// The same blocks' extra keys in short, if the hasher makes marks.
    marks: Vec<u64>,
    spans: Box<[SpannedKey]>,
    /// Blocks that begin here or later all have the extra keys `tail`, so that generating hashes
    /// without allocating.
    tail_from: u32,
    tail: Box<[ExtraKey]>,
}

impl HashChain {
    pub(crate) fn new(salt: Option<&str>, extra_keys: &[SpannedKey]) -> Self {
        let mut spans = extra_keys.to_vec();
        // An empty salt is no salt. The first block is enough: the chain carries it on.
        if let Some(salt) = salt.filter(|salt| !salt.is_empty()) {
            spans.push(SpannedKey {
                key: ExtraKey::Salt(salt.to_owned()),
                start: 0,
                len: 1,
            });
        }
        spans.sort_by_key(SpannedKey::rank);
        let tail_from = spans.iter().map(SpannedKey::settles_at).max().unwrap_or(0);
        let tail = spans
            .iter()
            .filter(|span| span.end() == u32::MAX)
            .map(|span| span.key.clone());
        Self {
            root: None,
            keys: Vec::new(),
            marks: Vec::new(),
            tail_from,
            tail: tail.collect(),
            spans: spans.into(),
        }
    }

    /// Goes on from a block that was hashed before; positions count from the block after it.
    fn after(mut self, root: Option<BlockKey>) -> Self {
        self.root = root;
        self
    }

    pub(crate) fn keys(&self) -> &[BlockKey] {
        &self.keys
    }

    /// The key of the block before this one.
    pub(crate) fn parent_of(&self, block: usize) -> Option<BlockKey> {
        block.checked_sub(1).map(|before| self.keys[before])
    }

    /// What the block depends on beside its prefix and tokens, see [`ExtraMarks`].
    ///
    /// [`ExtraMarks`]: crate::prefix_contents::ExtraMarks
    pub(crate) fn mark_of(&self, block: usize) -> u64 {
        self.marks.get(block).copied().unwrap_or(0)
    }

    pub(crate) fn reserve(&mut self, blocks: usize, with_marks: bool) {
        let further = blocks.saturating_sub(self.keys.len());
        self.keys.reserve_exact(further);
        if with_marks {
            self.marks.reserve_exact(further);
        }
    }

    /// Computes the keys of the first `blocks` blocks of `tokens`, as far as they are missing.
    pub(crate) fn extend_to(
        &mut self,
        blocks: usize,
        tokens: &[u32],
        block_size: u32,
        hasher: &BlockHasher,
    ) {
        let size = block_size as usize;
        for index in self.keys.len()..blocks {
            let start = index as u32 * block_size;
            let tokens = &tokens[index * size..(index + 1) * size];
            let parent = self.keys.last().or(self.root.as_ref());
            let overlapping: Vec<_>;
            let extra = if start >= self.tail_from {
                &*self.tail
            } else {
                let spans = self.spans.iter();
                overlapping = spans
                    .filter(|span| span.overlaps(start, start + block_size))
                    .map(|span| span.in_block(start))
                    .collect();
                &overlapping
            };
            let key = hasher.hash_block(parent, tokens, extra);
            if let Some(marks) = hasher.marks() {
                self.marks.push(marks.of(extra));
            }
            self.keys.push(key);
        }
    }

    pub(crate) fn truncate(&mut self, blocks: usize) {
        self.keys.truncate(blocks);
        self.marks.truncate(blocks);
    }
}

impl BlockHasher {
    /// The keys of all full blocks of `tokens`, each chained to the one before it and the first to
    /// `parent`, if there is one. `salt` and `extra_keys` are as in
    /// [`OpenParams`](crate::OpenParams); positions count from the first of `tokens`.
    ///
    /// # Panics
    /// If `block_size` is 0.
    pub fn hash_prefix(
        &self,
        tokens: &[u32],
        block_size: u32,
        parent: Option<BlockKey>,
        salt: Option<&str>,
        extra_keys: &[SpannedKey],
    ) -> Vec<BlockKey> {
        let blocks = tokens.len() / block_size as usize;
        let mut chain = HashChain::new(salt, extra_keys).after(parent);
        chain.reserve(blocks, false);
        chain.extend_to(blocks, tokens, block_size, self);
        chain.keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HashAlgo;

    fn chain(
        salt: Option<&str>,
        extra_keys: &[SpannedKey],
        tokens: &[u32],
        size: u32,
    ) -> Vec<String> {
        let mut chain = HashChain::new(salt, extra_keys);
        let hasher = BlockHasher::new(HashAlgo::Sha256Cbor, None);
        chain.extend_to(tokens.len() / size as usize, tokens, size, &hasher);
        let hex = |key: &BlockKey| {
            key.to_bytes()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect()
        };
        chain.keys().iter().map(hex).collect()
    }

    fn lora() -> SpannedKey {
        SpannedKey::everywhere(ExtraKey::Lora {
            name: "ad1".into(),
            path: "/p/ad1".into(),
        })
    }

    fn image(identifier: &str, start: u32, len: u32) -> SpannedKey {
        SpannedKey {
            key: ExtraKey::Media {
                identifier: identifier.into(),
                offset: 0,
            },
            start,
            len,
        }
    }

    /// The digests were produced by vLLM 0.32.0 with `sha256_cbor` and no seed.
    #[test]
    fn chains_equal_those_of_vllm_bit_for_bit() {
        let plain = chain(None, &[], &[1, 2, 3, 4, 5, 6, 7, 8, 9], 4);
        assert_eq!(
            plain,
            [
                "58d0879dff3800f65f8c5fd449d73048c0f7699dd238a03b84b146b151d55111",
                "e1bc29393a2da9fd798f35ff04d215f846aee6df4b803ce3d43b57df56b58fb1",
            ]
        );
        assert_eq!(
            chain(Some("tenant-a"), &[], &[1, 2, 3, 4], 4),
            ["0e172de9010f20a975885630390148d0769af6bbe75a732d3b66b62598433cae"]
        );
        assert_eq!(
            chain(None, &[lora()], &[1, 2, 3, 4], 4),
            ["34017ae803d9774bc037051698bcc89617264517b552878f0852c5117ade8f3b"]
        );
    }

    #[test]
    fn an_empty_salt_is_no_salt() {
        assert_eq!(
            chain(Some(""), &[], &[1, 2, 3, 4], 4),
            chain(None, &[], &[1, 2, 3, 4], 4)
        );
    }

    #[test]
    fn a_salt_and_an_adapter_change_every_key_of_the_chain() {
        let tokens: Vec<u32> = (0..32).collect();
        let plain = chain(None, &[], &tokens, 4);
        for other in [
            chain(Some("a"), &[], &tokens, 4),
            chain(None, &[lora()], &tokens, 4),
        ] {
            assert_eq!(plain.len(), other.len());
            assert!(
                plain
                    .iter()
                    .zip(&other)
                    .all(|(plain, other)| plain != other)
            );
        }
    }

    /// vllm#20261: the item's offset was not part of the key.
    #[test]
    fn one_image_at_two_offsets_gives_two_keys_from_its_first_block_on() {
        let tokens = [7; 16];
        let at_5 = chain(None, &[image("img", 5, 6)], &tokens, 4);
        let at_6 = chain(None, &[image("img", 6, 6)], &tokens, 4);
        assert_eq!(at_5[0], at_6[0]);
        assert!(
            at_5[1..]
                .iter()
                .zip(&at_6[1..])
                .all(|(five, six)| five != six)
        );
    }

    #[test]
    fn a_chain_hashed_at_once_equals_one_hashed_block_by_block() {
        let tokens: Vec<u32> = (0..40).collect();
        let spans = [image("img", 6, 7), lora()];
        let hasher = BlockHasher::new(HashAlgo::Xxh3, None);
        let mut at_once = HashChain::new(Some("s"), &spans);
        at_once.extend_to(10, &tokens, 4, &hasher);
        let mut stepwise = HashChain::new(Some("s"), &spans);
        (0..=10).for_each(|blocks| stepwise.extend_to(blocks, &tokens, 4, &hasher));
        assert_eq!(at_once.keys(), stepwise.keys());
    }
}
