//! `tcast diff`: compares two files or folders of shards.

mod report;

use super::arguments::{check_matched, check_printing, reading};
use super::messages::{note, print, print_json, warn};
use super::report_file::ReportFile;
use crate::cli::DiffArgs;
use crate::error::{Error, Result};
use crate::io::identity::Files;
use crate::measure::compare::{self, DiffOptions, DiffStatus, TensorDiff};
use crate::options::{Naming, NamingOptions};
use crate::progress;
use crate::read::Model;
use crate::report::{diff, diff_page, schema};
use crate::text::{counted, path_text, quoted, stdout_columns};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Compares two inputs. The exit code is 0 when everything is equal, otherwise 1.
pub(super) fn run(args: &DiffArgs) -> Result<ExitCode> {
    let is_equal = match (&args.b, &args.report) {
        (Some(b), _) => compare_inputs([&args.a, b], args)?,
        (None, Some(report)) => report::check(report, args)?,
        (None, None) => return Err(Error::usage("name what to compare with")),
    };
    Ok(ExitCode::from(u8::from(!is_equal)))
}

fn compare_inputs(paths: [&PathBuf; 2], args: &DiffArgs) -> Result<bool> {
    let progress = progress::shown("comparing", 0, args.quiet);
    let options = DiffOptions {
        selection: args.view.selection(),
        from: args.from,
        names: args.names,
        single_experts: args.experts.is_some(),
        root: args.view.root.clone(),
        take_rank: args.view.take_rank,
        tolerance: args.tolerance.map(|tolerance| tolerance.0),
        rtol: args.rtol.map(|rtol| rtol.0),
    };
    let (mut report_file, mut has_other_names) = (None, false);
    let check = |models: &[Model; 2], names: &[&str]| {
        if !args.quiet {
            models.iter().for_each(print_problems);
        }
        if args.view.json || !args.quiet {
            check_printing(models.iter().map(|model| model.source))?;
        }
        check_matched(&options.selection, names, args.view.allow_unmatched, args.quiet)?;
        if !names.is_empty() && !names.iter().any(|name| options.selection.selects(name)) {
            let error = Error::usage("--include and --exclude leave no tensor");
            return Err(error.remedy("tcast inspect lists the names"));
        }
        has_other_names = args.names.is_none() && models[0].source.is_gguf() != models[1].source.is_gguf();
        if let Some(path) = &args.report {
            let mut files = Files::default();
            models.iter().try_for_each(|model| model.source.files().map(|paths| files.read(paths)))?;
            report_file = Some(ReportFile::new(path, args.force, false, &[], &mut files)?);
        }
        Ok(())
    };
    let report = compare::diff(paths.map(PathBuf::as_path), &options, reading(&args.view, &*progress), check)?;
    drop(progress);
    let document = || schema::document(schema::DIFFERENCES, json!(report));
    if let Some(file) = report_file {
        file.write(true, false, || Ok(diff_page(&report)), document)?;
    }
    if args.view.json {
        print_json(&document())?;
    } else if !args.quiet {
        print(&diff::text(&report, stdout_columns()))?;
    }
    if has_other_names && !args.quiet && report.tensors.iter().all(is_alone) && can_be_renamed(paths) {
        let [a, b] = paths.map(|path| quoted(path));
        note(&format!("the names differ in kind. With names of Hugging Face: tcast diff {a} {b} --names huggingface"));
    }
    // Everything that could be read is shown before an error.
    report.tensors.into_iter().find_map(|tensor| tensor.error).map_or(Ok(report.is_equal), |error| Err(*error))
}

/// True if only one side has the tensor.
fn is_alone(tensor: &TensorDiff) -> bool {
    matches!(tensor.comparison.status, DiffStatus::OnlyInA | DiffStatus::OnlyInB)
}

/// True if the tensors of each GGUF file among the inputs have names of Hugging Face.
fn can_be_renamed(paths: [&PathBuf; 2]) -> bool {
    let naming = NamingOptions { names: Some(Naming::HuggingFace), ..NamingOptions::default() };
    paths.iter().all(|path| naming.probe(path, 1).and_then(|source| naming.apply(source)).is_ok())
}

/// Warns if it is unclear which tensors are quantized weights.
fn print_problems(model: &Model) {
    let Some(problem) = model.found.problems.first() else { return };
    let more = match model.found.problems.len() - 1 {
        0 => String::new(),
        more => format!(" (and {} more like this)", counted(more as u64, "problem")),
    };
    let path = path_text(&model.source.path);
    warn(&format!("{path}: {}{more}: such tensors are compared as they are stored", problem.error));
}
