//! Threads that take turns, one of which can be stopped for good.
//!
//! A [`run`] gives control to one thread at a time. Before each atomic access the thread may lose
//! its turn to another; who goes on follows from a seed alone, so every run can be repeated. One
//! thread, the victim, can be stopped after its k-th access, as if the system never scheduled it
//! again. The others must then come to an end: a thread that needs more accesses than allowed
//! fails the run (INV-11). Last, the victim goes on, so that one can see what it left behind.
//!
//! Accesses outside a run, and those of the watch, pass freely. As only one thread acts at a time,
//! this explores schedules and no memory orders: those are loom's.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

/// What one thread of a run does.
pub type Script = Box<dyn FnOnce() + Send>;

/// Called before every access, by the thread that is about to make it.
pub type Watch = Arc<dyn Fn() + Send + Sync>;

/// Who is to be stopped, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stop {
    /// The thread, by its place among the scripts.
    pub victim: usize,
    /// How many accesses it makes before.
    pub after: u64,
}

/// How one run goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Decides who goes on at each access, and which weak swaps fail without cause.
    pub seed: u64,
    /// The thread to be stopped, if one is.
    pub stop: Option<Stop>,
    /// The most accesses that one thread may need.
    pub most_accesses: u64,
}

/// What a run was like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Whether the victim was stopped; if not, it had finished before.
    pub stopped: bool,
    /// Accesses of all threads.
    pub accesses: u64,
    /// Accesses of the thread that made the most.
    pub longest: u64,
}

/// Runs the scripts to their ends, the victim's up to its stop; then calls `meanwhile`, which is
/// allowed as many accesses as a script; then lets the victim finish.
///
/// # Panics
/// With the first panic of a script, of the watch or of `meanwhile`, after all threads have ended.
pub fn run(plan: Plan, scripts: Vec<Script>, watch: Watch, meanwhile: impl FnOnce()) -> Outcome {
    let caller = scripts.len();
    let turns = Arc::new(Turns::new(plan, caller, watch));
    let start = |(id, script)| {
        let turns = turns.clone();
        thread::spawn(move || turns.take_part(id, script))
    };
    let threads: Vec<_> = (0..).zip(scripts).map(start).collect();
    turns.pass_on_and_await(caller);
    let stopped = turns.lock().stopped.is_some();
    if turns.lock().failure.is_none() {
        turns.act(caller, meanwhile);
    }
    turns.lock().stopped = None;
    turns.pass_on_and_await(caller);
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    let mut state = turns.lock();
    if let Some(failure) = state.failure.take() {
        drop(state);
        resume_unwind(failure);
    }
    Outcome {
        stopped,
        accesses: state.accesses.iter().sum(),
        longest: state.accesses.iter().copied().max().unwrap_or(0),
    }
}

/// As [`std::hint::spin_loop`]: lets another thread go on, if there is one.
pub(crate) fn spin_loop() {
    pass(true);
}

/// The gate of an atomic; see `sync/gated.rs`.
#[derive(Debug)]
pub(super) struct Gate;

impl Gate {
    pub(super) fn new() -> Self {
        Self
    }

    pub(super) fn pass(&self) {
        pass(false);
    }

    pub(super) fn fails_spuriously(&self) -> bool {
        let Some(member) = ME.take() else {
            return false;
        };
        let fails = member.turns.lock().draws_failure();
        ME.set(Some(member));
        fails
    }
}

/// A thread's place in a run.
struct Member {
    turns: Arc<Turns>,
    id: usize,
}

thread_local! {
    static ME: Cell<Option<Member>> = const { Cell::new(None) };
}

fn pass(give_way: bool) {
    // Taken out meanwhile, so that the watch passes freely, and so does a thread that unwinds.
    let Some(member) = ME.take() else { return };
    member.turns.step(member.id, give_way);
    (member.turns.watch)();
    ME.set(Some(member));
}

