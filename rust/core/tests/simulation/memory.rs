//! The cache memory of the simulated device.

use looseleaf::BlockId;

/// The keys and values of one token: they depend on the token, its position and all before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    pub token: u32,
    pub position: u32,
    pub prefix: u64,
}

impl Cell {
    /// The cells that a sequence of these tokens should have.
    pub fn sequence(salt: u64, tokens: &[u32]) -> Vec<Self> {
        let mut prefix = salt;
        let cell = |(position, &token): (usize, &u32)| {
            prefix = mix(prefix ^ u64::from(token).wrapping_add(1));
            Self {
                token,
                position: position as u32,
                prefix,
            }
        };
        tokens.iter().enumerate().map(cell).collect()
    }
}

/// The token that a greedy model produces after a cell, out of `vocabulary`.
pub fn next_token(cell: &Cell, vocabulary: u32) -> u32 {
    (mix(cell.prefix ^ 0xA5) % u64::from(vocabulary)) as u32
}

/// The finaliser of SplitMix64: different inputs give different outputs.
fn mix(x: u64) -> u64 {
    let x = (x.wrapping_add(0x9E37_79B9_7F4A_7C15) ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Slots of all groups. What was never written, or written by a step that failed, is `None`.
#[derive(Debug)]
pub struct Memory {
    groups: Vec<Vec<Option<Cell>>>,
    block_size: usize,
}

impl Memory {
    pub fn new(groups: usize, num_blocks: usize, block_size: u32) -> Self {
        let slots = vec![None; num_blocks * block_size as usize];
        Self {
            groups: vec![slots; groups],
            block_size: block_size as usize,
        }
    }

    pub fn slot(&self, table: &[BlockId], position: usize) -> usize {
        table[position / self.block_size] as usize * self.block_size + position % self.block_size
    }

    /// Checks that the blocks hold these cells, from the first position on.
    pub fn assert_holds(&self, group: usize, table: &[BlockId], cells: &[Cell], whose: &str) {
        for (position, cell) in cells.iter().enumerate() {
            let found = self.groups[group][self.slot(table, position)];
            assert_eq!(
                found,
                Some(*cell),
                "position {position}, group {group}, {whose}"
            );
        }
    }

    pub fn write(&mut self, group: usize, slot: usize, cell: Option<Cell>) {
        self.groups[group][slot] = cell;
    }

    /// Runs copies at once, as a device does: all reads come before all writes. A copy is of all
    /// groups' layers, since a block id belongs to one group only.
    pub fn copy(&mut self, copies: &[(BlockId, BlockId)]) {
        let size = self.block_size;
        for slots in &mut self.groups {
            let read: Vec<Vec<_>> = copies
                .iter()
                .map(|&(source, _)| slots[source as usize * size..][..size].to_vec())
                .collect();
            for (&(_, destination), content) in copies.iter().zip(read) {
                slots[destination as usize * size..][..size].copy_from_slice(&content);
            }
        }
    }

    /// The slots of a block, in all groups.
    pub fn slots_of(&self, block: BlockId) -> impl Iterator<Item = (usize, usize)> {
        let slots = block as usize * self.block_size..(block as usize + 1) * self.block_size;
        (0..self.groups.len()).flat_map(move |group| slots.clone().map(move |slot| (group, slot)))
    }
}
