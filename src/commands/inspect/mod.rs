//! `tcast inspect`: lists the contents of files, or of folders of shards.

mod findings;
mod metadata;
mod pickle;
mod row;
mod text;

use super::arguments::{check_matched, check_printing, read_options, reading};
use super::messages::{print, print_error, print_json, warn};
use crate::cli::{InspectArgs, InspectCondition};
use crate::container::checkpoint::{self, Checkpoint, no_tensor};
use crate::container::gguf::metadata::MetadataFacts;
use crate::error::{Error, ErrorKind, Kind, Opt, Result};
use crate::job;
use crate::lora::AdapterDescription;
use crate::measure::distribution::Distribution;
use crate::plan;
use crate::progress;
use crate::quant::Role;
use crate::read::{Model, ModelTensor};
use crate::report::{schema, serialize_with};
use crate::select::{Pattern, Selection};
use findings::{Finding, findings};
use row::InspectedTensor;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

pub(super) fn run(args: &InspectArgs) -> Result<()> {
    let is_several = args.inputs.len() > 1;
    if is_several {
        job::raise_file_limit();
    }
    let folders: Vec<Result<Checkpoint>> = args.inputs.iter().map(|input| open(args, input)).collect();
    check_printing(folders.iter().flatten())?;
    let models: Vec<Option<Model>> =
        folders.iter().map(|folder| folder.as_ref().ok().map(Model::probe_parts)).collect();
    let selection = Selection { only: args.tensor.clone(), ..args.view.selection() };
    check(args, &selection, &models)
        .map_err(|error| if is_several { error } else { error.in_file(&args.inputs[0]) })?;
    let base = args.base.as_ref().map(|base| checkpoint::open(base, &read_options(&args.view))).transpose()?;
    let base = base.as_ref().map(Model::probe);
    let inspected = inspect(args, &selection, &folders, &models, base.as_ref())?;
    if args.view.json {
        print_documents(&inspected)?;
    }
    // Everything that could be read is shown before an error.
    let stats: Vec<Option<Error>> = inspected.into_iter().map(InspectedInput::into_error).collect();
    drop(models);
    let mut failures = failures(args, folders, stats);
    match (failures.len(), is_several) {
        (0, _) => Ok(()),
        (_, false) => Err(failures.swap_remove(0)),
        (count, true) => {
            failures.iter().for_each(print_error);
            Err(job::summed_up(format!("{count} of {} inputs failed", args.inputs.len()), failures))
        }
    }
}

fn open(args: &InspectArgs, input: &Path) -> Result<Checkpoint> {
    let options = read_options(&args.view);
    let mut found = checkpoint::probe(input, &options)?.with_root(options.root, options.take_rank)?;
    let _ = found.divide_stacks(); // tensors without a name on Hugging Face are listed as the file has them
    Ok(found)
}

/// Lists the contents of all inputs, and prints them unless JSON is wanted.
fn inspect<'a>(
    args: &'a InspectArgs,
    selection: &'a Selection,
    folders: &[Result<Checkpoint>],
    models: &'a [Option<Model<'a>>],
    base: Option<&Model>,
) -> Result<Vec<InspectedInput<'a>>> {
    let mut inspected = Vec::new();
    let mut gap = "";
    for ((input, folder), model) in args.inputs.iter().zip(folders).zip(models) {
        let Some(model) = model else {
            let error = folder.as_ref().err().map(ToString::to_string);
            let document = json!({ "input": input.to_string_lossy(), "error": error });
            inspected.push(InspectedInput::Failed(schema::document(schema::INSPECTION, document)));
            continue;
        };
        let listing = Listing::new((args, input), model, selection, base)?;
        if !args.view.json {
            print(&format!("{gap}{}", listing.text().trim_end()))?;
            gap = "\n";
        }
        inspected.push(InspectedInput::Listing(Box::new(listing)));
    }
    Ok(inspected)
}

fn print_documents(inspected: &[InspectedInput]) -> Result<()> {
    match inspected {
        [InspectedInput::Failed(_)] => Ok(()),
        [listing] => print_json(listing),
        inputs => {
            let (schema, tcast) = (schema::INSPECTION, env!("CARGO_PKG_VERSION"));
            print_json(&Inspections { schema, tcast, inputs })
        }
    }
}

/// Returns the errors of inputs that could not be read, given the errors of their statistics, and then the error about
/// code.
fn failures(args: &InspectArgs, folders: Vec<Result<Checkpoint>>, stats: Vec<Option<Error>>) -> Vec<Error> {
    let code = folders.iter().flatten().filter(|_| args.fail_on == [InspectCondition::Code]);
    let code = code.map(pickle::check_code).find_map(Result::err);
    let failures = folders.into_iter().zip(stats).filter_map(|(folder, stats)| match folder {
        // A shard that is missing is a finding, too.
        Ok(_) if stats.as_ref().is_some_and(|stats| matches!(stats.cause(), Kind::Loss)) => stats,
        Ok(folder) => unread(folder).or(stats),
        Err(error) => Some(error),
    });
    failures.chain(code).collect()
}

