//! Handling of signals: they remove half-written files, and end the process with a message.
#![allow(clippy::exit, reason = "an interrupt ends the process from a thread of its own")]

#[cfg(unix)]
use super::messages::print_error;
use super::messages::print_message;
use super::notes::describe;
use crate::error::Error;
use crate::io::temporaries;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU8, Ordering};

/// Exit code if a truncated input ends the process.
static CUT_SHORT: AtomicU8 = AtomicU8::new(1);

/// Sets the exit code for a process that a truncated input ends.
pub(super) fn set_exit_code(code: u8) {
    CUT_SHORT.store(code, Ordering::Relaxed);
}

/// Makes the signals that end a process first remove half-written files, and exit with code 130: SIGINT, SIGTERM and
/// SIGXCPU, and, unless they are ignored, SIGQUIT, SIGUSR1, SIGUSR2, the signals of timers, SIGHUP when a terminal
/// closes, and on Linux the signals of power, descriptors, coprocessors and real time. A SIGBUS, caused by an input
/// that was truncated, becomes an ordinary error. A file beyond the size limit is then a write error, not a SIGXFSZ. On
/// Windows, these are Ctrl-C, Ctrl-Break, and the end of the console or of the session.
///
/// The signals that only Linux has are registered before the first temporary file: until then there is nothing to remove,
/// and their default action ends the process, without a message. Registering them would take a fourth of the instructions of
/// a start.
///
/// The signals of faults, such as SIGSEGV, end the process at once: after a fault, no code can be relied on.
#[cfg(unix)]
pub fn remove_temporaries_on_interrupt() -> Result<(), Error> {
    use crate::io::map;
    use signal_hook::consts::{
        SIGALRM, SIGBUS, SIGHUP, SIGINT, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ,
    };
    let failed = |error: std::io::Error| Error::io("cannot listen to signals", &error);
    map::note_faults().map_err(failed)?;
    signal_hook::flag::register(SIGXFSZ, std::sync::Arc::default()).map_err(failed)?;
    let others = [SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGHUP];
    let ignored = ignored_signals();
    // nohup ignores SIGHUP. Only Linux reveals that without unsafe code; elsewhere this signal is left alone.
    let is_handled = move |signal: &i32| ignored.map_or(*signal != SIGHUP, |mask| mask >> (signal - 1) & 1 == 0);
    let handled = [SIGINT, SIGTERM, SIGXCPU, SIGBUS].into_iter().chain(others.into_iter().filter(is_handled));
    let mut signals = signal_hook::iterator::Signals::new(handled).map_err(failed)?;
    let handle = signals.handle();
    temporaries::before_listing(move || {
        // If this fails, the signal ends the process, and a later run removes the leftovers.
        of_linux().into_iter().filter(is_handled).for_each(|signal| drop(handle.add_signal(signal)));
    });
    let listen = move || signals.forever().for_each(|signal| if signal == SIGBUS { end_cut_short() } else { end() });
    std::thread::Builder::new().spawn(listen).map_err(failed)?;
    Ok(())
}

#[cfg(windows)]
pub fn remove_temporaries_on_interrupt() -> Result<(), Error> {
    ctrlc::set_handler(end).map_err(|error| Error::new(format!("cannot listen to interrupts: {error}")))
}

/// Removes half-written files, and ends the process, unless it ends by itself.
fn end() {
    let Some(interrupt) = temporaries::remove_temporaries() else { return };
    let kept = interrupt.kept.as_ref().map_or("no output was written".to_owned(), describe);
    let line_end = if std::io::stderr().is_terminal() { "\n" } else { "" }; // after the terminal's ^C
    print_message(&format!("{line_end}tcast: interrupted, {kept}"));
    std::process::exit(130);
}

/// Does the same, with the error for an input that was truncated.
#[cfg(unix)]
fn end_cut_short() {
    let Some(interrupt) = temporaries::remove_temporaries() else { return };
    print_error(&crate::io::map::fault());
    if let Some(kept) = &interrupt.kept {
        print_message(&format!("tcast: {}", describe(kept)));
    }
    std::process::exit(CUT_SHORT.load(Ordering::Relaxed).into());
}

/// Returns the signals that end a process on Linux only: of descriptors, power, coprocessors and real time.
#[cfg(target_os = "linux")]
fn of_linux() -> Vec<i32> {
    let mut signals = vec![libc::SIGIO, libc::SIGPWR];
    #[cfg(not(any(target_arch = "mips", target_arch = "mips64", target_arch = "sparc64")))]
    signals.push(libc::SIGSTKFLT);
    signals.extend(libc::SIGRTMIN()..=libc::SIGRTMAX());
    signals
}

#[cfg(all(unix, not(target_os = "linux")))]
fn of_linux() -> [i32; 0] {
    []
}

/// Returns the signals that the process ignores from its start, as a mask; `None` if the system does not say.
#[cfg(unix)]
fn ignored_signals() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

/// Ignores interrupts from here on, because the process ends by itself.
pub fn end_interrupts() {
    temporaries::end_interrupts();
}
