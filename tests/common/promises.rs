//! What SECURITY.md promises, which test holds each promise, and what that test has tried so far.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// A promise, and the tests that hold it: the file and the name, or the name alone of a fuzz target.
pub struct Promise {
    pub text: &'static str,
    pub tests: &'static [(&'static str, &'static str)],
}

/// In the order of SECURITY.md.
pub const PROMISES: &[Promise] = &[
    Promise {
        text: "tcast never runs code from an input: headers, names and numbers are only data",
        tests: &[
            ("tests/fixtures.rs", "every_malformed_file_is_refused_with_one_error_and_nothing_is_left"),
            ("tests/hostile.rs", "nesting_is_bounded"),
            ("tests/cli/onnx_models.rs", "messages_nested_too_deep_are_refused_at_once"),
            ("tests/layers.rs", "unsafe_code_stands_in_few_files_only"),
        ],
    },
    Promise {
        text: "tcast writes only the output, and no name in an input can point outside the input's folder",
        tests: &[
            ("tests/faults/names.rs", "names_in_a_file_never_become_paths"),
            ("tests/faults/names.rs", "any_name_that_a_file_can_have_is_read_and_written"),
            ("tests/faults/names.rs", "a_link_beside_the_output_is_not_followed"),
            ("tests/faults/names.rs", "a_remedy_can_be_pasted_into_a_shell_whatever_the_names_are"),
            ("tests/faults/races.rs", "a_link_in_the_place_of_external_data_is_never_followed"),
            ("tests/cli/onnx_models.rs", "links_to_the_data_of_a_model_are_followed_where_a_cache_keeps_both"),
            ("tests/cli/folders.rs", "a_side_file_that_is_a_link_out_of_the_checkpoint_is_refused"),
            ("tests/cli/onnx_casts.rs", "the_data_of_a_model_stay_in_its_folder_whatever_has_their_name"),
            ("tests/cli/manifest.rs", "replacing_a_folder_keeps_what_other_outputs_have_in_it"),
            ("tests/faults/signals.rs", "an_outer_output_that_is_replaced_keeps_the_old_files_of_an_inner_one"),
        ],
    },
    Promise {
        text: "No output replaces an input or another output, whatever path leads to it",
        tests: &[
            ("tests/cli/folders.rs", "no_output_replaces_a_file_of_the_input"),
            ("tests/cli/outputs.rs", "an_output_that_is_a_side_file_of_the_input_by_another_path_is_refused"),
            ("tests/cli/outputs.rs", "a_report_that_is_a_file_of_the_input_by_another_path_is_refused"),
            ("tests/cli/outputs.rs", "a_report_that_is_the_output_by_another_path_is_refused"),
            ("tests/cli/outputs.rs", "two_outputs_that_are_one_file_are_refused"),
            ("tests/cli/outputs.rs", "the_default_output_does_not_join_the_checkpoint_that_the_input_is"),
        ],
    },
    Promise {
        text: "Standard output is a stream: what other programs write there stays",
        tests: &[
            ("tests/cli/outputs.rs", "standard_output_is_a_stream_whatever_it_is_connected_to"),
            ("tests/cli/outputs.rs", "what_cannot_go_to_standard_output_is_refused"),
        ],
    },
    Promise {
        text: "tcast trusts nothing in a `.tcast` folder: links, pipes, devices, names and bytes are checked",
        tests: &[
            ("tests/cli/staging.rs", "a_manifest_that_leads_elsewhere_is_refused"),
            ("tests/cli/staging.rs", "links_pipes_and_devices_in_a_work_folder_are_not_followed_or_waited_for"),
            ("tests/cli/staging.rs", "a_staged_shard_that_was_damaged_is_done_again"),
            ("tests/cli/staging.rs", "finish_names_what_is_damaged_and_how_it_is_done_again"),
            ("tests/cli/manifest.rs", "a_manifest_with_any_field_edited_is_refused_or_changes_no_byte"),
            ("tests/cli/manifest.rs", "a_manifest_cannot_name_what_is_removed_for_the_new_checkpoint"),
            ("tests/cli/manifest.rs", "what_others_put_among_the_new_files_does_not_become_a_part_of_the_checkpoint"),
        ],
    },
    Promise {
        text: "A file that cannot be read is an error, and never treated as absent",
        tests: &[
            ("tests/cli/checkpoints.rs", "a_config_that_cannot_be_parsed_is_an_error_and_no_guard_is_off"),
            ("tests/cli/checkpoints.rs", "an_index_that_cannot_be_parsed_is_an_error_of_the_shard_beside_it_too"),
            ("tests/cli/checkpoints.rs", "a_config_that_may_not_be_read_is_an_error"),
            ("tests/cli/checkpoints.rs", "no_shard_is_left_out_for_its_name"),
            ("tests/cli/folders.rs", "an_index_that_leaves_out_a_shard_is_refused_and_another_file_is_left_out"),
            ("tests/faults/refused.rs", "a_read_that_fails_once_or_always_is_an_error_whatever_file_it_is_of"),
        ],
    },
    Promise {
        text: "The size of the data bounds memory and time, not the size that a header claims",
        tests: &[
            ("tests/hostile.rs", "a_small_archive_that_unpacks_to_much_is_streamed_or_refused"),
            ("tests/hostile.rs", "many_of_anything_take_time_in_proportion"),
            ("tests/hostile.rs", "one_long_text_does_not_make_all_of_them_long"),
            ("tests/hostile.rs", "what_is_short_in_a_file_and_long_in_memory_is_bounded"),
            ("tests/cli/onnx_models.rs", "a_file_full_of_empty_tensors_is_refused_before_it_takes_memory"),
            ("tests/hostile.rs", "an_empty_tensor_of_too_long_dimensions_is_refused"),
            ("tests/cli/folders.rs", "a_hundred_shards_take_the_memory_of_one"),
        ],
    },
    Promise {
        text: "`tcast quantize` refuses what codes and scales cannot represent, and never guesses what an input means",
        tests: &[
            ("tests/cli/quantize.rs", "values_that_are_no_numbers_are_named_and_nothing_is_written"),
            ("tests/cli/quantize.rs", "what_cannot_be_is_refused_before_anything_is_written"),
            ("tests/cli/quantize.rs", "banks_of_experts_become_matrices_and_share_what_engines_fuse"),
            ("tests/cli/quantize.rs", "experts_without_elements_are_refused_however_many_there_are"),
            ("tests/cli/quantize_choices.rs", "a_tensor_named_like_a_part_of_a_quantized_weight_is_refused"),
            ("tests/cli/quantize_choices.rs", "a_config_that_calls_plain_weights_quantized_is_refused"),
            ("tests/cli/quantize_choices.rs", "options_that_divide_the_experts_of_a_bank_are_refused"),
        ],
    },
    Promise {
        text: "An output is complete or absent, and an older one stays until then: full and failing disks",
        tests: &[
            ("tests/faults/disk.rs", "a_disk_that_fills_up_at_any_byte_leaves_the_old_output_or_the_new_one"),
            (
                "tests/faults/disk.rs",
                "a_disk_that_fills_up_while_an_archive_is_deflated_leaves_the_old_output_or_the_new_one",
            ),
            ("tests/faults/disk.rs", "a_folder_on_a_full_disk_is_resumed_when_there_is_room"),
            ("tests/faults/disk.rs", "a_folder_without_write_permission_is_an_error"),
            ("tests/faults/disk.rs", "a_folder_that_disappears_is_an_error_and_its_replacement_is_left_alone"),
        ],
    },
    Promise {
        text: "The same: signals, including SIGKILL",
        tests: &[
            ("tests/faults/signals.rs", "an_output_is_old_or_new_whenever_the_run_is_killed"),
            ("tests/faults/signals.rs", "a_run_that_is_killed_at_any_moment_can_be_resumed"),
            (
                "tests/faults/signals.rs",
                "a_folder_that_is_being_replaced_is_the_old_one_or_the_new_one_and_a_resume_completes_it",
            ),
            ("tests/faults/signals.rs", "whoever_asks_a_run_to_end_finds_the_old_output_or_the_new_one"),
            ("tests/faults/naming.rs", "a_run_that_is_killed_leaves_nothing_where_files_need_no_names"),
            ("tests/faults/naming.rs", "temporary_files_of_killed_runs_are_named_and_those_of_live_ones_are_not"),
        ],
    },
    Promise {
        text: "The same: system calls that fail",
        tests: &[
            ("tests/faults/refused.rs", "whatever_the_system_refuses_an_output_is_old_or_new"),
            ("tests/faults/refused.rs", "whatever_the_system_refuses_a_model_and_its_data_appear_both_or_not"),
            ("tests/faults/refused.rs", "whatever_the_system_refuses_a_folder_can_be_finished"),
            ("tests/faults/naming.rs", "a_failing_close_is_an_error_and_gives_no_new_output"),
            (
                "tests/faults/naming.rs",
                "a_new_output_is_written_where_the_file_system_has_neither_links_nor_a_careful_rename",
            ),
            (
                "tests/faults/refused.rs",
                "whatever_the_system_refuses_a_replaced_folder_is_old_or_new_or_can_be_finished",
            ),
            ("tests/faults/refused.rs", "a_side_file_that_the_disk_does_not_give_is_an_error_and_not_left_out"),
            ("tests/faults/sync.rs", "a_flush_that_fails_is_an_error_of_its_shard_although_the_next_was_begun"),
            ("tests/faults/limits.rs", "with_too_little_memory_the_output_is_old_or_new"),
            ("tests/faults/limits.rs", "a_thousand_shards_need_no_thousand_open_files"),
        ],
    },
    Promise {
        text: "The same: power failures",
        tests: &[
            ("tests/faults/crash.rs", "a_power_failure_leaves_the_old_file_or_the_new_one"),
            (
                "tests/faults/crash.rs",
                "a_power_failure_leaves_the_old_folder_or_the_new_one_or_one_that_can_be_completed",
            ),
            ("tests/faults/crash.rs", "without_flushes_a_kill_harms_nothing_and_a_power_failure_the_output_alone"),
        ],
    },
    Promise {
        text: "The same: concurrent runs with the same output",
        tests: &[
            ("tests/faults/races.rs", "of_two_runs_to_one_output_one_wins"),
            ("tests/faults/races.rs", "of_two_runs_to_one_folder_one_wins"),
        ],
    },
    Promise {
        text: "Data is flushed before the file gets its name, and the name before the run ends",
        tests: &[
            ("tests/faults/sync.rs", "data_are_flushed_before_the_name_and_the_name_before_the_end"),
            ("tests/faults/sync.rs", "of_a_folder_every_file_is_flushed_before_it_counts"),
        ],
    },
    Promise {
        text: "If an input is truncated, written to or replaced during the run, the run fails without an output",
        tests: &[
            ("tests/faults/inputs.rs", "whatever_happens_to_an_input_is_reported_and_nothing_is_left"),
            ("tests/faults/inputs.rs", "a_config_is_read_once_and_copied_only_if_it_is_what_was_read"),
            ("tests/faults/inputs.rs", "a_changed_input_is_noticed_whatever_its_time_and_its_name_say"),
            ("tests/faults/inputs.rs", "an_input_that_is_gone_and_could_not_be_kept_open_is_an_error"),
            ("tests/faults/inputs.rs", "an_input_cut_short_at_any_moment_is_an_error_or_came_too_late"),
            ("tests/faults/inputs.rs", "an_input_cut_short_within_a_piece_is_the_same_error_and_no_death_by_a_signal"),
        ],
    },
    Promise {
        text: "Inputs are only read",
        tests: &[
            ("tests/faults/inputs.rs", "inputs_are_left_as_they_are"),
            ("tests/faults/names.rs", "extended_attributes_of_inputs_and_of_what_is_not_replaced_stay"),
            ("tests/faults/names.rs", "the_mode_of_an_output_is_that_of_a_new_file_whatever_was_there"),
        ],
    },
    Promise {
        text: "Clock, locale and environment do not change the output",
        tests: &[
            ("tests/faults/surroundings.rs", "the_bytes_are_the_same_in_any_locale_and_time_zone"),
            ("tests/faults/surroundings.rs", "a_clock_that_stands_still_runs_back_or_is_before_1970_does_no_harm"),
            ("tests/faults/surroundings.rs", "closed_streams_and_a_folder_that_is_gone_do_no_harm"),
        ],
    },
];