/// The document of several inputs.
#[derive(Serialize)]
struct Inspections<'a> {
    schema: u32,
    tcast: &'static str,
    inputs: &'a [InspectedInput<'a>],
}

/// The document of an input.
#[derive(Serialize)]
#[serde(untagged)]
enum InspectedInput<'a> {
    Listing(Box<Listing<'a>>),
    Failed(Value),
}

impl InspectedInput<'_> {
    /// Returns the first error of its statistics, or the error for findings.
    fn into_error(self) -> Option<Error> {
        match self {
            Self::Listing(listing) => {
                let refusal = findings::refusal(listing.findings.as_deref().unwrap_or_default(), listing.input);
                listing.stats.into_iter().find_map(Result::err).or(refusal)
            }
            Self::Failed(_) => None,
        }
    }
}

/// Warns of contradictions, and refuses names and types that do not fit the inputs.
fn check(args: &InspectArgs, selection: &Selection, models: &[Option<Model>]) -> Result<()> {
    let read = || models.iter().flatten();
    if !args.quiet {
        read().flat_map(|model| &model.source.disagreements).for_each(|disagreement| warn(&disagreement.text));
        read().for_each(|model| pickle::warn_of_all_code(model.source));
    }
    // A tensor may be in a file that could not be read.
    if models.iter().all(Option::is_some) {
        let names = read().flat_map(|model| {
            let weights = model.found.weights.iter().map(|weight| &*weight.name);
            model.source.names().chain(weights)
        });
        let names: Vec<&str> = names.collect();
        check_matched(selection, &names, args.view.allow_unmatched, args.quiet)?;
        if let Some(name) = args.tensor.iter().find(|name| !names.contains(&name.as_str())) {
            let error = no_tensor(names.iter().copied(), name);
            let pattern = name.parse::<Pattern>().ok().filter(|pattern| pattern.matches_one(&names));
            return Err(match pattern {
                Some(_) => {
                    let say = "--tensor takes a name; a pattern goes with {}";
                    error.of(Kind::Refused).with_value(Opt::INCLUDE, name, say)
                }
                None => error,
            });
        }
    }
    if args.stats {
        plan::check_from(read().flat_map(|model| model.source.tensors()).map(|(_, tensor)| tensor), args.from)?;
    }
    Ok(())
}

/// Returns the first error of a folder that could not be read in full.
fn unread(folder: Checkpoint) -> Option<Error> {
    // A file may describe its tensors wrongly; but data that another file should hold must be there.
    let unreadable = folder.shards.into_iter().flat_map(|shard| {
        let path = shard.path().to_owned();
        shard.contents.unreadable.into_iter().map(move |error| error.in_file(&path))
    });
    folder.broken.into_iter().chain(unreadable.filter(|error| error.kind() == ErrorKind::Io)).next()
}

struct Listing<'a> {
    args: &'a InspectArgs,
    input: &'a Path,
    model: &'a Model<'a>,
    selection: &'a Selection,
    /// Statistics of each entry; `None` if it has no numbers, or the file does not give their type. Empty if not
    /// requested.
    stats: Vec<Result<Option<Distribution>>>,
    /// Facts about the input, if it is an adapter of another model, or why it could not be merged.
    adapter: Option<Result<AdapterDescription>>,
    /// The metadata that a GGUF file would get from the folder of a language model, or the first thing that it lacks.
    /// Tensors that are selected say nothing about it.
    gguf_metadata: Option<Result<MetadataFacts>>,
    /// Holds what the conditions of the arguments forbid; `None` without conditions, and for code alone.
    findings: Option<Vec<Finding>>,
}

impl<'a> Listing<'a> {
    /// Reads all values if that is requested.
    fn new(
        (args, input): (&'a InspectArgs, &'a Path),
        model: &'a Model<'a>,
        selection: &'a Selection,
        base: Option<&Model>,
    ) -> Result<Self> {
        let adapter = model.source.update_of_other_model().map(|_| AdapterDescription::open(input, base));
        if adapter.is_none() && base.is_some() {
            return Err(Error::usage("is not an adapter, and --base is the base of one").in_file(input));
        }
        let mut listing =
            Self { args, input, model, selection, stats: Vec::new(), adapter, gguf_metadata: None, findings: None };
        if listing.adapter.is_none() && !listing.is_filtered() {
            listing.gguf_metadata = plan::folder_metadata(model);
        }
        if args.stats || args.fail_on.iter().any(|condition| condition.needs_values()) {
            listing.stats = listing.measure();
            model.source.check_unchanged()?;
        }
        if args.fail_on.iter().any(|condition| *condition != InspectCondition::Code) {
            listing.findings = Some(findings(&args.fail_on, model, &listing.entries(), &listing.stats));
        }
        Ok(listing)
    }

