//! What cached blocks hold, for pools that compare tokens and not only hashes.
//!
//! A hash can collide: by bad luck, or because somebody searched for it. Comparing a block's own
//! tokens is not enough then, because a collision lives on in the chain. If the first blocks of two
//! prompts have one key, the blocks after them have one key as well wherever their tokens agree,
//! and only the prompts' beginnings tell them apart. So what is compared is the whole prefix, link
//! by link: beside its tokens, each block keeps a *name* of the prefix that ends with it, and the
//! name of the prefix that it continues. A name is a number that was never used before, so it
//! stands for one prefix for ever; two blocks that continue one name and have the same key and
//! tokens hold the same content.
//!
//! A look-up walks from the root: the name of the block that it found is what the next one must
//! continue. A publish that finds its content cached goes on from the name that this has. When a
//! prefix is forgotten and then computed anew it gets another name, and blocks that continued the
//! old one are found no more: a miss, never a wrong hit.

use std::hash::{BuildHasher, RandomState};

use crate::block_key::BlockKey;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{BlockId, ExtraKey};

/// Calls the version of a look-up that compares tokens, where that is asked for, and elsewhere the
/// one in which all that concerns names and tokens is gone when it is compiled.
macro_rules! as_verified {
    ($owner:ident.$look_up:ident($($argument:expr),*)) => {
        if $owner.verifies() {
            $owner.$look_up::<true>($($argument),*)
        } else {
            $owner.$look_up::<false>($($argument),*)
        }
    };
}
pub(crate) use as_verified;

/// Names one prefix: everything up to the end of some block, in one pool that verifies tokens. In
/// other pools names say nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PrefixId(u64);

/// Below it are the roots of groups.
const FIRST_NAME: u64 = 1 << u32::BITS;

impl PrefixId {
    /// What the first blocks of a KV-cache group continue.
    pub(crate) fn root(group: u32) -> Self {
        Self(group.into())
    }

    /// The same prefix as continued by a block whose keys and values depend on more than tokens,
    /// see [`ExtraMarks`]. Names are counted up and marks are random, so different pairs of them
    /// coincide once in 2^64.
    pub(crate) fn marked(self, mark: u64) -> Self {
        Self(self.0 ^ mark)
    }
}

/// A prefix to look for or to publish: the keys of its blocks, first block first.
///
/// Keys alone do for a pool that does not verify tokens; such a pool ignores the tokens. In one
/// that does, nothing is found and nothing is published without them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prefix<'a> {
    /// Keys of the hash chain, without a group.
    pub keys: &'a [BlockKey],
    /// The tokens of all those blocks; may go on after them.
    pub tokens: &'a [u32],
    /// The KV-cache group.
    pub group: u32,
}

impl<'a> From<&'a [BlockKey]> for Prefix<'a> {
    fn from(keys: &'a [BlockKey]) -> Self {
        Self {
            keys,
            ..Self::default()
        }
    }
}

impl<'a, const N: usize> From<&'a [BlockKey; N]> for Prefix<'a> {
    fn from(keys: &'a [BlockKey; N]) -> Self {
        keys.as_slice().into()
    }
}

impl<'a> From<&'a Vec<BlockKey>> for Prefix<'a> {
    fn from(keys: &'a Vec<BlockKey>) -> Self {
        keys.as_slice().into()
    }
}

impl<'a> Prefix<'a> {
    /// The block at this place, after a prefix of that name. Without tokens if there are too few.
    pub(crate) fn block(&self, index: usize, size: usize, after: PrefixId) -> Wanted<'a> {
        Wanted {
            key: self.key(index),
            tokens: self
                .tokens
                .get(index * size..(index + 1) * size)
                .unwrap_or_default(),
            after,
        }
    }

    /// The key of the block at this place, with the group mixed in.
    pub(crate) fn key(&self, index: usize) -> BlockKey {
        self.keys[index].with_group(self.group)
    }
}

/// One block's content. Pools that do not verify tokens look at the key only, and there the rest may
/// be left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    /// With the group mixed in.
    pub(crate) key: BlockKey,
    pub(crate) tokens: &'a [u32],
    pub(crate) after: PrefixId,
}

impl Wanted<'_> {
    pub(crate) fn of_key(key: BlockKey) -> Self {
        Self {
            key,
            tokens: &[],
            after: PrefixId::root(0),
        }
    }
}

/// The place of a block in its prefix: what it continues, and what ends with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PrefixLink {
    pub(crate) after: PrefixId,
    pub(crate) name: PrefixId,
}

/// How contents of one key differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mismatch {
    /// The tokens are others: the hashes collide.
    Tokens,
    /// The block continues another prefix: one that was forgotten since, or one that collides.
    Prefix,
}

/// The content of every block, meaningful while the block's state says `hashed`.
///
/// Further words of the block's key: stores are Release and loads Acquire for the same reason as
/// in [`KeyStore`](crate::block_key::KeyStore), and the compare-and-swap that confirms the key
/// confirms them (INV-5).
#[derive(Debug)]
pub(crate) struct PrefixContents {
    tokens: Box<[AtomicU32]>,
    block_size: usize,
    links: Box<[LinkCells]>,
    /// The next name. Relaxed: no two calls get the same, and that is all that matters.
    next: AtomicU64,
    marks: ExtraMarks,
}

/// A [`PrefixLink`].
#[derive(Debug)]
struct LinkCells {
    after: AtomicU64,
    name: AtomicU64,
}

