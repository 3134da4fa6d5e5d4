//! A step on the simulated device.

use std::collections::{BTreeMap, BTreeSet};

use looseleaf::{BlockId, KVCacheManager, SeqHandle, StepInfo};

use super::{Arrays, Cell, Memory, Mirror, next_token};

/// One row of a launched step.
#[derive(Debug)]
pub struct Row {
    pub handle: SeqHandle,
    pub slot: u32,
    pub start: usize,
    /// The sequence's tokens when the step was launched.
    pub context: Vec<u32>,
    /// Input tokens; `None` where the device has them from an earlier step or from the caller.
    pub ids: Vec<Option<u32>>,
    pub drafts: Vec<u32>,
    pub samples: bool,
    /// By group.
    pub slots: Vec<Vec<usize>>,
    /// By group.
    pub tables: Vec<Vec<BlockId>>,
    /// Its result will be used.
    pub wanted: bool,
    /// It reads what a failed step left behind.
    pub poisoned: bool,
    /// The drafts that were right and the token after them.
    pub outcome: Vec<u32>,
}

impl Row {
    pub fn end(&self) -> usize {
        self.start + self.ids.len()
    }

    /// End of the tokens that cannot be rejected.
    pub fn known_end(&self) -> usize {
        self.end() - self.drafts.len()
    }

    /// What the row's sequence should have in memory when it reads, if anything can be expected.
    fn cells(&self, mirror: &Mirror) -> Option<Vec<Cell>> {
        let mut tokens = if self.wanted {
            mirror.known_to_device()
        } else {
            self.context.clone()
        };
        // A row that nobody wants any more may follow a sample that nobody kept.
        if self.poisoned || tokens.len() < self.known_end() {
            return None;
        }
        tokens.truncate(self.known_end());
        tokens.extend(&self.drafts);
        Some(Cell::sequence(mirror.salt, &tokens))
    }
}

#[derive(Debug)]
pub struct Launch {
    pub step: u64,
    pub rows: Vec<Row>,
    pub copies: Vec<(BlockId, BlockId)>,
    pub executed: bool,
    /// Run without `prepare`; its rows are committed one by one.
    pub unprepared: bool,
}

/// What the test knew when a step was launched.
pub struct Context<'a> {
    pub manager: &'a KVCacheManager,
    pub mirrors: &'a BTreeMap<SeqHandle, Mirror>,
    pub drafts: &'a BTreeMap<SeqHandle, Vec<u32>>,
    pub earlier: Vec<&'a Row>,
}

impl Context<'_> {
    fn groups(&self) -> std::ops::Range<usize> {
        0..self.manager.config().groups.len()
    }

    fn tables(&self, handle: SeqHandle) -> Vec<Vec<BlockId>> {
        let table = |group| self.manager.block_ids(handle, group).unwrap().to_vec();
        self.groups().map(table).collect()
    }

    /// A row whose inputs and slots were told by the manager in one way or the other.
    fn row(
        &self,
        handle: SeqHandle,
        start: usize,
        ids: Vec<Option<u32>>,
        slots: Vec<Vec<usize>>,
    ) -> Row {
        let context = self.mirrors[&handle].tokens.clone();
        let earlier = self
            .earlier
            .iter()
            .filter(|row| row.handle == handle && row.wanted);
        let tip = context.len() + earlier.filter(|row| row.samples).count();
        Row {
            handle,
            slot: self.manager.row(handle).unwrap().unwrap(),
            start,
            context,
            drafts: self.drafts.get(&handle).cloned().unwrap_or_default(),
            samples: start + ids.len() >= tip,
            ids,
            slots,
            tables: self.tables(handle),
            wanted: true,
            poisoned: false,
            outcome: Vec::new(),
        }
    }
}

impl Launch {
    /// What a device makes of the arrays, checked against the manager's own answers.
    pub fn read_arrays(arrays: &Arrays, info: &StepInfo, context: &Context<'_>) -> Self {
        let running = context.manager.running().iter();
        let owners: BTreeMap<_, _> = running
            .map(|&it| (context.manager.row(it).unwrap().unwrap(), it))
            .collect();
        let mut rows = Vec::new();
        for slot in 0..info.num_rows as usize {
            let packed = arrays.cu_seqlens_q[slot] as usize..arrays.cu_seqlens_q[slot + 1] as usize;
            let end = arrays.seq_lens[slot] as usize;
            assert_eq!(packed.is_empty(), end == 0, "row {slot}");
            if packed.is_empty() {
                continue;
            }
            let start = end - packed.len();
            let positions: Vec<i64> = (start as i64..end as i64).collect();
            assert_eq!(arrays.positions[packed.clone()], positions, "row {slot}");
            let ids = arrays.token_ids[packed.clone()].iter();
            let ids = ids.map(|&id| u32::try_from(id).ok()).collect();
            let slots = context.groups().map(|group| {
                let slots = &arrays.slot_mapping[group][packed.clone()];
                slots.iter().map(|&slot| slot as usize).collect()
            });
            let row = context.row(owners[&(slot as u32)], start, ids, slots.collect());
            for (group, table) in row.tables.iter().enumerate() {
                let mut expected: Vec<i32> = table.iter().map(|&block| block as i32).collect();
                expected.resize(arrays.sizes.blocks_per_row, 0);
                assert_eq!(
                    arrays.table(group, slot),
                    expected,
                    "row {slot} of group {group}"
                );
            }
            rows.push(row);
        }
        let longest = rows.iter().map(Row::end).max();
        let widest = rows.iter().map(|row| row.ids.len()).max();
        assert_eq!(longest, Some(info.max_seq_len as usize));
        assert_eq!(widest, Some(info.max_query_len as usize));
        check_samples(arrays, info, &rows);
        let copies = arrays.copies[..2 * info.num_copies as usize].chunks(2);
        let copies = copies
            .map(|pair| (pair[0] as u32, pair[1] as u32))
            .collect();
        Self {
            step: info.step,
            rows,
            copies,
            executed: false,
            unprepared: false,
        }
    }

