//! The same work on several threads.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs `worker` on so many threads, this one among them, and gives what each has done.
///
/// # Panics
/// When a worker panics.
pub(crate) fn on_threads<T: Send>(threads: u64, worker: impl Fn() -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        // Where the system gives no more threads, those there are do the work.
        let others: Vec<_> =
            (1..threads).map_while(|_| std::thread::Builder::new().spawn_scoped(scope, &worker).ok()).collect();
        let mine = worker();
        let joined = others.into_iter().map(|thread| thread.join().expect("a worker does not panic"));
        std::iter::once(mine).chain(joined).collect()
    })
}

/// Does `work` with each number below `count`; a thread takes one at a time. The results are in order.
///
/// # Panics
/// As [`on_threads`].
pub(crate) fn each<T: Send>(threads: usize, count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|at| *at < count);
    let worker = || std::iter::from_fn(take).map(|at| (at, work(at))).collect::<Vec<_>>();
    let mut done: Vec<(usize, T)> = on_threads(threads as u64, worker).into_iter().flatten().collect();
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}
