//! Names of prefixes, for managers that verify tokens: see `prefix_contents.rs`. In the others they
//! all are the same, and nobody reads them.

use super::{Announced, KVCacheManager, Steps};
use crate::PrefixId;
use crate::manager_error::ManagerError;
use crate::prefix_contents::{PrefixLink, Wanted};
use crate::sequence::{SeqHandle, Sequence};

impl KVCacheManager {
    /// Whether look-ups compare tokens.
    pub(super) fn verifies(&self) -> bool {
        self.config.verify_tokens && self.hasher.is_some()
    }

    /// Names a block that the sequence fills, and its place in the prefix. None if an earlier append
    /// did not know the tokens before it: that one's commit will name them.
    pub(super) fn name_block(
        &mut self,
        handle: SeqHandle,
        index: usize,
        group: usize,
    ) -> Result<Option<PrefixLink>, ManagerError> {
        if !self.verifies() {
            let any = PrefixId::root(0);
            let link = PrefixLink {
                after: any,
                name: any,
            };
            return Ok(Some(link));
        }
        let sequence = self.sequences.get(handle)?;
        let Some(before) = sequence.name_before(index, group) else {
            return Ok(None);
        };
        let wanted = sequence.wanted(index, group, before, self.block_size);
        let announced = || Some(self.announced_as(&wanted)?.link.name);
        let name = sequence.name_of(index, group).or_else(announced);
        let name = name.unwrap_or_else(|| self.pool.name_of(&wanted));
        let after = wanted.after;
        self.sequences.get_mut(handle)?.set_name(index, group, name);
        Ok(Some(PrefixLink { after, name }))
    }

    /// The announced block that will have this content.
    pub(super) fn announced_as(&self, wanted: &Wanted<'_>) -> Option<Announced> {
        let announced = self.announced.get(&wanted.key)?;
        let equal = !self.verifies() || announced.holds(wanted, &self.steps, self.block_size);
        equal.then_some(*announced)
    }
}

impl Announced {
    /// Whether it will have this content. Its key is known to be equal.
    fn holds(&self, wanted: &Wanted<'_>, steps: &Steps, block_size: u32) -> bool {
        let step = steps.all().find(|step| step.id == self.step);
        let tokens = step.map(|step| step.kept_tokens(self.tokens_at, block_size));
        self.link.after == wanted.after && tokens == Some(wanted.tokens)
    }
}

impl Sequence {
    /// The name of the prefix before the block, in one group; none if that was never named.
    pub(super) fn name_before(&self, index: usize, group: usize) -> Option<PrefixId> {
        match index.checked_sub(1) {
            None => Some(PrefixId::root(group as u32)),
            Some(before) => self.name_of(before, group),
        }
    }

    pub(super) fn name_of(&self, index: usize, group: usize) -> Option<PrefixId> {
        let groups = self.table.num_groups();
        self.names.get(index * groups + group).copied()
    }

    /// Names the prefix that ends with the block. All before it have names.
    pub(super) fn set_name(&mut self, index: usize, group: usize, name: PrefixId) {
        let place = index * self.table.num_groups() + group;
        debug_assert!(place <= self.names.len(), "named before what it continues");
        if let Some(known) = self.names.get_mut(place) {
            *known = name;
        } else if place == self.names.len() {
            self.names.push(name);
        }
    }

    /// The block's content in one group, for a look-up that may or may not compare tokens.
    pub(super) fn wanted_as<const VERIFY: bool>(
        &self,
        index: usize,
        group: usize,
        after: PrefixId,
        block_size: u32,
    ) -> Wanted<'_> {
        if VERIFY {
            self.wanted(index, group, after, block_size)
        } else {
            Wanted::of_key(self.chain.keys()[index].with_group(group as u32))
        }
    }

    /// The block's content in one group, after a prefix of that name.
    pub(super) fn wanted(
        &self,
        index: usize,
        group: usize,
        after: PrefixId,
        block_size: u32,
    ) -> Wanted<'_> {
        let size = block_size as usize;
        Wanted {
            key: self.chain.keys()[index].with_group(group as u32),
            tokens: &self.tokens[index * size..(index + 1) * size],
            after: after.marked(self.chain.mark_of(index)),
        }
    }
}