    /// What an embedder runs that does not prepare steps: the open step, by the manager's answers.
    pub fn read_open_step(step: u64, context: &Context<'_>) -> Self {
        let row = |&handle: &SeqHandle| {
            let slots = |group| context.manager.slots_of(handle, group).unwrap();
            let slots: Vec<Vec<usize>> = context
                .groups()
                .map(|group| slots(group).map(|at| at as usize).collect())
                .collect();
            let earlier = context.earlier.iter().rev();
            let before = earlier
                .filter(|row| row.wanted)
                .find(|row| row.handle == handle);
            let start = match before {
                Some(row) => row.end(),
                None => context.manager.num_computed_tokens(handle).unwrap() as usize,
            };
            context.row(handle, start, vec![None; slots[0].len()], slots)
        };
        let rows = context.drafts.keys().map(row).collect();
        let copies = context.manager.copies().collect();
        Self {
            step,
            rows,
            copies,
            executed: false,
            unprepared: true,
        }
    }

    /// Copies, writes, then reads: every row must find its own prefix.
    pub fn execute(
        &mut self,
        mirrors: &BTreeMap<SeqHandle, Mirror>,
        memory: &mut Memory,
        vocabulary: u32,
    ) {
        self.executed = true;
        memory.copy(&self.copies);
        let contents: Vec<_> = self
            .rows
            .iter()
            .map(|row| row.cells(&mirrors[&row.handle]))
            .collect();
        for (row, cells) in self.rows.iter().zip(&contents) {
            write(row, cells.as_deref(), memory);
        }
        for (row, cells) in self.rows.iter_mut().zip(&contents) {
            let Some(cells) = cells else { continue };
            for (group, table) in row.tables.iter().enumerate() {
                memory.assert_holds(group, table, cells, &format!("step {}: {row:?}", self.step));
            }
            if row.samples && row.wanted {
                row.outcome = sample(row, cells, vocabulary);
            }
        }
    }

    /// Every slot that the step writes, with its group.
    pub fn writes(&self, memory: &Memory) -> BTreeSet<(usize, usize)> {
        let copied = self
            .copies
            .iter()
            .flat_map(|&(_, destination)| memory.slots_of(destination));
        let groups = self
            .rows
            .iter()
            .flat_map(|row| row.slots.iter().enumerate());
        let written =
            groups.flat_map(|(group, slots)| slots.iter().map(move |&slot| (group, slot)));
        copied.chain(written).collect()
    }

    /// Blocks that the device may touch while the step runs.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> {
        let copied = self
            .copies
            .iter()
            .flat_map(|&(source, destination)| [source, destination]);
        copied.chain(
            self.rows
                .iter()
                .flat_map(|row| row.tables.iter().flatten().copied()),
        )
    }
}

fn check_samples(arrays: &Arrays, info: &StepInfo, rows: &[Row]) {
    let samples = arrays.sample_rows.iter().zip(&arrays.logits_indices);
    let found: Vec<_> = samples.take(info.num_samples as usize).collect();
    let last = |row: &Row| i64::from(arrays.cu_seqlens_q[row.slot as usize + 1]) - 1;
    let sampling = rows.iter().filter(|row| row.samples);
    let expected: Vec<_> = sampling.map(|row| (row.slot as i32, last(row))).collect();
    assert!(
        found
            .into_iter()
            .eq(expected.iter().map(|(row, last)| (row, last))),
        "{arrays:?}"
    );
}

/// Writes a row's tokens where it was told to, which must be where its table says.
fn write(row: &Row, cells: Option<&[Cell]>, memory: &mut Memory) {
    for (position, (nth, id)) in (row.start..).zip(row.ids.iter().enumerate()) {
        let cell = cells.map(|cells| cells[position]);
        if let (Some(id), Some(cell)) = (id, cell) {
            assert_eq!(*id, cell.token, "input at {position} of {row:?}");
        }
        for (group, slots) in row.slots.iter().enumerate() {
            assert_eq!(
                slots[nth],
                memory.slot(&row.tables[group], position),
                "{row:?}"
            );
            memory.write(group, slots[nth], cell);
        }
    }
}

/// The drafts that are right, and the token after them.
fn sample(row: &Row, cells: &[Cell], vocabulary: u32) -> Vec<u32> {
    let mut outcome = Vec::new();
    for (nth, cell) in cells[row.known_end() - 1..].iter().enumerate() {
        let token = next_token(cell, vocabulary);
        outcome.push(token);
        if row.drafts.get(nth) != Some(&token) {
            break;
        }
    }
    outcome
}