/// Where the figures stand: a line for each test, a tab between its name and what it has tried.
const FIGURES: &str = "tests/faults/figures.tsv";
/// Those of the fuzz targets, as `fuzz/run.sh` writes them: a head line first.
const FUZZED: &str = "fuzz/figures.tsv";
const BEGIN: &str = "<!-- promises x tests -->\n\n";
const END: &str = "\n<!-- end -->";

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Notes what a test has tried, in figures; with `TCAST_REFRESH=1` it stands in SECURITY.md then.
pub fn record(test: &str, figure: &str) {
    let known = PROMISES.iter().flat_map(|promise| promise.tests).any(|(_, name)| *name == test);
    assert!(known, "{test} holds no promise");
    if std::env::var_os("TCAST_REFRESH").is_none() {
        return;
    }
    let _writing = writing();
    let mut lines = figures();
    lines.retain(|(name, _)| name != test);
    lines.push((test.to_owned(), figure.to_owned()));
    lines.sort();
    let lines: Vec<String> = lines.iter().map(|(test, figure)| format!("{test}\t{figure}\n")).collect();
    fs::write(path(FIGURES), lines.concat()).unwrap();
    fs::write(path("SECURITY.md"), refreshed()).unwrap();
}

fn writing() -> std::sync::MutexGuard<'static, ()> {
    static WRITING: Mutex<()> = Mutex::new(());
    WRITING.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn figures() -> Vec<(String, String)> {
    let text = fs::read_to_string(path(FIGURES)).unwrap_or_default();
    text.lines().filter_map(|line| line.split_once('\t')).map(|(test, figure)| (test.into(), figure.into())).collect()
}

