//! `tcast inspect`: what is in a file, or in a folder of shards.

use super::{check_matched, print, print_json, threads, warn};
use crate::cli::InspectArgs;
use crate::container::checkpoint::{self, Checkpoint};
use crate::container::{Elements, Form, Input, Tensor, indices, position};
use crate::error::{Error, Result};
use crate::measure::distribution::{self, Distribution, Histogram};
use crate::measure::number::Number;
use crate::plan;
use crate::progress;
use crate::report::serialize_with;
use crate::select::Selection;
use crate::text::{brief, columns, counted, path_text, shorten, size, visible};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The version of the JSON document; it changes when a field changes its meaning or goes.
const SCHEMA: u32 = 1;

pub(super) fn run(args: &InspectArgs) -> Result<()> {
    let folder = checkpoint::probe(&args.input)?;
    let selection = Selection { include: args.include.clone(), exclude: args.exclude.clone(), ..Selection::default() };
    let mut listing = Listing { args, folder: &folder, selection: &selection, stats: Vec::new() };
    if !args.quiet {
        folder.disagreements.iter().for_each(|disagreement| warn(&disagreement.text));
    }
    let names: Vec<&str> = folder.names().collect();
    check_matched(&selection, &names, args.allow_unmatched, args.quiet).map_err(|error| error.in_file(&args.input))?;
    if args.stats {
        plan::check_from(folder.tensors().map(|(_, tensor)| tensor), args.from)
            .map_err(|error| error.in_file(&args.input))?;
        listing.stats = listing.measure();
        folder.check_unchanged()?;
    }
    if args.json {
        print_json(&listing)?;
    } else {
        print(listing.text().trim_end())?;
    }
    // All that could be read is shown first.
    let failed = listing.stats.into_iter().find_map(Result::err);
    folder.broken.into_iter().next().or(failed).map_or(Ok(()), Err)
}

/// What is to be shown.
struct Listing<'a> {
    args: &'a InspectArgs,
    folder: &'a Checkpoint,
    selection: &'a Selection,
    /// Of each entry; `None` where it has no numbers, or the file does not say what they are. Empty if not asked for.
    stats: Vec<Result<Option<Distribution>>>,
}

/// A tensor with the file that it is in.
struct InspectedTensor<'a> {
    shard: usize,
    input: &'a Input,
    tensor: &'a Tensor,
    /// What its elements are, `--from` heeded; `None` where that is not known.
    form: Option<Form>,
}

impl InspectedTensor<'_> {
    fn dtype(&self) -> String {
        match (self.form, self.tensor.elements) {
            (Some(form), _) | (None, Elements::Typed(form)) => form.dtype().to_string(),
            (None, Elements::Untyped(bytes)) => format!("{bytes}-byte opaque"),
            (None, Elements::Opaque) => "unsupported".to_owned(),
        }
    }

    fn count(&self) -> u64 {
        self.tensor.shape.iter().product() // which was checked when the file was read
    }

    /// Bytes of the elements, as they are where nothing is compressed.
    fn bytes(&self) -> u64 {
        self.tensor.elements.bytes(self.tensor.count).unwrap_or(self.tensor.data.stored_len())
    }
}