impl PrefixContents {
    /// None if the pool compares hashes only.
    pub(crate) fn new(num_blocks: u32, block_size: u32) -> Option<Box<Self>> {
        let tokens = num_blocks as usize * block_size as usize;
        let link = |_| LinkCells {
            after: AtomicU64::new(0),
            name: AtomicU64::new(0),
        };
        (block_size != 0).then(|| {
            Box::new(Self {
                tokens: (0..tokens).map(|_| AtomicU32::new(0)).collect(),
                block_size: block_size as usize,
                links: (0..num_blocks).map(link).collect(),
                next: AtomicU64::new(FIRST_NAME),
                marks: ExtraMarks::default(),
            })
        })
    }

    /// A name that stands for nothing yet.
    pub(crate) fn fresh_name(&self) -> PrefixId {
        PrefixId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn marks(&self) -> &ExtraMarks {
        &self.marks
    }

    /// The caller has exclusive use of the entry and gives a block of tokens.
    pub(crate) fn write(&self, id: BlockId, content: &Wanted<'_>, name: PrefixId) {
        for (cell, token) in self.tokens_of(id).iter().zip(content.tokens) {
            cell.store(*token, Ordering::Release);
        }
        let link = &self.links[id as usize];
        link.after.store(content.after.0, Ordering::Release);
        link.name.store(name.0, Ordering::Release);
    }

    /// The name of the prefix that ends with the block, if it holds this content. The caller has
    /// compared the key, and must see to it that the tenancy is still the same afterwards.
    pub(crate) fn compare(&self, id: BlockId, wanted: &Wanted<'_>) -> Result<PrefixId, Mismatch> {
        let link = &self.links[id as usize];
        let mut tokens = self.tokens_of(id).iter().zip(wanted.tokens);
        let equal = wanted.tokens.len() == self.block_size
            && tokens.all(|(cell, token)| cell.load(Ordering::Acquire) == *token);
        if !equal {
            Err(Mismatch::Tokens)
        } else if link.after.load(Ordering::Acquire) != wanted.after.0 {
            Err(Mismatch::Prefix)
        } else {
            Ok(PrefixId(link.name.load(Ordering::Acquire)))
        }
    }

    /// What is written there: the tokens and the name.
    pub(crate) fn read(&self, id: BlockId) -> (Vec<u32>, PrefixId) {
        let tokens = self.tokens_of(id).iter();
        let name = self.links[id as usize].name.load(Ordering::Acquire);
        (
            tokens.map(|cell| cell.load(Ordering::Acquire)).collect(),
            PrefixId(name),
        )
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        size_of_val(&*self.tokens) + size_of_val(&*self.links)
    }

    fn tokens_of(&self, id: BlockId) -> &[AtomicU32] {
        &self.tokens[id as usize * self.block_size..][..self.block_size]
    }
}

/// Digests of what else blocks depend on: salts, adapters, media. These have no fixed size, so they
/// are not kept whole but as 64 bits that have nothing to do with the key, under a secret that the
/// pool drew for itself, so that nobody can search for two that coincide.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExtraMarks(RandomState);

impl ExtraMarks {
    /// 0 if the block depends on its prefix and tokens only.
    pub(crate) fn of(&self, extra: &[ExtraKey]) -> u64 {
        if extra.is_empty() {
            return 0;
        }
        self.0.hash_one(extra)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const KEY: BlockKey = BlockKey([1, 2, 3, 4]);

    fn wanted(tokens: &[u32], after: PrefixId) -> Wanted<'_> {
        Wanted {
            key: KEY,
            tokens,
            after,
        }
    }

    #[test]
    fn a_content_is_equal_to_itself_and_to_no_other() {
        let contents = PrefixContents::new(3, 2).unwrap();
        let (root, name) = (PrefixId::root(0), contents.fresh_name());
        for id in 0..3 {
            contents.write(id, &wanted(&[7, id], root), name);
        }
        for id in 0..3 {
            let compare = |tokens: &[u32], after| contents.compare(id, &wanted(tokens, after));
            assert_eq!(compare(&[7, id], root), Ok(name));
            for other in [&[7, id + 1][..], &[8, id], &[7], &[], &[7, id, 0]] {
                assert_eq!(compare(other, root), Err(Mismatch::Tokens), "{other:?}");
            }
            for other in [PrefixId::root(1), name, root.marked(1)] {
                assert_eq!(compare(&[7, id], other), Err(Mismatch::Prefix));
            }
        }
    }

    #[test]
    fn names_differ_from_each_other_and_from_the_roots_of_groups() {
        let contents = PrefixContents::new(1, 1).unwrap();
        let names = [0; 3].map(|_| contents.fresh_name());
        assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2]);
        assert!(names.iter().all(|name| name.0 > u32::MAX.into()));
    }

    #[test]
    fn marks_tell_extras_apart_and_are_those_of_one_pool() {
        let pools = [0; 2].map(|_| PrefixContents::new(1, 1).unwrap());
        let salt = |salt: &str| [ExtraKey::Salt(salt.into())];
        let [ours, theirs] = [0, 1].map(|pool: usize| pools[pool].marks().clone());
        assert_eq!(ours.of(&[]), 0);
        assert_eq!(ours.of(&salt("a")), ours.of(&salt("a")));
        assert_ne!(ours.of(&salt("a")), ours.of(&salt("b")));
        assert_ne!(ours.of(&salt("a")), theirs.of(&salt("a")));
    }
}
