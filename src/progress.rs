//! How far the work is, shown on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

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
        let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr_with_hz(10));
        let style = ProgressStyle::with_template(
            "{msg}{wide_bar} {percent:>3}%  {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left",
        );
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(if what.is_empty() { String::new() } else { format!("{what}  ") });
        Self(bar)
    }
}

/// A bar for someone to see, or nothing where that is asked for.
#[must_use]
pub fn shown(what: &'static str, bytes: u64, quiet: bool) -> Box<dyn Progress> {
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
