//! How far the work is, shown on a terminal.

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
        let style = ProgressStyle::with_template(
            "{msg}{wide_bar} {percent:>3}%  {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left",
        );
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
    if quiet { Box::new(Silent) } else { Box::new(Bar::new(what, bytes)) }
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
pub(crate) struct Shards(Option<(MultiProgress, Bar)>);

impl Shards {
    /// Of `bytes` of input.
    #[must_use]
    pub(crate) fn new(bytes: u64, quiet: bool) -> Self {
        let bars = || {
            let bars = MultiProgress::with_draw_target(target());
            let whole = bars.add(ProgressBar::new(bytes));
            (bars, Bar::styled(whole, "checkpoint"))
        };
        Self((!quiet).then(bars))
    }

    /// The next shard, of `bytes` of input.
    #[must_use]
    pub(crate) fn shard(&self, what: String, bytes: u64) -> Box<dyn Progress + '_> {
        match &self.0 {
            None => Box::new(Silent),
            Some((bars, whole)) => {
                let shard = Bar::styled(bars.add(ProgressBar::new(bytes)), what);
                Box::new(Shard { whole, shard })
            }
        }
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