impl<'a> Listing<'a> {
    fn entries(&self) -> Vec<InspectedTensor<'a>> {
        let (shards, from) = (self.folder.shards.iter().enumerate(), self.args.from);
        let all = shards.flat_map(|(shard, input)| {
            input.contents.tensors.iter().map(move |tensor| {
                let form = plan::source_form(tensor, from).ok();
                InspectedTensor { shard, input, tensor, form }
            })
        });
        all.filter(|entry| self.selection.selects(entry.input.name_of(entry.tensor))).collect()
    }

    /// Reads all values.
    fn measure(&self) -> Vec<Result<Option<Distribution>>> {
        let entries = self.entries();
        let bytes = entries.iter().map(|entry| entry.tensor.data.stored_len()).sum();
        let progress = progress::shown("reading the values", bytes, self.args.quiet);
        let measure = |entry: &InspectedTensor| {
            let Some(form) = entry.form else { return Ok(None) };
            distribution::of(entry.tensor, form, &entry.input.files, threads(self.args.threads), &*progress)
                .map_err(|error| error.in_file(entry.input.path()))
        };
        entries.iter().map(measure).collect()
    }

    fn unreadable(&self) -> impl Iterator<Item = &'a Error> {
        self.folder.broken.iter().chain(self.folder.shards.iter().flat_map(|input| &input.contents.unreadable))
    }

    /// Tensors, elements and bytes of each type.
    fn totals(entries: &[InspectedTensor]) -> BTreeMap<String, [u64; 3]> {
        let mut totals: BTreeMap<String, [u64; 3]> = BTreeMap::new();
        for entry in entries {
            let total = totals.entry(entry.dtype()).or_default();
            for (sum, more) in total.iter_mut().zip([1, entry.count(), entry.bytes()]) {
                *sum += more;
            }
        }
        totals
    }

    /// The JSON document, but for the tensors.
    fn json_head(&self, entries: &[InspectedTensor]) -> Value {
        let totals = Self::totals(entries).into_iter().map(|(dtype, [tensors, elements, bytes])| {
            json!({ "dtype": dtype, "tensors": tensors, "elements": elements, "bytes": bytes })
        });
        let shards = self.folder.shards.iter().map(|input| {
            let metadata: Map<String, Value> =
                input.contents.metadata.iter().flatten().map(|(key, value)| (key.clone(), json!(value))).collect();
            json!({
                "file": self.folder.shard_name(input),
                "container": input.container.format_info().extension,
                "bytes": input.len(),
                "metadata": metadata,
                "ignored": input.contents.ignored,
            })
        });
        json!({
            "schema": SCHEMA,
            "tcast": env!("CARGO_PKG_VERSION"),
            "input": self.args.input.to_string_lossy(),
            "index": self.folder.index.as_ref().map(|index| &index.name),
            "files": shards.collect::<Vec<_>>(),
            "tensors": null,
            "totals": totals.collect::<Vec<_>>(),
            "unreadable": self.unreadable().map(ToString::to_string).collect::<Vec<_>>(),
            "disagreements": self.folder.disagreements.iter().map(|found| &found.text).collect::<Vec<_>>(),
        })
    }

    fn text(&self) -> String {
        let entries = self.entries();
        let mut text = self.head(entries.len());
        let rows = entries.iter().map(|entry| {
            let shape = shorten(&format!("{:?}", entry.tensor.shape));
            let order = if entry.tensor.fortran_order { " column-major" } else { "" };
            let name = shorten(entry.input.name_of(entry.tensor));
            [name, entry.dtype(), shape + order, size(entry.bytes()), shorten(&entry.tensor.stored)]
        });
        text += &table(&rows.collect::<Vec<_>>());
        for error in self.unreadable() {
            let _ = writeln!(text, "  {error}");
        }
        if entries.len() > 1 {
            let rows = Self::totals(&entries).into_iter().map(|(dtype, [tensors, elements, bytes])| {
                let tensors = counted(tensors, "tensor");
                [dtype, tensors, counted(elements, "element"), size(bytes), String::new()]
            });
            text += "totals\n";
            text += &table(&rows.collect::<Vec<_>>());
        }
        for input in &self.folder.shards {
            let contents = &input.contents;
            for ignored in &contents.ignored {
                let _ = writeln!(text, "not an array: {}", shorten(ignored));
            }
            let Some(metadata) = contents.metadata.as_ref().filter(|metadata| !metadata.is_empty()) else { continue };
            let of = if self.folder.shards.len() > 1 {
                format!(" of {}", visible(&self.folder.shard_name(input)))
            } else {
                String::new()
            };
            let _ = writeln!(text, "metadata{of}");
            for (key, value) in metadata {
                let _ = writeln!(text, "  {}: {}", shorten(key), shorten(value));
            }
        }
        text + &self.distributions(&entries)
    }

    /// The figures of each tensor, and where the values of all lie among the powers of two.
    fn distributions(&self, entries: &[InspectedTensor]) -> String {
        let mut text = String::new();
        for (entry, stats) in entries.iter().zip(&self.stats) {
            let _ = writeln!(text, "{}", shorten(entry.input.name_of(entry.tensor)));
            let _ = match stats {
                Ok(Some(stats)) => writeln!(text, "{}", line_of(stats, &entry.tensor.shape)),
                Err(error) => writeln!(text, "  {error}"),
                Ok(None) => writeln!(text, "  has no numbers that are known"),
            };
        }
        // Position ids and masks say nothing about where weights lie.
        let is_float = |entry: &InspectedTensor| entry.form.is_some_and(|form| form.dtype().is_floating());
        let has_floats = entries.iter().any(is_float);
        let chosen = entries.iter().zip(&self.stats).filter(|(entry, _)| !has_floats || is_float(entry));
        let all: Histogram = chosen
            .filter_map(|(_, stats)| stats.as_ref().ok()?.as_ref())
            .flat_map(|stats| stats.exponents.iter())
            .collect();
        let width = terminal_size::terminal_size().map_or(80, |(width, _)| usize::from(width.0).clamp(60, 120));
        let picture = distribution::draw(&all, width, true);
        if !picture.is_empty() {
            let _ = writeln!(text, "\n{picture}\n");
        }
        text
    }

    /// What the whole is, and its shards.
    fn head(&self, count: usize) -> String {
        let path = path_text(&self.args.input);
        let tensors = counted(count as u64, "tensor");
        if self.folder.folder.is_none() {
            let input = &self.folder.shards[0];
            return format!("{path}: {}, {tensors}, {}\n", input.container.format_info().extension, size(input.len()));
        }
        let shards = &self.folder.shards;
        let all = size(self.folder.bytes());
        let index =
            self.folder.index.as_ref().map_or("no index".to_owned(), |index| format!("index {}", visible(&index.name)));
        let mut text = format!("{path}: {}, {index}, {tensors}, {all}\n", counted(shards.len() as u64, "shard"));
        let rows = shards.iter().map(|input| {
            let tensors = counted(input.contents.tensors.len() as u64, "tensor");
            let name = visible(&self.folder.shard_name(input));
            [name, tensors, String::new(), size(input.len()), String::new()]
        });
        text += &table(&rows.collect::<Vec<_>>());
        text
    }
}

