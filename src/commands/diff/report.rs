//! `tcast diff --report`: checks that files still contain the tensors of a report.

use super::super::arguments::{check_printing, first_given, read_options, threads};
use super::super::messages::{print, print_json};
use crate::cli::DiffArgs;
use crate::container::Tensor;
use crate::container::checkpoint::{self, Checkpoint};
use crate::error::{Error, Opt, Result};
use crate::io::map::MappedFile;
use crate::job::PartReport;
use crate::measure::hash::of_tensor;
use crate::progress;
use crate::report::{TensorReport, schema};
use crate::text::{columns, counted, is, shorten, stdout_columns};
use crate::threads::each;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::slice;

/// Parts of a report that the check needs.
#[derive(Deserialize)]
struct RecordedReport {
    schema: u32,
    tensors: Vec<TensorReport>,
}

/// A report about several inputs.
#[derive(Deserialize)]
struct SeveralInputs {
    #[serde(rename = "inputs")]
    _inputs: Vec<IgnoredAny>,
}

const REMEDY: &str = "make one with tcast cast --hash --report FILE.json";

/// Name of a tensor, and the problem with it; `None` if there is none.
type CheckedTensor = (String, Option<String>);

pub(super) fn check(report: &Path, args: &DiffArgs) -> Result<bool> {
    check_options(args)?;
    let recorded = read(report).map_err(|error| error.in_file(report))?;
    let source = checkpoint::open(&args.a, &read_options(&args.view))?;
    if args.view.json || !args.quiet {
        check_printing([&source])?;
    }
    let lines = compare(&recorded, &source, args)?;
    source.check_unchanged()?;
    let wrong: Vec<(&String, &String)> =
        lines.iter().filter_map(|(name, wrong)| Some((name, wrong.as_ref()?))).collect();
    if args.view.json {
        let tensors = lines.iter().map(|(name, wrong)| json!({ "name": name, "wrong": wrong }));
        let document = json!({
            "report": report.to_string_lossy(),
            "a": args.a.to_string_lossy(),
            "is_equal": wrong.is_empty(),
            "tensors": tensors.collect::<Vec<_>>(),
        });
        print_json(&schema::document(schema::REPORT_CHECK, document))?;
    } else if !args.quiet {
        let rows: Vec<[String; 2]> = wrong.iter().map(|(name, wrong)| [shorten(name), (*wrong).clone()]).collect();
        let all = lines.len();
        let tensors = counted(all as u64, "tensor");
        let summary = match wrong.len() {
            0 => format!("{tensors} {} as the report says", is(all as u64)),
            count => format!("{tensors}: {} as the report says, {count} not", all - count),
        };
        print(&(columns(&rows, &[], stdout_columns()).map(|line| line + "\n").collect::<String>() + &summary))?;
    }
    Ok(wrong.is_empty())
}

/// Refuses options that only a comparison of values has.
fn check_options(args: &DiffArgs) -> Result<()> {
    let given = [
        (Opt::TOLERANCE, args.tolerance.is_some()),
        (Opt::RTOL, args.rtol.is_some()),
        (Opt::FROM, args.from.is_some()),
        (Opt::INCLUDE, !args.view.include.is_empty()),
        (Opt::EXCLUDE, !args.view.exclude.is_empty()),
        (Opt::FORCE, args.force),
    ];
    let Some(option) = first_given(given) else { return Ok(()) };
    let error = Error::usage("with one input, --report names a report to check, and all of its tensors are checked");
    Err(error.remedy("name two inputs to compare").without(option))
}

