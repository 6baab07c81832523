//! Work spread over several threads, with its results in order.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

/// Maximum number of results that wait for an earlier one. A thread that is further ahead waits, so that memory stays
/// bounded.
const AHEAD: u64 = 1024;

/// Returns the number of threads that can run at once.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, Into::into)
}

/// Calls `work` with each item on several threads, including this one, and passes the results to `merge` in the order
/// of the items, until `merge` breaks. Each thread has its own state; the states are returned in no particular order.
/// If `work` fails, the error comes from the first failing item, whatever the number of threads, and the results of all
/// items before it have been merged.
pub(crate) fn in_order<I, S: Send, R: Send, E: Send>(
    threads: u64,
    items: impl Iterator<Item = I> + Send,
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, I) -> Result<R, E> + Sync,
    merge: impl FnMut(R) -> ControlFlow<()> + Send,
) -> Result<Vec<S>, E> {
    let queue = Queue { items, merge, taken: 0, merged: 0, waiting: BTreeMap::new(), is_over: false, failure: None };
    let shared = Shared { queue: Mutex::new(queue), moved: Condvar::new() };
    let worker = &|| {
        let _stop = StopOnPanic(&shared);
        let mut state = state();
        while let Some((at, item)) = shared.take() {
            let result = work(&mut state, item);
            shared.put(at, result);
        }
        state
    };
    let states = thread::scope(|scope| {
        // If the system gives no more threads, the existing ones do the work.
        let others: Vec<_> =
            (1..threads).map_while(|_| thread::Builder::new().spawn_scoped(scope, worker).ok()).collect();
        let mine = worker();
        let joined = others.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        std::iter::once(mine).chain(joined).collect()
    });
    let queue = shared.queue.into_inner().unwrap_or_else(PoisonError::into_inner);
    queue.failure.map_or(Ok(states), Err)
}

/// Calls `work` with each number below `count`, one at a time on each thread. The results are in order.
pub(crate) fn each<T: Send>(threads: usize, count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let mut done = Vec::with_capacity(count);
    let push = |result| {
        done.push(result);
        ControlFlow::Continue(())
    };
    let Ok(_) = in_order(threads as u64, 0..count, || (), |(), at| Ok::<_, Infallible>(work(at)), push);
    done
}

/// Calls `make` for each item, and finishes the result on another thread while the next is made. Both happen in the
/// order of the items. A result waits until the one before it is finished, so there are at most two at a time. The
/// error comes from the first item that fails; all items before it are finished.
pub(crate) fn overlapped<I, T: Send, R: Send, E: Send>(
    items: impl Iterator<Item = I>,
    mut make: impl FnMut(I) -> Result<T, E>,
    finish: impl FnMut(T) -> Result<R, E> + Send,
) -> Result<Vec<R>, E> {
    let finish = Mutex::new(finish);
    let finish = &|half| finish.lock().unwrap_or_else(PoisonError::into_inner)(half);
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::sync_channel(0);
        let other = thread::Builder::new()
            .spawn_scoped(scope, move || receiver.into_iter().map(finish).collect::<Result<Vec<_>, _>>());
        let (mut finished, mut failure) = (Vec::new(), None);
        for item in items {
            match make(item) {
                Ok(half) if other.is_ok() => {
                    if sender.send(half).is_err() {
                        break; // an earlier item has failed
                    }
                }
                Ok(half) => finished.push(finish(half)?), // the system gives no more threads
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        drop(sender);
        if let Ok(other) = other {
            finished = other.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        }
        failure.map_or(Ok(finished), Err)
    })
}

/// Remaining items, and results that wait for an earlier one.
struct Queue<I, M, R, E> {
    items: I,
    merge: M,
    taken: u64,
    merged: u64,
    waiting: BTreeMap<u64, Result<R, E>>,
    /// True if no more items are handed out.
    is_over: bool,
    failure: Option<E>,
}

struct Shared<I, M, R, E> {
    queue: Mutex<Queue<I, M, R, E>>,
    /// Signals that results were merged, or that no more items are handed out.
    moved: Condvar,
}

impl<I: Iterator, M: FnMut(R) -> ControlFlow<()>, R, E> Shared<I, M, R, E> {
    fn take(&self) -> Option<(u64, I::Item)> {
        let is_ahead = |queue: &mut Queue<I, M, R, E>| !queue.is_over && queue.taken - queue.merged >= AHEAD;
        let mut queue = self.moved.wait_while(self.lock(), is_ahead).unwrap_or_else(PoisonError::into_inner);
        let item = if queue.is_over { None } else { queue.items.next() }?;
        queue.taken += 1;
        Some((queue.taken - 1, item))
    }