/// Whether SECURITY.md has the table as it should be; with `TCAST_REFRESH=1` it has.
pub fn is_fresh() -> bool {
    let _writing = writing();
    let refreshed = refreshed();
    if std::env::var_os("TCAST_REFRESH").is_some() {
        fs::write(path("SECURITY.md"), &refreshed).unwrap();
    }
    fs::read_to_string(path("SECURITY.md")).unwrap() == refreshed
}

fn refreshed() -> String {
    let figures = figures();
    let figure = |test: &str| figures.iter().find(|(name, _)| name == test).map_or("", |(_, figure)| figure);
    let mut table = "| promise | held by | tried |\n|---|---|---|\n".to_owned();
    for Promise { text, tests } in PROMISES {
        for (at, (file, test)) in tests.iter().enumerate() {
            let text = if at == 0 { text } else { "" };
            writeln!(table, "| {text} | `{test}` in [{file}]({file}) | {} |", figure(test)).unwrap();
        }
    }
    let fuzzed = fs::read_to_string(path(FUZZED)).unwrap_or_default();
    for (at, line) in fuzzed.lines().skip(1).enumerate() {
        let text = if at == 0 {
            "No bytes in a header, an archive, a number or a whole file cause a panic or a hang"
        } else {
            ""
        };
        let [target, executions, .., findings, minutes] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{FUZZED}: {line:?} has too few columns");
        };
        let tried = format!("{executions} executions in {minutes} minutes, {findings} findings");
        writeln!(table, "| {text} | fuzz target `{target}` | {tried} |").unwrap();
    }
    let targets = fs::read_dir(path("fuzz/fuzz_targets")).into_iter().flatten().flatten();
    let mut targets: Vec<String> =
        targets.filter_map(|entry| Some(entry.path().file_stem()?.to_string_lossy().into_owned())).collect();
    targets.retain(|target| !fuzzed.lines().any(|line| line.split('\t').next() == Some(target)));
    targets.sort();
    for target in targets {
        writeln!(table, "|  | fuzz target `{target}` | no long run is recorded |").unwrap();
    }
    let security = fs::read_to_string(path("SECURITY.md")).unwrap();
    let (before, rest) = security.split_once(BEGIN).expect("SECURITY.md has the table");
    let (_, after) = rest.split_once(END).expect("the table has an end");
    format!("{before}{BEGIN}{table}{END}{after}")
}
