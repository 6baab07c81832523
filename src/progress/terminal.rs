//! The program's progress: a bar on a terminal, otherwise an occasional line.

use super::{Progress, ShardProgress, Silent};
use crate::text::{size, stderr_columns};
use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar on standard error with bytes, rate and time left; nothing if that is not a terminal. Until the number of bytes is
/// known, the line is only the message.
struct Bar(ProgressBar);

impl Bar {
    fn new(bar: ProgressBar, what: impl Into<String>) -> Self {
        let what = what.into();
        let what = if what.is_empty() { what } else { what + "  " };
        bar.set_style(style(bar.length().unwrap_or(0), what.chars().count()));
        bar.set_message(what);
        Self(bar)
    }
}

/// Returns the style of a line about this many bytes, 0 if they are unknown, with a word of `word` characters.
fn style(bytes: u64, word: usize) -> ProgressStyle {
    let template = if bytes == 0 { "{wide_msg}".to_owned() } else { template(stderr_columns().unwrap_or(80), word) };
    ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Returns the template of a line that fits into `columns` columns, with a word of `word` characters: first the numbers
/// become fewer, then the bar becomes shorter, then the word; the bar goes last. A line that does not fit would wrap
/// and could not be redrawn.
fn template(columns: usize, word: usize) -> String {
    /// Columns of the shortest bar.
    const BAR: usize = 10;
    // For each, the minimum number of columns, and the number that it takes.
    let figures = [
        (80, 58, " {percent:>3}%  {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left"),
        (50, 17, " {percent:>3}%  {eta} left"),
        (0, 5, " {percent:>3}%"),
    ];
    let (_, taken, figures) = figures.into_iter().find(|(from, ..)| columns >= *from).unwrap_or_default();
    let free = columns.saturating_sub(taken);
    match free {
        _ if free >= word + BAR => format!("{{msg}}{{wide_bar}}{figures}"),
        _ if free > 2 * BAR => format!("{{wide_msg}} {{bar:{BAR}}}{figures}"),
        _ => format!("{{wide_msg}}{figures}"),
    }
}

fn target() -> ProgressDrawTarget {
    ProgressDrawTarget::stderr_with_hz(10)
}

/// Returns a progress bar, lines if there is no terminal, or nothing if `quiet`.
pub(crate) fn shown(what: &'static str, bytes: u64, quiet: bool) -> Box<dyn Progress> {
    match quiet {
        true => Box::new(Silent),
        false if std::io::stderr().is_terminal() => {
            Box::new(Bar::new(ProgressBar::with_draw_target(Some(bytes), target()), what))
        }
        false => Box::new(Lines::new(what, bytes)),
    }
}

impl Progress for Bar {
    fn begin(&self, bytes: u64) {
        self.0.set_style(style(bytes, self.0.message().chars().count()));
        self.0.set_length(bytes);
    }

    fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Progress as a line on standard error every half minute, if that is not a terminal: for logs.
struct Lines {
    what: &'static str,
    bytes: AtomicU64,
    done: AtomicU64,
    start: Instant,
    interval: Duration,
    next: Mutex<Instant>,
}

impl Lines {
    fn new(what: &'static str, bytes: u64) -> Self {
        // For tests, which do not wait for half a minute.
        let seconds = std::env::var("TCAST_PROGRESS_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
        let (start, interval) = (Instant::now(), Duration::from_secs(seconds.unwrap_or(30)));
        let next = Mutex::new(start + interval);
        Self { what, bytes: bytes.into(), done: AtomicU64::new(0), start, interval, next }
    }

    fn line(&self, done: u64, seconds: f64) -> String {
        let all = self.bytes.load(Ordering::Relaxed);
        let share = done as f64 / all.max(1) as f64;
        let what = if self.what.is_empty() { String::new() } else { format!("{}: ", self.what) };
        let rate = size((done as f64 / seconds.max(1e-9)) as u64);
        let left = (seconds / share.max(1e-9) - seconds).max(0.0);
        let (percent, done, all) = (share * 100.0, size(done), size(all));
        format!("tcast: {what}{percent:.0}%, {done} of {all}, {rate}/s, {left:.0} s left")
    }
}

impl Progress for Lines {
    fn begin(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    fn advance(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // If another thread holds the lock, that one prints.
        if let Ok(mut next) = self.next.try_lock()
            && Instant::now() >= *next
        {
            *next = Instant::now() + self.interval;
            let line = self.line(done, self.start.elapsed().as_secs_f64());
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }
}

/// The progress of a whole checkpoint; on a terminal, with a second bar for the shard that is being converted.
pub(crate) struct Shards {
    whole: Box<dyn Progress>,
    bars: Option<MultiProgress>,
}

impl Shards {
    /// Creates the progress for `bytes` of input.
    pub(crate) fn new(bytes: u64, quiet: bool) -> Self {
        if quiet || !std::io::stderr().is_terminal() {
            return Self { whole: shown("checkpoint", bytes, quiet), bars: None };
        }
        let bars = MultiProgress::with_draw_target(target());
        let whole = Box::new(Bar::new(bars.add(ProgressBar::new(bytes)), "checkpoint"));
        Self { whole, bars: Some(bars) }
    }
}

impl ShardProgress for Shards {
    fn shard(&self, what: String, bytes: u64) -> Box<dyn Progress + '_> {
        let shard = self.bars.as_ref().map(|bars| Bar::new(bars.add(ProgressBar::new(bytes)), what));
        Box::new(ShardBar { whole: &*self.whole, shard })
    }
}

/// A shard of a checkpoint.
struct ShardBar<'a> {
    whole: &'a dyn Progress,
    shard: Option<Bar>,
}

impl Progress for ShardBar<'_> {
    fn advance(&self, bytes: u64) {
        self.whole.advance(bytes);
        self.shard.iter().for_each(|shard| shard.advance(bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::TermLike;
    use std::io;
    use std::sync::Arc;

    /// A terminal of some width that records its output.
    #[derive(Clone, Debug)]
    struct Terminal(u16, Arc<Mutex<String>>);

    impl Terminal {
        fn add(&self, text: &str) {
            self.1.lock().unwrap().push_str(text);
        }
    }

    impl TermLike for Terminal {
        fn width(&self) -> u16 {
            self.0
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.add(text);
            Ok(())
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.add(text);
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            self.1.lock().unwrap().clear();
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the line that a terminal of `columns` shows when 3 of 4 GiB are done.
    fn line(columns: u16, word: &str) -> String {
        let terminal = Terminal(columns, Arc::default());
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let bar = ProgressBar::with_draw_target(Some(4 << 30), target);
        bar.set_style(ProgressStyle::with_template(&template(columns.into(), word.chars().count())).unwrap());
        bar.set_message(word.to_owned());
        bar.set_position(3 << 30);
        bar.force_draw();
        terminal.1.lock().unwrap().clone()
    }

    #[test]
    fn without_a_known_number_of_bytes_there_is_no_bar() {
        let terminal = Terminal(100, Arc::default());
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let bar = Bar::new(ProgressBar::with_draw_target(Some(0), target), "comparing");
        let line = || {
            bar.0.force_draw();
            terminal.1.lock().unwrap().trim_end().to_owned()
        };
        assert_eq!(line(), "comparing");
        bar.begin(4 << 30);
        let line = line();
        assert!(line.starts_with("comparing  ") && line.contains("  0%"), "{line}");
    }

    #[test]
    fn a_line_fits_into_any_terminal_and_becomes_simpler_in_steps() {
        let bars = |line: &str| line.chars().filter(|c| "\u{2588}\u{2591}".contains(*c)).count();
        for word in ["", "hashing  ", "12/34 model-00012-of-00034.safetensors  "] {
            for columns in 8..200 {
                let line = line(columns, word);
                assert!(line.trim_end().chars().count() <= columns.into(), "{columns}: {line:?}");
                assert!(line.contains(" 75%"), "{columns}: {line:?}");
                assert_eq!(line.contains(" left"), columns >= 50, "{columns}: {line:?}");
                assert_eq!(line.contains("3.00 GiB of 4.00 GiB"), columns >= 80, "{columns}: {line:?}");
                if columns >= 40 {
                    assert!(bars(&line) >= 10, "{columns}: {line:?}");
                }
            }
            assert_eq!(bars(&line(14, word)), 0);
        }
    }
}
