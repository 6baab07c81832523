//! `--report FILE`: the report as a page or as JSON.

use super::arguments::threads;
use crate::cli::FileArgs;
use crate::container::ReadOptions;
use crate::container::checkpoint::{self, Checkpoint};
use crate::dtype::Dtype;
use crate::error::{Advice, Error, OTHER_FILE, Opt, Result};
use crate::io::identity::{Files, is_within};
use crate::io::output::{Destination, is_standard_output};
use crate::measure::distribution::{self, Histogram};
use crate::plan::source_form;
use crate::progress::Silent;
use crate::report::{ExponentSpread, Report, TensorReport, page};
use crate::text::write_json;
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Number of tensors whose exponents are shown: the ones with the most noise.
const WORST: usize = 4;

/// Destination and format of a report.
pub(super) struct ReportFile {
    destination: Destination,
    is_page: bool,
}

impl ReportFile {
    /// Checks that the report can be written together with the other files of the run; `replace` allows an existing
    /// file. `is_part`: the run is one part of a conversion. Refuses a file that exists, is a file of the run or in its
    /// output, has another extension, or has no folder.
    pub(super) fn new(path: &Path, replace: bool, is_part: bool, outputs: &[PathBuf], run: &mut Files) -> Result<Self> {
        let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
        let is_page = extension == "html";
        if !is_page && extension != "json" {
            let error = Error::usage("a report is a page or JSON").in_file(path);
            return Err(error.remedy("name it something.html or something.json"));
        }
        if is_page && outputs.len() > 1 {
            let error = Error::usage("a page is about one input, and there are several").in_file(path);
            return Err(error.remedy("name a .json, or convert the inputs one by one"));
        }
        if outputs.iter().any(|output| is_within(path, output)) {
            let error = Error::new("the report is, or is in, the output").in_file(path);
            return Err(error.with(Opt::REPORT, OTHER_FILE));
        }
        let destination = Destination::among(run, path, replace);
        let destination = destination.map_err(|error| about_report(error, !is_part))?;
        Ok(Self { destination, is_page })
    }

    /// Writes the report on an input; `from` is the type of its untyped elements.
    pub(super) fn write_report(
        self,
        report: &Report,
        source: &Checkpoint,
        from: Option<Dtype>,
        args: &FileArgs,
    ) -> Result<()> {
        let page = || Ok(page(report, &spreads(report, source, from, threads(args.threads))?));
        self.write(!args.no_sync, report.is_published, page, || report)
    }

    /// Writes the page, or the document as JSON. `is_published`: the output has its name already, so it stays whatever
    /// happens here.
    pub(super) fn write<D: Serialize>(
        self,
        sync: bool,
        is_published: bool,
        page: impl FnOnce() -> Result<String>,
        document: impl FnOnce() -> D,
    ) -> Result<()> {
        if !self.is_page {
            return self.write_json(&document(), sync, is_published);
        }
        let text = page()?;
        self.write_with(sync, is_published, |file| file.write_all(text.as_bytes()))
    }

    pub(super) fn write_json(self, document: &impl Serialize, sync: bool, is_published: bool) -> Result<()> {
        self.write_with(sync, is_published, |file| write_json(&mut *file, document).and_then(|()| writeln!(file)))
    }

    fn write_with(
        self,
        sync: bool,
        is_published: bool,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<()> {
        self.destination.write(sync, write).map_err(|error| {
            let complete = is_published.then(|| "the output is complete; only its report is missing".to_owned());
            about_report(error, true).with_details(complete.into_iter().collect())
        })
    }
}

/// Returns the error for a report in place of an output. Other parts of a conversion may need a report that exists.
fn about_report(error: Error, is_replaceable: bool) -> Error {
    let kept = error.advice().iter().filter(|advice| is_replaceable || !advice.sets(Opt::FORCE));
    let advice: Vec<Advice> = kept.cloned().map(Advice::about_report).collect();
    error.advised(advice)
}

/// Returns the exponents of the noisiest tensors, before and after. Parts of a checkpoint cannot be read yet.
fn spreads(report: &Report, source: &Checkpoint, from: Option<Dtype>, threads: usize) -> Result<Vec<ExponentSpread>> {
    // An existing output may not be from this run, or the output is not a file.
    if !report.is_published || is_standard_output(&report.output) {
        return Ok(Vec::new());
    }
    let Ok(output) = checkpoint::probe(&report.output, &ReadOptions::on(1)) else { return Ok(Vec::new()) };
    let noise = |tensor: &&TensorReport| {
        tensor.accuracy.as_ref().and_then(|accuracy| accuracy.sqnr_db).filter(|noise| noise.is_finite())
    };
    let mut worst: Vec<&TensorReport> = report.tensors().filter(|tensor| noise(tensor).is_some()).collect();
    worst.sort_by(|left, right| noise(left).partial_cmp(&noise(right)).unwrap_or(std::cmp::Ordering::Equal));
    worst.truncate(WORST);
    let exponents = |checkpoint: &Checkpoint, name: &str, from: Option<Dtype>| -> Result<Histogram> {
        // A single tensor matches under any name: a .npy file's tensor is named after the file.
        let is_only = checkpoint.tensors().count() == 1;
        let found = checkpoint.tensors().find(|(_, tensor)| is_only || *tensor.name == *name);
        let Some((file, tensor)) = found else { return Ok(Histogram::default()) };
        let Ok(form) = source_form(tensor, from) else { return Ok(Histogram::default()) };
        let stats = distribution::of(tensor, form, &file.files, threads, &Silent)
            .map_err(|error| error.in_file(file.path()))?;
        Ok(stats.map(|stats| stats.exponents).unwrap_or_default())
    };
    let spread = |tensor: &TensorReport| {
        let before = exponents(source, tensor.renamed_from.as_ref().unwrap_or(&tensor.name), from)?;
        Ok(ExponentSpread { name: tensor.name.to_string(), before, after: exponents(&output, &tensor.name, None)? })
    };
    worst.into_iter().map(spread).collect()
}
