//! How far the work is: a bar on a terminal, a line now and then elsewhere.

use crate::error::size;
use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Told by the engine of every piece of work that is done, from any thread.
pub trait Progress: Sync {
    /// So many more bytes of input are converted.
    fn advance(&self, bytes: u64);
}

/// Shows nothing.
pub struct Silent;

impl Progress for Silent {
    fn advance(&self, _bytes: u64) {}
}

/// A bar on standard error with bytes, rate and time left; nothing where that is no terminal.
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar for `bytes` of input, with a word in front of what is being done. It appears with the first of them.
    #[must_use]
    pub fn new(what: &'static str, bytes: u64) -> Self {
        Self::styled(ProgressBar::with_draw_target(Some(bytes), target()), what)
    }

    fn styled(bar: ProgressBar, what: impl Into<String>) -> Self {
        // What does not fit would wrap, and could not be drawn over.
        let template = if terminal_size::terminal_size_of(std::io::stderr()).is_some_and(|(width, _)| width.0 < 80) {
            "{wide_msg} {percent:>3}%  {eta} left"
        } else {
            "{msg}{wide_bar} {percent:>3}%  {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left"
        };
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let what = what.into();
        bar.set_message(if what.is_empty() { what } else { what + "  " });
        Self(bar)
    }
}

fn target() -> ProgressDrawTarget {
    ProgressDrawTarget::stderr_with_hz(10)
}

/// A bar for someone to see, or nothing where that is asked for.
#[must_use]
pub(crate) fn shown(what: &'static str, bytes: u64, quiet: bool) -> Box<dyn Progress> {
    match quiet {
        true => Box::new(Silent),
        false if std::io::stderr().is_terminal() => Box::new(Bar::new(what, bytes)),
        false => Box::new(Lines::new(what.to_owned(), bytes)),
    }
}

/// A line on standard error every half minute, where that is no terminal: for logs.
pub(crate) struct Lines {
    what: String,
    bytes: u64,
    done: AtomicU64,
    start: Instant,
    interval: Duration,
    next: Mutex<Instant>,
}

impl Lines {
    fn new(what: String, bytes: u64) -> Self {
        // For tests, which do not wait for half a minute.
        let seconds = std::env::var("TCAST_PROGRESS_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
        let (start, interval) = (Instant::now(), Duration::from_secs(seconds.unwrap_or(30)));
        Self { what, bytes, done: AtomicU64::new(0), start, interval, next: Mutex::new(start + interval) }
    }

    fn line(&self, done: u64, seconds: f64) -> String {
        let share = done as f64 / self.bytes.max(1) as f64;
        let what = if self.what.is_empty() { String::new() } else { format!("{}: ", self.what) };
        let rate = size((done as f64 / seconds.max(1e-9)) as u64);
        let left = (seconds / share.max(1e-9) - seconds).max(0.0);
        let (percent, done, all) = (share * 100.0, size(done), size(self.bytes));
        format!("tcast: {what}{percent:.0}%, {done} of {all}, {rate}/s, {left:.0} s left")
    }
}

impl Progress for Lines {
    fn advance(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // Another thread that is at it will print.
        if let Ok(mut next) = self.next.try_lock()
            && Instant::now() >= *next
        {
            *next = Instant::now() + self.interval;
            let line = self.line(done, self.start.elapsed().as_secs_f64());
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }
}

impl Progress for Bar {
    fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Two bars, one under the other: a whole checkpoint, and the shard that is being converted.
pub(crate) enum Shards {
    /// Nothing is shown.
    Quiet,
    /// On a terminal.
    Bars(MultiProgress, Bar),
    /// Of the whole checkpoint.
    Lines(Lines),
}

impl Shards {
    /// Of `bytes` of input.
    #[must_use]
    pub(crate) fn new(bytes: u64, quiet: bool) -> Self {
        if quiet {
            return Self::Quiet;
        }
        if !std::io::stderr().is_terminal() {
            return Self::Lines(Lines::new("checkpoint".to_owned(), bytes));
        }
        let bars = MultiProgress::with_draw_target(target());
        let whole = bars.add(ProgressBar::new(bytes));
        Self::Bars(bars, Bar::styled(whole, "checkpoint"))
    }

    /// The next shard, of `bytes` of input.
    #[must_use]
    pub(crate) fn shard(&self, what: String, bytes: u64) -> Box<dyn Progress + '_> {
        match self {
            Self::Quiet => Box::new(Silent),
            Self::Lines(lines) => Box::new(Rest(lines)),
            Self::Bars(bars, whole) => {
                let shard = Bar::styled(bars.add(ProgressBar::new(bytes)), what);
                Box::new(Shard { whole, shard })
            }
        }
    }
}

/// A shard, of which no lines of its own are printed.
struct Rest<'a>(&'a Lines);

impl Progress for Rest<'_> {
    fn advance(&self, bytes: u64) {
        self.0.advance(bytes);
    }
}

/// A shard of a checkpoint.
struct Shard<'a> {
    whole: &'a Bar,
    shard: Bar,
}

impl Progress for Shard<'_> {
    fn advance(&self, bytes: u64) {
        self.whole.advance(bytes);
        self.shard.advance(bytes);
    }
}