    fn put(&self, at: u64, result: Result<R, E>) {
        let queue = &mut *self.lock();
        // Waking is a system call, and no thread waits otherwise.
        let was_full = !queue.is_over && queue.taken - queue.merged >= AHEAD;
        // Items are handed out in order, and items in progress are finished: the first failure is among them.
        queue.is_over |= result.is_err();
        queue.waiting.insert(at, result);
        while queue.failure.is_none()
            && let Some(result) = queue.waiting.remove(&queue.merged)
        {
            queue.merged += 1;
            match result.map(&mut queue.merge) {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => {
                    queue.is_over = true;
                    queue.waiting.clear();
                    queue.merged = u64::MAX; // later results are not needed
                }
                Err(error) => queue.failure = Some(error),
            }
        }
        if was_full || queue.is_over {
            self.moved.notify_all();
        }
    }
}

impl<I, M, R, E> Shared<I, M, R, E> {
    fn lock(&self) -> MutexGuard<'_, Queue<I, M, R, E>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Guard that ends the other threads when one panics: they would wait for its result.
struct StopOnPanic<'a, I, M, R, E>(&'a Shared<I, M, R, E>);

impl<I, M, R, E> Drop for StopOnPanic<'_, I, M, R, E> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.lock().is_over = true;
            self.0.moved.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    #[test]
    fn results_are_merged_in_the_order_of_the_items() {
        for threads in [1, 2, 7] {
            let mut merged = Vec::new();
            let push = |item| {
                merged.push(item);
                ControlFlow::Continue(())
            };
            let states = in_order(
                threads,
                0..10_000_u64,
                || 0_u64,
                |sum, item| {
                    *sum += item;
                    Ok::<_, ()>(item)
                },
                push,
            );
            assert_eq!(states.map(|sums| sums.iter().sum::<u64>()), Ok((0..10_000).sum()));
            assert!(merged.iter().copied().eq(0..10_000));
        }
    }

    #[test]
    fn the_first_error_wins_and_all_before_it_is_merged() {
        for threads in [1, 2, 7] {
            let mut merged = 0;
            let count = |()| {
                merged += 1;
                ControlFlow::Continue(())
            };
            let fail = |(): &mut (), item: u64| if item % 100 == 99 { Err(item) } else { Ok(()) };
            assert_eq!(in_order(threads, 0..1_000_000, || (), fail, count), Err(99));
            assert_eq!(merged, 99);
        }
    }

    #[test]
    fn nothing_is_merged_behind_the_result_that_was_the_last_wanted() {
        for threads in [1, 2, 7] {
            let mut merged = Vec::new();
            let until = |item| {
                merged.push(item);
                if item == 10 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            // A later error must not be reported.
            let fail = |(): &mut (), item: u64| if item > 10 { Err(()) } else { Ok(item) };
            assert_eq!(in_order(threads, 0..100_000, || (), fail, until).map(drop), Ok(()));
            assert!(merged.into_iter().eq(0..=10));
        }
    }

    #[test]
    fn a_panic_ends_all_threads() {
        let panic =
            |(): &mut (), item: u64| -> Result<(), ()> { if item == 5 { panic!("on purpose") } else { Ok(()) } };
        let run = || in_order(4, 0..1_000_000, || (), panic, |()| ControlFlow::Continue(()));
        let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
    }

    #[test]
    fn what_was_made_is_finished_in_order_while_the_next_is_made() {
        let (sender, receiver) = mpsc::channel();
        let make = |item: u32| {
            sender.send(item).unwrap();
            Ok::<_, ()>(item)
        };
        let mut latest = None;
        let finish = move |item| {
            while item < 99 && latest <= Some(item) {
                latest = Some(receiver.recv_timeout(Duration::from_secs(60)).expect("the next item is not begun"));
            }
            Ok(item)
        };
        assert_eq!(overlapped(0..100, make, finish), Ok((0..100).collect()));
    }

    #[test]
    fn the_first_item_that_fails_in_either_half_ends_the_work_and_all_before_it_are_finished() {
        for (makes_until, finishes_until) in [(7, 99), (99, 7), (8, 7), (7, 8)] {
            let mut finished = Vec::new();
            let make = |item| if item == makes_until { Err(("make", item)) } else { Ok(item) };
            let finish = |item| {
                if item == finishes_until {
                    return Err(("finish", item));
                }
                finished.push(item);
                Ok(item)
            };
            let half = if makes_until <= finishes_until { "make" } else { "finish" };
            assert_eq!(overlapped(0..99, make, finish), Err((half, 7)));
            assert!(finished.into_iter().eq(0..7));
        }
    }
}