fn read(path: &Path) -> Result<RecordedReport> {
    let file = MappedFile::open(path)?;
    if file.starts_with(b"<") {
        return Err(Error::new("is a page, and a comparison needs a report in JSON").remedy(REMEDY));
    }
    let mut recorded: RecordedReport = serde_json::from_slice(&file).map_err(|error| {
        if serde_json::from_slice::<SeveralInputs>(&file).is_ok() {
            let error = Error::new("is a report about several inputs, and a comparison needs one about a single input");
            return error.remedy("convert the inputs one by one, each with a report of its own");
        }
        Error::new(format!("is not a report of tcast: {}", shorten(&error.to_string()))).remedy(REMEDY)
    })?;
    let (version, known) = (recorded.schema, schema::REPORT);
    if version != known {
        return Err(Error::new(format!("is a report of version {version}; this tcast knows {known}")));
    }
    recorded.tensors = recorded.tensors.into_iter().flat_map(stored_tensors).collect();
    let mut stored = HashSet::new();
    recorded.tensors.retain(|tensor| stored.insert(tensor.name.clone())); // the first expert of a stack has its hash
    if recorded.tensors.iter().any(|tensor| tensor.sha256_out.is_none()) {
        let error = Error::new("has no hashes of what was written");
        return Err(error.remedy("make the report with --hash, and without --dry-run"));
    }
    Ok(recorded)
}

/// Returns the stored tensors for a tensor of a report: several if it was quantized, and a stack if it was an expert's.
fn stored_tensors(tensor: TensorReport) -> Vec<TensorReport> {
    let parts = match (&tensor.quantized, &tensor.stack) {
        (Some(quantized), _) => &quantized.parts[..],
        (None, Some(stack)) => slice::from_ref(&**stack),
        (None, None) => return vec![tensor],
    };
    let part = |part: &PartReport| TensorReport {
        name: part.name.clone(),
        to: part.dtype,
        shape: part.shape.clone(),
        sha256_out: part.sha256.clone(),
        quantized: None,
        stack: None,
        ..tensor.clone()
    };
    parts.iter().map(part).collect()
}

/// Describes the problem with each tensor of the report, and then lists additional tensors.
fn compare(recorded: &RecordedReport, source: &Checkpoint, args: &DiffArgs) -> Result<Vec<CheckedTensor>> {
    // A single tensor matches under any name: a .npy file's tensor is named after the file.
    let only = if let [only] = &recorded.tensors[..] { Some(&*only.name) } else { None };
    let only = only.filter(|_| source.tensors().count() == 1);
    let name = |tensor: &'_ Tensor| only.unwrap_or(&tensor.name).to_owned();
    let stored: HashMap<String, _> = source.tensors().map(|(input, tensor)| (name(tensor), (input, tensor))).collect();
    let bytes = stored.values().map(|(_, tensor)| tensor.data.stored_len()).sum();
    let progress = progress::shown("hashing", bytes, args.quiet);
    let wrong = |tensor: &TensorReport| -> Result<Option<String>> {
        let Some((input, there)) = stored.get(&*tensor.name) else { return Ok(Some("is missing".to_owned())) };
        if there.elements.stored_dtype() != tensor.to {
            return Ok(Some(format!("is {}, and was written as {}", there.type_name(), tensor.to)));
        }
        if *there.shape != *tensor.shape {
            return Ok(Some(format!("has the shape {:?}, and was written with {:?}", there.shape, tensor.shape)));
        }
        let hash = of_tensor(there, &input.files, &*progress)?;
        let is_other = hash.as_deref() != tensor.sha256_out.as_deref();
        Ok(is_other.then(|| "has other bytes than were written".to_owned()))
    };
    let line = |at: usize| {
        let tensor = &recorded.tensors[at];
        wrong(tensor).map(|wrong| (tensor.name.to_string(), wrong))
    };
    let lines = each(threads(args.view.threads), recorded.tensors.len(), line);
    let mut lines: Vec<CheckedTensor> = lines.into_iter().collect::<Result<_>>()?;
    let known: HashSet<&str> = recorded.tensors.iter().map(|tensor| &*tensor.name).collect();
    let more = source.tensors().map(|(_, tensor)| name(tensor)).filter(|name| !known.contains(name.as_str()));
    lines.extend(more.map(|name| (name, Some("is not in the report".to_owned()))));
    Ok(lines)
}
