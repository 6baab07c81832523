//! The same work on several threads.

/// Runs `worker` on so many threads, this one among them, and gives what each has done.
///
/// # Panics
/// When a worker panics.
pub fn on_threads<T: Send>(threads: u64, worker: impl Fn() -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        // Where the system gives no more threads, those there are do the work.
        let others: Vec<_> =
            (1..threads).map_while(|_| std::thread::Builder::new().spawn_scoped(scope, &worker).ok()).collect();
        let mine = worker();
        let joined = others.into_iter().map(|thread| thread.join().expect("a worker does not panic"));
        std::iter::once(mine).chain(joined).collect()
    })
}
