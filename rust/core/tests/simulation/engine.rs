//! The engine loop over a manager, a mirror of every sequence, and the simulated device.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use looseleaf::{
    BlockId, BlockPool, KVCacheManager, ManagerError, OpenParams, SeqHandle, StepInfo,
};

use super::launch::{Context, Launch, Row};
use super::loads::PendingLoad;
use super::{Arrays, Cell, Coverage, Memory, Mirror, Setup, next_token};

#[derive(Debug)]
pub struct Engine {
    pub manager: KVCacheManager,
    /// Of every sequence ever opened: a step may still run for one that is closed.
    pub mirrors: BTreeMap<SeqHandle, Mirror>,
    pub vocabulary: u32,
    pub coverage: Coverage,
    pub(super) setup: Setup,
    /// Shared by all engines over one pool.
    pub(super) memory: Arc<Mutex<Memory>>,
    /// Taken in turn, as an engine with two steps in flight would.
    arrays: [Arrays; 2],
    pub(super) launches: VecDeque<Launch>,
    pub loads: Vec<PendingLoad>,
    /// Of the sequences that were appended to one by one in the open step.
    pub(super) drafts: BTreeMap<SeqHandle, Vec<u32>>,
}

impl Engine {
    pub fn new(setup: Setup) -> Self {
        Self::over(setup, setup.pool(), &Arc::new(Mutex::new(setup.memory())))
    }

    /// An engine over a pool and a memory that others may use at the same time.
    pub fn over(setup: Setup, pool: Arc<BlockPool>, memory: &Arc<Mutex<Memory>>) -> Self {
        let manager = KVCacheManager::new(pool, setup.config()).expect("it is valid");
        let arrays = [0, 1].map(|_| Arrays::new(manager.buffer_sizes()));
        Self {
            manager,
            mirrors: BTreeMap::new(),
            vocabulary: 1000,
            coverage: Coverage::default(),
            setup,
            memory: Arc::clone(memory),
            arrays,
            launches: VecDeque::new(),
            loads: Vec::new(),
            drafts: BTreeMap::new(),
        }
    }

    pub fn open(
        &mut self,
        tokens: &[u32],
        salt: Option<&str>,
        max_tokens: u32,
        eos: &[u32],
    ) -> Result<SeqHandle, ManagerError> {
        let params = OpenParams {
            tokens,
            salt,
            max_tokens,
            eos_token_ids: eos,
            ..<_>::default()
        };
        let handle = self.manager.open(params)?;
        let salt = salt
            .unwrap_or_default()
            .bytes()
            .fold(0, |a, b| a * 257 + u64::from(b));
        let mirror = Mirror {
            tokens: tokens.to_vec(),
            prompt_len: tokens.len(),
            salt,
            max_tokens,
            max_model_len: self.setup.max_model_len,
            eos: eos.to_vec(),
            finished: None,
            sampled: Vec::new(),
        };
        self.mirrors.insert(handle, mirror);
        Ok(handle)
    }

    /// Admits, and checks that `match_prefix` said what would happen.
    pub fn admit(&mut self, handle: SeqHandle) -> Result<u32, ManagerError> {
        let promised = self.manager.match_prefix(handle)?;
        let free = self.manager.pool().num_free();
        let ready = self.manager.admit(handle, 0)?;
        let pool = self.manager.pool();
        assert_eq!(ready, promised.num_cached_tokens);
        let taken = (promised.free_hit_blocks + promised.new_blocks) as usize;
        assert_eq!(free - pool.num_free(), taken);
        let hits = &self.blocks(handle, 0)[..(ready / self.setup.block_size) as usize];
        let announced = hits
            .iter()
            .filter(|&&block| pool.key_of(block).is_none())
            .count();
        self.coverage.announced_hits += announced as u64;
        Ok(ready)
    }

    pub fn append(
        &mut self,
        handle: SeqHandle,
        k: u32,
        drafts: &[u32],
    ) -> Result<(), ManagerError> {
        self.manager.append(handle, k, drafts)?;
        self.drafts.insert(handle, drafts.to_vec());
        Ok(())
    }

