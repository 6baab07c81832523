//! Any file with any options: the whole way from the bytes to the output, as in `tcast cast`.

use super::elements::{MOST, check_places, check_plan, write};
use super::trial::{MIB, check_error, probe, within};
use std::path::Path;
use std::time::Duration;
use tcast::container::{CONTAINERS, Elements, Form, Input, SHARDS};
use tcast::dtype::Dtype;
use tcast::kernel::{Condition, Loss, OutOfRange, RoundMode};
use tcast::measure::distribution;
use tcast::operator::Operator;
use tcast::operator::cast::{CastAttributes, Opset};
use tcast::plan::{self, Request, Spread};
use tcast::progress::Silent;
use tcast::report::{FileReport, Report, Surroundings, page};
use tcast::select::{Pattern, Rule, Selection};

/// Number of bytes at the end of the input that choose the options; the file precedes them.
const OPTIONS: usize = 16;

/// Bytes that choose the options.
struct Choices<'a>(std::slice::Iter<'a, u8>);

impl Choices<'_> {
    /// Returns a number below `count`.
    fn below(&mut self, count: usize) -> usize {
        usize::from(*self.0.next().expect("there are as many as choices")) % count
    }

    fn one_of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// Returns a type, or `None`.
    fn dtype(&mut self) -> Option<Dtype> {
        let all: Vec<Dtype> = Dtype::all().collect();
        let place = self.below(all.len() + 1);
        all.get(place).copied()
    }
}

/// Checks that an output has the planned length and reads back with its types and shapes, and that a refused file gives
/// an error and leaves no file.
pub fn cast_any(bytes: &[u8]) {
    let Some((file, choices)) = bytes.split_last_chunk::<OPTIONS>() else { return };
    let mut choices = Choices(choices.iter());
    let extension = match choices.below(8) {
        choice @ 0..4 => {
            let known = CONTAINERS.iter().find(|container| container.recognises(file));
            let onnx = if choice == 0 { "onnx" } else { "pb" };
            known.map_or(onnx, |container| container.format_info().extension)
        }
        other => CONTAINERS[other % 4].format_info().extension,
    };
    let Some(mut input) = probe(extension, file, 8 * MIB + 128 * file.len()) else { return };
    check_places(&input);
    within(64 * MIB + 256 * bytes.len(), || inspect(&input));
    if let Some(error) = input.contents.unreadable.pop() {
        return check_error(&error);
    }
    within(64 * MIB + 256 * bytes.len(), || convert(&input, &mut choices));
}

/// Computes the statistics of `inspect --stats`.
fn inspect(input: &Input) {
    for tensor in &input.contents.tensors {
        let is_small = tensor.elements.bytes(tensor.count).is_some_and(|bytes| bytes <= MOST);
        let Ok(form) = plan::source_form(tensor, None) else { continue };
        if !is_small {
            continue;
        }
        match distribution::of(tensor, form, &input.files, 1, &Silent) {
            Ok(Some(_)) => assert!(matches!(form, Form::Numbers(_))),
            Ok(None) => assert!(matches!(form, Form::Texts(_))),
            Err(error) => check_error(&error),
        }
    }
}

fn convert(input: &Input, choices: &mut Choices) {
    let container = CONTAINERS[choices.below(CONTAINERS.len())];
    let attributes = CastAttributes {
        saturate: choices.one_of(&[None, Some(true), Some(false)]),
        round_mode: choices.one_of(&[None, Some(RoundMode::Up), Some(RoundMode::Down), Some(RoundMode::Nearest)]),
        out_of_range: choices.one_of(&[
            None,
            Some(OutOfRange::Wrap),
            Some(OutOfRange::Saturate),
            Some(OutOfRange::Error),
        ]),
        opset: choices.below(2 * Opset::NEWEST as usize).to_string().parse().ok(),
    };
    if let Err(error) = attributes.check() {
        return check_error(&error);
    }
    let operator = if choices.below(5) == 0 { Operator::BitCast } else { Operator::Cast(attributes) };
    let rules = ["", "*=keep", "*w*=int8", "?=float8e4m3fn", "[a-m]*=bfloat16", "{a,b}*=string", "*=float32"];
    let patterns = ["", "", "*norm*", "*", "?"];
    let rules: Vec<Rule> = choices.one_of(&rules).parse().into_iter().collect();
    let pattern = |text: &str| -> Vec<Pattern> { text.parse().into_iter().filter(|_| !text.is_empty()).collect() };
    let flags = choices.below(256);
    let flag = |bit: usize| flags >> bit & 1 == 1;
    let selection = Selection {
        to: choices.dtype(),
        include: pattern(choices.one_of(&patterns)),
        exclude: pattern(choices.one_of(&patterns)),
        rules,
        all: flag(0),
        protect: flag(1),
        ..Selection::default()
    };
    let from = choices.dtype().filter(|_| flag(2));
    let conditions = &Condition::ALL;
    let losses: Vec<Condition> =
        choices.one_of(&[&[][..], &[], &conditions[..], &conditions[..3], &conditions[4..5]]).to_vec();
    let limit = 1 << choices.below(16);
    let (spread, container) = if flag(3) { (Spread::UpTo(limit), SHARDS) } else { (Spread::One, container) };
    let threads = 1 + choices.below(3);

    let inputs = std::slice::from_ref(input);
    let mut request = Request::new(operator, &selection, container);
    (request.from, request.fail_on) = (from, &losses);
    let plans = match plan::build(&request, inputs, spread, &|_| ()) {
        Ok(plans) => plans,
        Err(error) => return check_error(&error),
    };
    let planned: usize = plans.iter().map(|plan| plan.steps.len()).sum();
    assert_eq!(planned, input.contents.tensors.len(), "a tensor was dropped");
    for plan in &plans {
        check_plan(plan);
        if plan.len > MOST {
            continue;
        }
        let extension = container.format_info().extension;
        let Ok((output, outcomes)) = write(plan, inputs, threads, extension) else { return };
        check_places(&output);
        assert_eq!((outcomes.len(), output.contents.tensors.len()), (plan.steps.len(), plan.steps.len()));
        for ((step, outcome), written) in plan.steps.iter().zip(&outcomes).zip(&output.contents.tensors) {
            let Elements::Typed(form) = written.elements else { panic!("the type of {} was lost", step.name()) };
            assert_eq!(form.dtype(), step.dtypes().1, "{}", step.name());
            assert_eq!((&written.shape, written.count), (&step.source().shape, step.source().count));
            assert!(!container.format_info().has_names || *written.name == *step.name(), "{}", step.name());
            // Complex numbers have two parts each.
            assert!(Loss::ALL.iter().all(|loss| outcome.counts[*loss] <= 2 * step.source().count));
        }
        let report = FileReport::new("out".to_owned(), plan, Some(outcomes));
        show(report, input.path(), input.len());
    }
}

/// Checks that reports can be made and shown: no name in a file reaches a terminal as a command.
fn show(file: FileReport, path: &Path, bytes_in: u64) {
    let mut report = Report::empty("cast", path, path);
    (report.bytes_in, report.files, report.is_published) = (bytes_in, vec![file], true);
    report.time = Some(Duration::from_millis(5));
    for text in [report.summary(Surroundings::default()), report.table(None)] {
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }
    assert!(serde_json::to_value(&report).is_ok_and(|report| report.is_object()));
    let page = page(&report, &[]);
    assert!(page.ends_with("</html>\n"));
}
