//! Putting a thread to sleep from outside, at whatever instruction it is.

use std::sync::mpsc;
use std::thread::Scope;
use std::time::Duration;

/// How long a nap is: longer than any time slice.
pub const NAP: Duration = Duration::from_millis(50);

/// A thread that can be put to sleep. It must be running still.
pub struct Sleeper(libc::pthread_t);

/// Starts a thread that can be put to sleep.
pub fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() + Send + 'scope,
) -> Sleeper {
    let handler = nap as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: `nap` may run at any instruction: it makes one system call and touches no memory of
    // the program's.
    let before = unsafe { libc::signal(libc::SIGUSR1, handler) };
    assert_ne!(before, libc::SIG_ERR, "SIGUSR1 can be handled");
    let (tell, told) = mpsc::channel();
    scope.spawn(move || {
        // SAFETY: has no preconditions.
        let own = unsafe { libc::pthread_self() };
        tell.send(own).expect("the spawner is waiting for it");
        work();
    });
    Sleeper(told.recv().expect("the thread begins by sending"))
}

impl Sleeper {
    pub fn nap(&self) {
        // SAFETY: the thread runs, by the type's promise.
        let error = unsafe { libc::pthread_kill(self.0, libc::SIGUSR1) };
        assert_eq!(error, 0, "the thread runs");
    }
}

extern "C" fn nap(_: libc::c_int) {
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: NAP.as_nanos() as _,
    };
    // SAFETY: the pointer is to a local; no remainder is asked for.
    unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
}