struct Turns {
    plan: Plan,
    watch: Watch,
    state: Mutex<State>,
    /// One for each script, and one for the caller.
    wake: Box<[Condvar]>,
}

struct State {
    /// Who acts. The caller has the number after the last script's.
    turn: usize,
    /// The victim, while it is stopped.
    stopped: Option<usize>,
    finished: Vec<bool>,
    accesses: Vec<u64>,
    failure: Option<Box<dyn Any + Send>>,
    random: Random,
    /// A thread loses its turn at one access in this many.
    switch_one_in: u64,
    /// A weak swap fails without cause one time in this many; never, if 0.
    fail_one_in: u64,
}

impl Turns {
    fn new(plan: Plan, caller: usize, watch: Watch) -> Self {
        let mut random = Random::new(plan.seed);
        let state = State {
            turn: caller,
            stopped: None,
            finished: vec![false; caller],
            accesses: vec![0; caller + 1],
            failure: None,
            switch_one_in: [2, 3, 6, 20][random.below(4) as usize],
            fail_one_in: [0, 0, 0, 8][random.below(4) as usize],
            random,
        };
        Self {
            plan,
            watch,
            state: Mutex::new(state),
            wake: (0..=caller).map(|_| Condvar::new()).collect(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("nobody panics with the state locked")
    }

    /// A script's thread, from its first turn to its last.
    fn take_part(self: &Arc<Self>, id: usize, script: Script) {
        drop(self.await_turn(id, self.lock()));
        self.act(id, script);
        let mut state = self.lock();
        state.finished[id] = true;
        self.hand_over(&mut state, id);
    }

    fn act(self: &Arc<Self>, id: usize, script: impl FnOnce()) {
        let turns = self.clone();
        ME.set(Some(Member { turns, id }));
        let result = catch_unwind(AssertUnwindSafe(script));
        ME.set(None);
        if let Err(failure) = result {
            self.lock().failure.get_or_insert(failure);
        }
    }

    /// Before each access of `id`.
    fn step(&self, id: usize, give_way: bool) {
        let mut state = self.lock();
        let stop = Stop {
            victim: id,
            after: state.accesses[id],
        };
        if self.plan.stop == Some(stop) {
            state.stopped = Some(id);
        }
        if give_way || state.stopped == Some(id) || state.draws_switch() {
            self.hand_over(&mut state, id);
        }
        state = self.await_turn(id, state);
        state.accesses[id] += 1;
        let exceeded = state.accesses[id] > self.plan.most_accesses;
        drop(state);
        assert!(
            !exceeded,
            "INV-11: thread {id} is not done after {} accesses",
            self.plan.most_accesses
        );
    }

    fn pass_on_and_await(&self, id: usize) {
        let mut state = self.lock();
        self.hand_over(&mut state, id);
        drop(self.await_turn(id, state));
    }

    fn hand_over(&self, state: &mut State, from: usize) {
        state.turn = state.successor(from);
        self.wake[state.turn].notify_one();
    }

    fn await_turn<'a>(&self, id: usize, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.wake[id]
            .wait_while(state, |state| state.turn != id)
            .expect("nobody panics with the state locked")
    }
}

impl State {
    /// Somebody else who can go on; `from` itself, if nobody else can; in the end the caller.
    fn successor(&mut self, from: usize) -> usize {
        let caller = self.finished.len();
        let able = |id: &usize| !self.finished[*id] && self.stopped != Some(*id);
        let others: Vec<_> = (0..caller).filter(|id| *id != from && able(id)).collect();
        match others.len() {
            0 if from < caller && able(&from) => from,
            0 => caller,
            count => others[self.random.below(count as u64) as usize],
        }
    }

    fn draws_switch(&mut self) -> bool {
        self.random.below(self.switch_one_in) == 0
    }

    fn draws_failure(&mut self) -> bool {
        self.fail_one_in != 0 && self.random.below(self.fail_one_in) == 0
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): any seed will do, also 0, 1, 2, ...
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ mixed >> 31) >> 32) % bound
    }
}