    /// Appends up to `k` known tokens and, if that reaches their end, a draft per entry of
    /// `right`: what the model will produce if it is true, else something different.
    pub fn append_with_drafts(
        &mut self,
        handle: SeqHandle,
        k: u32,
        right: &[bool],
    ) -> Result<(), ManagerError> {
        let mirror = &self.mirrors[&handle];
        let left = mirror.tokens.len() - self.manager.num_computed_tokens(handle)? as usize;
        if self.rows().any(|row| row.handle == handle && row.wanted) {
            return self.append(handle, 1, &[]);
        }
        if left > k as usize {
            return self.append(handle, k, &[]);
        }
        let mut tokens = mirror.tokens.clone();
        // With nothing known to compute, an append makes sense with drafts only.
        let right = if left == 0 && right.is_empty() {
            &[true]
        } else {
            right
        };
        for &right in right {
            let cells = Cell::sequence(mirror.salt, &tokens);
            let token = next_token(&cells[cells.len() - 1], self.vocabulary);
            tokens.push(if right { token } else { token + 1 });
        }
        let drafts = tokens[mirror.tokens.len()..].to_vec();
        let told: &[u32] = if left == 0 { &[] } else { &drafts };
        self.manager
            .append(handle, (left + drafts.len()) as u32, told)?;
        self.drafts.insert(handle, drafts);
        Ok(())
    }

    /// Prepares the open step and checks the arrays.
    pub fn prepare(&mut self) -> Result<StepInfo, ManagerError> {
        self.arrays.reverse();
        let info = self.arrays[0].prepare(&mut self.manager)?;
        self.arrays[0].assert_padded(&info);
        let block_size = self.manager.block_size();
        self.arrays[0].assert_pages_equal_tables(block_size);
        self.launch(Launch::read_arrays(&self.arrays[0], &info, &self.context()));
        Ok(info)
    }

