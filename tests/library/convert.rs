//! `tcast::cast` on files.

use std::error::Error as _;
use std::sync::atomic::{AtomicBool, Ordering};
use tcast::Settings;
use tcast::dtype::Dtype;
use tcast::options::CastOptions;
use tcast::progress::Progress;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/model.safetensors");

/// Cancels the work with its first bytes.
#[derive(Default)]
struct AtOnce(AtomicBool);

impl Progress for AtOnce {
    fn advance(&self, _bytes: u64) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn work_that_is_cancelled_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("y.safetensors");
    let at_once = AtOnce::default();
    let mut settings = Settings::default();
    (settings.progress, settings.cancel) = (&at_once, &at_once.0);
    let error = settings.cast(MODEL, &output, &CastOptions::to(Dtype::Bfloat16)).unwrap_err();
    assert_eq!(error.to_string(), format!("{}: cancelled", output.display()));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn an_error_of_the_system_is_the_source_of_ours() {
    let folder = tempfile::tempdir().unwrap();
    let options = CastOptions::to(Dtype::Bfloat16);
    let error = tcast::cast(folder.path().join("x.npy"), folder.path().join("y.npy"), &options).unwrap_err();
    let source = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    assert_eq!(source.map(std::io::Error::kind), Some(std::io::ErrorKind::NotFound));
}