    fn source(&self) -> &'a Checkpoint {
        self.model.source
    }

    /// Returns all tensors of the model.
    fn all(&self) -> impl Iterator<Item = ModelTensor<'a>> {
        let found = &self.model.found;
        let of_weights: HashSet<usize> =
            self.model.readable_weights().filter_map(|weight| weight.part(Role::Activation)).collect();
        let scales = found.activation_scales.iter().filter(|at| !of_weights.contains(at));
        let others: Vec<usize> = scales.chain(&found.markers).copied().collect();
        self.model.model_tensors(&others)
    }

    fn entries(&self) -> Vec<InspectedTensor<'a>> {
        let selected = self.all().filter(|tensor| self.is_selected(*tensor));
        selected.map(|tensor| InspectedTensor::new(tensor, self.args.from)).collect()
    }

    /// True if a tensor is selected, or a part of it by its name.
    fn is_selected(&self, tensor: ModelTensor) -> bool {
        let parts = || tensor.weight.iter().flat_map(|weight| &weight.parts);
        let is_part = |name: &String| parts().any(|(_, at)| tensor.model.tensors[*at].name == name.as_str());
        self.selection.selects(tensor.name()) || self.args.tensor.iter().any(is_part)
    }

    /// True if only some tensors are selected; information about the whole file is then left out.
    fn is_filtered(&self) -> bool {
        self.selection.has_patterns() || !self.selection.only.is_empty()
    }

    /// Computes the statistics of all entries.
    fn measure(&self) -> Vec<Result<Option<Distribution>>> {
        let entries = self.entries();
        let bytes = entries.iter().map(|entry| entry.tensor.stored_len()).sum();
        let progress = progress::shown("reading the values", bytes, self.args.quiet);
        let reading = reading(&self.args.view, &*progress);
        entries.iter().map(|entry| entry.measure(reading)).collect()
    }

    fn problems(&self) -> impl Iterator<Item = String> {
        self.model.found.problems.iter().map(|problem| problem.error.to_string())
    }

    fn unreadable(&self) -> impl Iterator<Item = &'a Error> {
        self.source().broken.iter().chain(self.source().shards.iter().flat_map(|input| &input.contents.unreadable))
    }

    /// Counts tensors, elements and bytes of each type, and of each grid of each layout.
    fn totals(entries: &[InspectedTensor]) -> BTreeMap<(String, Option<&'static str>), [u64; 3]> {
        let mut totals: BTreeMap<_, [u64; 3]> = BTreeMap::new();
        for entry in entries {
            let total = totals.entry((entry.dtype(), entry.layout())).or_default();
            for (sum, more) in total.iter_mut().zip([1, entry.count(), entry.bytes()]) {
                *sum += more;
            }
        }
        totals
    }

    /// Returns the JSON document without the tensors.
    fn json_head(&self, entries: &[InspectedTensor]) -> Value {
        let totals = Self::totals(entries).into_iter().map(|((dtype, layout), [tensors, elements, bytes])| {
            let mut total = json!({ "dtype": dtype, "tensors": tensors, "elements": elements, "bytes": bytes });
            if let Some(layout) = layout {
                total["layout"] = json!(layout);
            }
            total
        });
        let shards = self.source().shards.iter().map(|input| {
            let metadata: Map<String, Value> =
                input.contents.metadata.iter().flatten().map(|(key, value)| (key.clone(), json!(value))).collect();
            let lists: Map<String, Value> =
                input.contents.lists.iter().map(|(key, list)| (key.clone(), json!(list))).collect();
            let mut file = json!({
                "file": self.source().shard_name(input),
                "container": input.container.format_info().extension,
                "bytes": input.len(),
                "metadata": metadata,
                "lists": lists,
                "ignored": input.contents.ignored,
            });
            if let Some(facts) = &input.contents.pickle {
                pickle::add_json(&mut file, facts);
            }
            file
        });
        let mut head = json!({
            "input": self.input.to_string_lossy(),
            "index": self.source().index.as_ref().map(|index| &index.name),
            "files": shards.collect::<Vec<_>>(),
            "tensors": null,
            "totals": totals.collect::<Vec<_>>(),
            "unreadable": self.unreadable().map(ToString::to_string).collect::<Vec<_>>(),
            "disagreements": self.source().disagreements.iter().map(|disagreement| &disagreement.text).collect::<Vec<_>>(),
        });
        if let Some(Ok(adapter)) = &self.adapter {
            head["adapter"] = adapter.json();
        }
        if let Some(metadata) = &self.gguf_metadata {
            head["gguf_metadata"] = metadata::json(metadata);
        }
        let (problems, method) = (self.problems().collect::<Vec<_>>(), &self.model.found.method);
        if !problems.is_empty() {
            head["problems"] = json!(problems);
        }
        if let Some((globals, suspicious)) = pickle::globals(self.source()) {
            (head["globals"], head["suspicious"]) = (globals, suspicious);
        }
        if let Some(findings) = &self.findings {
            head["findings"] = json!(findings);
        }
        if let Some(method) = method {
            head["quant_method"] = json!(method);
        }
        schema::document(schema::INSPECTION, head)
    }
}

/// Writes the JSON document tensor by tensor: as values in memory, a million tensors would take gigabytes.
impl Serialize for Listing<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entries = self.entries();
        let rows = (0..).zip(&entries).map(|(at, entry)| entry.json(self.stats.get(at).filter(|_| self.args.stats)));
        serialize_with(&self.json_head(&entries), "tensors", rows, serializer)
    }
}