    fn context(&self) -> Context<'_> {
        Context {
            manager: &self.manager,
            mirrors: &self.mirrors,
            drafts: &self.drafts,
            earlier: self.rows().collect(),
        }
    }

    fn launch(&mut self, launch: Launch) {
        self.coverage.steps += 1;
        self.launches.push_back(launch);
        self.drafts.clear();
    }

    /// Runs the oldest launch that has not run yet. Says whether there was one.
    pub fn execute(&mut self) -> bool {
        let Some(launch) = self.launches.iter_mut().find(|launch| !launch.executed) else {
            return false;
        };
        let memory = &mut self.memory.lock().expect("nobody panicked");
        launch.execute(&self.mirrors, memory, self.vocabulary);
        for row in &launch.rows {
            let unknown = row.ids.iter().filter(|id| id.is_none()).count();
            self.coverage.unknown_inputs += unknown as u64;
            if let (true, [token]) = (row.drafts.is_empty(), row.outcome.as_slice()) {
                let mirror = self.mirrors.get_mut(&row.handle).expect("it was opened");
                mirror.sampled.push((launch.step, *token));
            }
        }
        true
    }

    /// Runs what has not run and commits the oldest step.
    pub fn commit(&mut self) -> Result<(), ManagerError> {
        while self.launches.front().is_some_and(|launch| !launch.executed) {
            self.execute();
        }
        let launch = self.launches.pop_front().expect("a step is in flight");
        let (wanted, ignored): (Vec<_>, Vec<_>) = launch.rows.iter().partition(|row| row.wanted);
        self.coverage.ignored_rows += ignored.len() as u64;
        for row in wanted.iter().filter(|row| !row.drafts.is_empty()) {
            self.manager.commit(row.handle, &row.outcome)?;
        }
        // What rows that nobody wants have sampled is rubbish.
        let sample = |row: &Row| row.outcome.first().map_or(-9, |&token| token as i32);
        let sampling = launch.rows.iter().filter(|row| row.samples);
        let samples: Vec<i32> = sampling.map(sample).collect();
        let finished = self.manager.commit_step(launch.step, &samples)?.to_vec();
        for row in wanted {
            self.settle(row);
            if row.drafts.is_empty() {
                let reported = finished
                    .iter()
                    .find(|finished| finished.handle == row.handle);
                let reason = self.mirrors[&row.handle].finished;
                assert_eq!(reported.map(|finished| finished.reason), reason);
                assert!(reported.is_none_or(|finished| finished.row == row.slot));
            }
        }
        Ok(())
    }

    /// Commits the oldest append of one sequence on its own, after running the open step as a
    /// whole if the append is in it. Says whether there was an append.
    pub fn commit_alone(&mut self, handle: SeqHandle) -> Result<bool, ManagerError> {
        let waits = |row: &Row| row.handle == handle && row.wanted;
        if !self.rows().any(waits) {
            if !self.drafts.contains_key(&handle) {
                return Ok(false);
            }
            self.launch(Launch::read_open_step(
                self.coverage.steps + 1,
                &self.context(),
            ));
            self.execute();
        }
        let launch = self
            .launches
            .iter_mut()
            .find(|launch| launch.rows.iter().any(waits));
        let rows = &mut launch.expect("just run, if not before").rows;
        let row = rows.remove(rows.iter().position(waits).expect("just found"));
        let accepted: &[u32] = if row.samples { &row.outcome } else { &[] };
        let reason = self.manager.commit(handle, accepted)?;
        self.settle(&row);
        assert_eq!(reason, self.mirrors[&handle].finished);
        self.launches
            .retain(|launch| launch.rows.iter().any(|row| row.wanted));
        Ok(true)
    }

    /// Brings the mirror of a committed row up to date.
    fn settle(&mut self, row: &Row) {
        let right = row.outcome.len().saturating_sub(1);
        self.coverage.accepted_drafts += right as u64;
        self.coverage.rejected_drafts += (row.drafts.len() - right) as u64;
        let mirror = self.mirrors.get_mut(&row.handle).expect("it was opened");
        if row.samples && row.drafts.is_empty() {
            mirror.sampled.remove(0);
        }
        mirror.push(&row.outcome);
        let computed = (row.known_end() + right).min(mirror.tokens.len()) as u32;
        assert_eq!(self.manager.num_computed_tokens(row.handle), Ok(computed));
        if mirror.finished.is_some() {
            self.forget(row.handle, 0);
        }
    }

    pub fn fork(&mut self, handle: SeqHandle, n: u32) -> Result<Vec<SeqHandle>, ManagerError> {
        let children = self.manager.fork(handle, n)?;
        for &child in &children {
            self.mirrors.insert(child, self.mirrors[&handle].clone());
        }
        Ok(children)
    }

    pub fn truncate(&mut self, handle: SeqHandle, len: u32) -> Result<(), ManagerError> {
        self.manager.truncate(handle, len)?;
        self.mirrors
            .get_mut(&handle)
            .expect("it was opened")
            .truncate(len as usize);
        Ok(())
    }

    pub fn push_token(&mut self, handle: SeqHandle, token: u32) -> Result<(), ManagerError> {
        let finished = self.manager.push_token(handle, token)?;
        let mirror = self.mirrors.get_mut(&handle).expect("it was opened");
        mirror.push(&[token]);
        assert_eq!(finished, mirror.finished);
        Ok(())
    }

    /// Admits, computes and commits until the sequence is complete.
    pub fn finish(&mut self, handle: SeqHandle) -> Result<(), ManagerError> {
        if self.manager.row(handle)?.is_none() {
            self.admit(handle)?;
        }
        while self.manager.finish_reason(handle)?.is_none() {
            self.step()?;
        }
        Ok(())
    }

    /// Schedules all running sequences and runs one step of them.
    pub fn step(&mut self) -> Result<(), ManagerError> {
        self.manager.schedule_running(u32::MAX, u32::MAX)?;
        self.prepare()?;
        self.commit()?;
        self.check();
        Ok(())
    }

    pub fn blocks(&self, handle: SeqHandle, group: usize) -> &[BlockId] {
        self.manager
            .block_ids(handle, group)
            .expect("the sequence is open")
    }

    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.launches.iter().flat_map(|launch| &launch.rows)
    }

    pub fn num_in_flight(&self) -> usize {
        self.launches.len()
    }

    /// Whether the steps in flight are run without `prepare`.
    pub fn is_unprepared(&self) -> bool {
        self.launches.iter().any(|launch| launch.unprepared)
    }

    /// Sequences that the manager still has open.
    pub fn open_handles(&self) -> Vec<SeqHandle> {
        let handles = self.mirrors.keys().copied();
        handles
            .filter(|&handle| self.manager.row(handle).is_ok())
            .collect()
    }
}
