//! Spreading independent tasks over threads.

use std::sync::Mutex;

/// A fixed number of threads, the calling one included.
pub(crate) struct Workers {
    /// The threads beside the calling one; none when one thread is to do it all.
    pool: Option<rayon::ThreadPool>,
    /// A forked child has the pool but not its threads.
    owner: u32,
}

impl Workers {
    /// # Errors
    /// When the system refuses to start the threads.
    pub(crate) fn new(num_threads: usize) -> Result<Workers, rayon::ThreadPoolBuildError> {
        let others = num_threads.saturating_sub(1);
        let build = || {
            rayon::ThreadPoolBuilder::new()
                .num_threads(others)
                .thread_name(|index| format!("looseleaf-attention-{index}"))
                .build()
        };
        let pool = (others > 0).then(build).transpose()?;
        Ok(Workers {
            pool,
            owner: std::process::id(),
        })
    }

    pub(crate) fn num_threads(&self) -> usize {
        1 + self
            .pool
            .as_ref()
            .map_or(0, rayon::ThreadPool::current_num_threads)
    }

    /// Does every task, in about the order given; each thread that takes part has its own `W`.
    ///
    /// Unless `share`, the calling thread does them all.
    pub(crate) fn run<T: Send, W: Default>(
        &self,
        tasks: Vec<T>,
        share: bool,
        work: impl Fn(&mut W, T) + Sync,
    ) {
        let share = share && std::process::id() == self.owner;
        let helpers = if share {
            (self.num_threads() - 1).min(tasks.len().saturating_sub(1))
        } else {
            0
        };
        let queue = Mutex::new(tasks.into_iter());
        let drain = || {
            let mut own = W::default();
            loop {
                // A poisoned queue is intact: nothing can panic while it is locked.
                let task = queue
                    .lock()
                    .unwrap_or_else(|poisoned| poisoned.into_inner())
                    .next();
                match task {
                    Some(task) => work(&mut own, task),
                    None => break,
                }
            }
        };
        match &self.pool {
            Some(pool) if helpers > 0 => pool.in_place_scope(|scope| {
                for _ in 0..helpers {
                    scope.spawn(|_| drain());
                }
                drain();
            }),
            _ => drain(),
        }
    }
}
