//! Calls that convert files.

use crate::common::{Bench, npy, npy_f32, same, tree};
use serde_json::Value;
use std::error::Error as _;
use std::sync::atomic::{AtomicBool, Ordering};
use tcast::Settings;
use tcast::dtype::Dtype;
use tcast::error::ErrorKind;
use tcast::kernel::{Condition, Loss};
use tcast::options::{
    BitcastOptions, CastOptions, Defect, DequantizeOptions, PromoteOptions, PromoteRule, QuantizeOptions,
};
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
    assert_eq!(error.advice().last().unwrap().to_string(), "choose a wider type");
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

#[test]
fn one_call_promotes_files_as_the_program_does() {
    let bench = Bench::new();
    bench.write("a.npy", &npy("'|i1'", "(3,)", &[1, 0xfe, 127]));
    bench.write("b.npy", &npy("'<f2'", "(1,)", &[0, 0x3c]));
    let inputs = ["a.npy", "b.npy"].map(|name| bench.path(name));
    let options = PromoteOptions::default();
    let decided = tcast::common_type(&inputs, &options).unwrap();
    assert_eq!((decided.dtype, decided.rule, decided.outputs.len()), (Dtype::Float16, PromoteRule::IntFloat, 0));
    let promoted = tcast::promote(&inputs, bench.path("ours"), &options).unwrap();
    let printed = bench.run("promote a.npy b.npy -o theirs --json -q").stdout;
    same(&tree(&bench.path("ours")), &tree(&bench.path("theirs")));
    let printed: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((printed["dtype"].as_str(), printed["rule"].as_str()), (Some("float16"), Some(promoted.rule.name())));
    for (at, (input, output)) in promoted.inputs.iter().zip(&promoted.outputs).enumerate() {
        let (of_input, of_output) = (&printed["inputs"][at], &printed["outputs"][at]);
        assert_eq!(
            (of_input["tensor"].as_str(), of_input["dtype"].as_str()),
            (Some(&*input.name), Some(input.dtype.name()))
        );
        assert_eq!((of_input["can_lose"].as_bool(), &input.input), (Some(input.can_lose), &inputs[at]));
        assert_eq!((of_output["bytes_in"].as_u64(), output.output.exists()), (Some(output.bytes_in), true));
        assert!(output.is_published && output.operator == "promote", "{output:?}");
    }
    let mut settings = Settings::default();
    settings.existing = tcast::IfExists::Skip;
    let kept = settings.promote(&inputs, bench.path("ours"), &options).unwrap();
    assert!(
        kept.outputs.len() == 2 && kept.outputs.iter().all(|output| !output.is_published && output.files.is_empty())
    );
}

#[test]
fn a_promotion_names_the_choice_that_it_needs_without_flags() {
    let bench = Bench::with("model.safetensors", "m.safetensors");
    bench.write("x.npy", &npy_f32(&[1.0]));
    let inputs = [bench.path("m.safetensors"), bench.path("x.npy")];
    let mut options = PromoteOptions::default();
    let refusal = |options: &PromoteOptions| tcast::promote(&inputs, bench.path("out"), options).unwrap_err();
    let several = refusal(&options);
    assert_eq!(several.kind(), ErrorKind::Usage);
    assert!(several.to_string().ends_with("m.safetensors: contains 12 tensors; choose one"), "{several}");
    options.tensor = vec!["none".to_owned()];
    let missing = refusal(&options);
    assert!(missing.to_string().ends_with("m.safetensors: there is no tensor 'none'"), "{missing}");
    assert_eq!((missing.kind(), missing.advice()), (ErrorKind::Refused, &[][..]));
    options.tensor = vec!["model.norm.weight".to_owned()];
    options.saturate = Some(true);
    assert_eq!(refusal(&options).to_string(), "saturate is for float8 types, and the common one is float32");
    let (at_once, empty): (AtOnce, [&str; 0]) = (AtOnce::default(), []);
    let nothing = tcast::common_type(&empty, &PromoteOptions::default()).unwrap_err();
    assert_eq!(nothing.to_string(), "promote needs at least one input");
    let mut settings = Settings::default();
    (settings.progress, settings.cancel) = (&at_once, &at_once.0);
    options.saturate = None;
    let cancelled = settings.promote(&inputs, bench.path("out"), &options).unwrap_err();
    assert_eq!(cancelled.kind(), ErrorKind::Cancelled, "{cancelled}");
    assert_eq!(bench.files(), ["m.safetensors", "x.npy"]);
}

#[test]
fn one_call_reinterprets_bits_as_the_program_does() {
    let bench = Bench::with_checkpoint("llama-tiny-bf16", "llama");
    let report = tcast::bitcast(bench.path("llama"), bench.path("a"), &BitcastOptions::to(Dtype::Int16)).unwrap();
    bench.run("bitcast llama --to int16 -o b -q").expect(0, "", "");
    same(&tree(&bench.path("a")), &tree(&bench.path("b")));
    assert!(report.is_published && report.operator == "bitcast" && report.tensors().all(|it| it.to == Dtype::Int16));
    let refused = tcast::bitcast(bench.path("llama"), bench.path("c"), &BitcastOptions::to(Dtype::Int32)).unwrap_err();
    assert!(
        refused.to_string().ends_with("bfloat16 has 16 bits and int32 has 32: a bitcast keeps the width"),
        "{refused}"
    );
    assert!(!bench.path("c").exists());
}

#[test]
fn patterns_that_match_nothing_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("y.safetensors");
    let refused = |options: &CastOptions| tcast::cast(MODEL, &output, options).unwrap_err();
    let (mut include, mut rule) = (CastOptions::to(Dtype::Bfloat16), CastOptions::to(Dtype::Bfloat16));
    include.tensors.include = vec!["*nrm*".parse().unwrap()];
    rule.rule = vec!["*nrm*=keep".parse().unwrap()];
    for (options, option) in [(&include, "include"), (&rule, "rule")] {
        let error = refused(options);
        assert!(error.to_string().ends_with(&format!("{option} '*nrm*' matches no tensor")), "{error}");
        assert!(error.advice().last().unwrap().to_string().contains("`allow_unmatched`"));
    }
    include.tensors.allow_unmatched = true;
    tcast::cast(MODEL, &output, &include).unwrap();
    let mut quantize = QuantizeOptions::scheme("fp8").unwrap();
    quantize.rule = vec!["*nrm*=keep".parse().unwrap()];
    assert_eq!(tcast::quantize(MODEL, &output, &quantize).unwrap_err().kind(), ErrorKind::Usage);
}

#[test]
fn a_refused_loss_has_advice() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = CastOptions::to(Dtype::Float8E4M3FN);
    options.fail_on = vec![Loss::Saturated.into()];
    let error = tcast::cast(MODEL, folder.path().join("y.safetensors"), &options).unwrap_err();
    let advice: Vec<String> = error.advice().iter().map(ToString::to_string).collect();
    let rules = "`rule` (model.layers.0.mlp.down_proj.weight=keep), `rule` (model.rope_theta=keep)";
    assert_eq!(advice, [format!("leave the tensors as they are with {rules}"), "choose a wider type".to_owned()]);
}
