//! `tcast::cast` on files.

use std::error::Error as _;
use std::sync::atomic::{AtomicBool, Ordering};
use tcast::Settings;
use tcast::dtype::Dtype;
use tcast::error::ErrorKind;
use tcast::kernel::{Condition, Loss};
use tcast::options::{CastOptions, Defect, DequantizeOptions, QuantizeOptions};
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
    assert_eq!(error.kind(), ErrorKind::Cancelled);
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

#[test]
fn refused_values_are_an_error_that_contains_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("y.safetensors");
    let mut options = CastOptions::to(Dtype::Float8E4M3FN);
    options.fail_on = vec![Defect::Value(Condition::Lost(Loss::Inexact))];
    let error = tcast::cast(MODEL, &output, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Loss, "{error}");
    let what = "values that are not allowed: no output was written";
    assert!(error.to_string().ends_with(what), "{error}");
    let report = error.report().expect("the error contains the report");
    assert!(!report.is_published);
    let inexact = report.tensors().filter(|tensor| tensor.counts.as_ref().is_some_and(|it| it[Loss::Inexact] > 0));
    assert_eq!(inexact.count(), error.details().len());
    assert!(error.details()[0].contains(" otherwise changed, first at ["), "{:?}", error.details());
    assert_eq!(error.advice(), []); // the program advises with its options
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn a_refused_model_is_an_error_that_contains_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let [decoded, output] = ["decoded", "y"].map(|name| folder.path().join(name));
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/checkpoints/llama-fp8");
    tcast::dequantize(model, &decoded, &DequantizeOptions::default()).unwrap();
    let mut options = QuantizeOptions::scheme("nvfp4").unwrap();
    options.min_sqnr = Some(60.0);
    let error = tcast::quantize(&decoded, &output, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Loss, "{error}");
    assert!(error.to_string().ends_with("more loss than is allowed: no output was written"), "{error}");
    let report = error.report().expect("the error contains the report");
    assert!(!report.is_published && report.tensors().count() > error.details().len());
    assert!(error.details().iter().all(|line| line.ends_with(" dB, below 60 dB")), "{:?}", error.details());
    assert!(!output.exists());
}