/// The JSON document, tensor by tensor: as values, a million of them would take gigabytes.
impl Serialize for Listing<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entries = self.entries();
        let rows = (0..).zip(&entries).map(|(at, entry)| tensor_json(entry, self.stats.get(at)));
        serialize_with(&self.json_head(&entries), "tensors", rows, serializer)
    }
}

fn tensor_json(entry: &InspectedTensor, stats: Option<&Result<Option<Distribution>>>) -> Value {
    let mut value = json!({
        "name": entry.input.name_of(entry.tensor),
        "file": entry.shard,
        "dtype": entry.form.map(|form| form.dtype().name()),
        "shape": entry.tensor.shape,
        "elements": entry.count(),
        "bytes": entry.bytes(),
        "stored": entry.tensor.stored,
        "fortran_order": entry.tensor.fortran_order,
    });
    match stats {
        Some(Ok(Some(stats))) => value["stats"] = stats_json(stats, &entry.tensor.shape),
        Some(Err(error)) => value["error"] = json!(error.to_string()),
        _ => {}
    }
    value
}

fn stats_json(stats: &Distribution, shape: &[u64]) -> Value {
    let index = |at: Option<u64>| at.map(|at| indices(at, shape, false));
    let number = |number: Option<Number>| match number {
        Some(Number::Float(value)) => json!(value),
        Some(Number::Integer(value)) => i64::try_from(value).map_or_else(|_| json!(value as u64), Value::from),
        None => Value::Null,
    };
    let exponents = stats.exponents.iter().map(|(exponent, count)| json!([exponent, count]));
    json!({
        "min": number(stats.min),
        "max": number(stats.max),
        "abs_max": number(stats.abs_max),
        "mean": stats.mean,
        "zeros": stats.zeros,
        "subnormals": stats.subnormals,
        "nan": stats.nan,
        "plus_infinite": stats.plus_infinite,
        "minus_infinite": stats.minus_infinite,
        "first_nan_at": stats.first_nan,
        "first_nan_index": index(stats.first_nan),
        "first_infinite_at": stats.first_infinite,
        "first_infinite_index": index(stats.first_infinite),
        "exponents": exponents.collect::<Vec<_>>(),
    })
}

/// The figures in lines of 80 columns.
fn line_of(stats: &Distribution, shape: &[u64]) -> String {
    let number = |number: Option<Number>| match number {
        Some(Number::Float(value)) => brief(value),
        Some(Number::Integer(value)) => value.to_string(),
        None => "-".to_owned(),
    };
    let mut text = format!(
        "  min {}  max {}  absmax {}  mean {}\n  zeros {}",
        number(stats.min),
        number(stats.max),
        number(stats.abs_max),
        stats.mean.map_or("-".to_owned(), brief),
        stats.zeros
    );
    let rest = [
        ("subnormal", stats.subnormals),
        ("NaN", stats.nan),
        ("Inf", stats.plus_infinite),
        ("-Inf", stats.minus_infinite),
    ];
    for (name, count) in rest.into_iter().filter(|(_, count)| *count > 0) {
        let _ = write!(text, "  {name} {count}");
    }
    let firsts = [("NaN", stats.first_nan), ("Inf", stats.first_infinite)];
    let firsts = firsts.map(|(name, at)| at.map(|at| format!("first {name} at {}", position(at, shape, false))));
    let firsts: Vec<String> = firsts.into_iter().flatten().collect();
    if firsts.is_empty() { text } else { text + "\n  " + &firsts.join("  ") }
}

/// Rows in columns; the fourth is a size.
fn table(rows: &[[String; 5]]) -> String {
    columns(rows, &[3]).map(|line| line + "\n").collect()
}
