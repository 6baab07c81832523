//! What the tests of the program share: a folder of its own for each, and runs that keep all that was printed.
#![allow(dead_code, unreachable_pub, reason = "each test file is a crate of its own and uses some of this")]

pub mod gguf;
pub mod gguf_reader;
pub mod messages;
pub mod onnx;
pub mod pickle;
pub mod promises;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder that goes with the test, and the program run in it.
pub struct Bench {
    folder: tempfile::TempDir,
}

/// What a run printed, and its exit code.
#[derive(Debug)]
pub struct Outcome {
    /// The command line, without the name of the program.
    pub line: String,
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// A file of `fixtures/`.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// A command of the program under `TCAST_RUNNER`, where that is set: an emulator and its arguments.
fn emulated() -> Option<Command> {
    let runner = std::env::var("TCAST_RUNNER").ok()?;
    let mut words = runner.split_whitespace();
    let mut command = Command::new(words.next()?);
    command.args(words).arg(assert_cmd::cargo::cargo_bin!("tcast"));
    Some(command)
}

impl Bench {
    /// An empty folder.
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    /// A folder with a copy of a fixture under another name.
    pub fn with(source: &str, name: &str) -> Self {
        let bench = Self::new();
        fs::copy(fixture(source), bench.path(name)).expect("the fixture is there");
        bench
    }

    /// A folder with a copy of a checkpoint of `fixtures/checkpoints` in it, under another name.
    pub fn with_checkpoint(source: &str, name: &str) -> Self {
        let bench = Self::new();
        bench.add_checkpoint(source, name);
        bench
    }

    pub fn add_checkpoint(&self, source: &str, name: &str) {
        fs::create_dir(self.path(name)).expect("the name is free");
        for entry in fs::read_dir(fixture("checkpoints").join(source)).expect("the fixture is there") {
            let entry = entry.expect("an entry");
            fs::copy(entry.path(), self.path(name).join(entry.file_name())).expect("a file");
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).expect("the folder can be written to");
    }

    /// The names of all files, sorted.
    pub fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).expect("the folder is there");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// A command of the program in this folder.
    pub fn command(&self) -> Command {
        let mut command = emulated().unwrap_or_else(|| Command::new(assert_cmd::cargo::cargo_bin!("tcast")));
        command.current_dir(self.folder.path()).env_remove("NO_COLOR");
        command
    }

    /// Runs a command line, split at blanks.
    pub fn run(&self, line: &str) -> Outcome {
        self.run_args(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs a command line, split at blanks, on one thread in so many MiB of address space and a minute of computing time.
    pub fn run_within(&self, mebibytes: u32, line: &str) -> Outcome {
        self.run_args_within(mebibytes, &line.split_whitespace().collect::<Vec<_>>())
    }

    /// As [`Self::run_within`]. An emulator has memory of its own, and Windows has no such limits.
    pub fn run_args_within(&self, mebibytes: u32, args: &[&str]) -> Outcome {
        let args = [args, &["-j1"]].concat();
        if cfg!(windows) || emulated().is_some() {
            return self.run_args(&args);
        }
        // The C library reserves 64 MiB of addresses for each thread that allocates beside another one: by chance, and
        // without memory.
        let limits = format!("ulimit -v {} && ulimit -t 60 && export MALLOC_ARENA_MAX=1", mebibytes << 10);
        self.run_script(&format!("{limits} && exec \"$@\""), &args)
    }

    /// Runs a script of a shell, of which `"$@"` is the program with these arguments.
    pub fn run_script(&self, script: &str, args: &[&str]) -> Outcome {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(assert_cmd::cargo::cargo_bin!("tcast")).args(args);
        Outcome::of_line(&args.join(" "), &command.current_dir(self.path("")).output().expect("a shell"))
    }

    /// Runs a line of a shell, in which `tcast` is the program, and so does whoever pastes it.
    pub fn shell(&self, line: &str) -> Outcome {
        let program = Path::new(assert_cmd::cargo::cargo_bin!("tcast")).parent().unwrap().to_owned();
        let others = std::env::var_os("PATH").unwrap();
        let path = std::env::join_paths([program].into_iter().chain(std::env::split_paths(&others))).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(self.path("")).env("PATH", path).env("HOME", self.path(""));
        Outcome::of_line(line.strip_prefix("tcast ").unwrap_or(line), &command.output().expect("a shell"))
    }

    pub fn run_args(&self, args: &[&str]) -> Outcome {
        let null = |arg: &&str| if cfg!(windows) && *arg == "/dev/null" { "NUL".to_owned() } else { (*arg).to_owned() };
        let mut command = self.command();
        command.args(args.iter().map(null));
        let done = match command.output() {
            // Wine sometimes fails to start a program.
            Err(error) if cfg!(windows) && error.raw_os_error() == Some(1359) => command.output(),
            done => done,
        };
        Outcome::of_line(&args.join(" "), &done.expect("the program starts"))
    }
}

/// What was printed, as it is printed on Linux: tests state that.
pub fn as_on_linux(text: &str) -> String {
    if !cfg!(windows) {
        return text.to_owned();
    }
    let messages = |text: &str| {
        let same = [
            ("the system cannot find the file specified", "no such file or directory"),
            ("the system cannot find the path specified", "no such file or directory"),
            ("file not found", "no such file or directory"), // of Wine, as the next
            ("path not found", "no such file or directory"),
            ("access is denied", "permission denied"),
            ("access denied", "permission denied"),
            ("set TMP to", "set TMPDIR to"),
            ("NUL", "/dev/null"),
        ];
        same.iter().fold(text.to_owned(), |text, (windows, linux)| text.replace(windows, linux))
    };
    if text.starts_with(['{', '[']) && serde_json::from_str::<serde_json::Value>(text).is_ok() {
        return messages(&text.replace(r"\\", "/")); // of paths
    }
    messages(&text.split_inclusive('\n').map(line_as_on_linux).collect::<String>())
}

/// A line with slashes in paths and, if it contains a command or an option, with words in single quotes.
fn line_as_on_linux(line: &str) -> String {
    let programs = [("del ", "rm "), ("cmd /c rmdir /s /q ", "rm -r "), ("mkdir ", "mkdir -p "), ("move ", "mv -n ")];
    let mut line = line.to_owned();
    let is_command = |word: &str| line.starts_with("  ") && line.contains(&format!("{word}\""));
    if let Some((windows, linux)) = programs.iter().find(|(windows, _)| is_command(windows)) {
        line = line.replace(&format!("{windows}\""), &format!("{linux}\"")).replace("\", \"", "\" \"");
    }
    line = line.replace("curl.exe ", "curl ").replace(r"\\?\", "");
    let commands = ["cast", "quantize", "dequantize", "bitcast", "promote", "inspect", "diff"];
    let has_command = commands.iter().any(|command| line.contains(&format!("tcast {command} ")));
    let has_option = regex::Regex::new("--[a-z-]+ \"").unwrap().is_match(&line);
    if has_command || has_option || line.starts_with("  ") && !line.contains("in the config") {
        let quoted = |word: &regex::Captures<'_>| {
            let text = word[1].replace("`$", "$").replace("``", "`").replace('\'', r"'\''");
            format!("'{}'", text.strip_suffix(r"\\").map_or(text.clone(), |folder| format!("{folder}/")))
        };
        line = regex::Regex::new("\"([^\"]*)\"").unwrap().replace_all(&line, quoted).into_owned();
    }
    // A backslash separates names, unless it begins a character that is escaped.
    let is_escape = |rest: &str| {
        let is_byte = rest.len() > 2 && rest.starts_with('x') && rest[1..3].bytes().all(|b| b.is_ascii_hexdigit());
        ["u{", "''", "n'", r"n\"].iter().any(|start| rest.starts_with(start)) || is_byte
    };
    let slash = |(at, c): (usize, char)| if c == '\\' && !is_escape(&line[at + 1..]) { '/' } else { c };
    line.char_indices().map(slash).collect()
}

impl Outcome {
    /// What a finished run printed.
    pub fn of(output: &Output) -> Self {
        Self::of_line("", output)
    }

    /// What the finished run of a command line printed.
    pub fn of_line(line: &str, output: &Output) -> Self {
        let text = |bytes: &[u8]| as_on_linux(std::str::from_utf8(bytes).expect("text"));
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        Self { line: line.to_owned(), code: output.status.code(), stdout, stderr }
    }

    /// Checks exit code, standard output and standard error, to the letter.
    #[track_caller]
    pub fn expect(&self, code: i32, stdout: &str, stderr: &str) {
        let expected = (Some(code), as_on_linux(stdout), as_on_linux(stderr));
        assert_eq!((self.code, &*self.stdout, &*self.stderr), (expected.0, &*expected.1, &*expected.2));
    }
}

/// A .npy file, by hand.
pub fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    [b"\x93NUMPY\x01\x00", (header.len() as u16).to_le_bytes().as_slice(), header.as_bytes(), data].concat()
}

/// The .npy file of float32 values.
pub fn npy_f32(values: &[f32]) -> Vec<u8> {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    npy("'<f4'", &format!("({},)", values.len()), &data)
}

/// The data behind a .npy header.
pub fn npy_data(file: &[u8]) -> &[u8] {
    &file[10 + usize::from(u16::from_le_bytes([file[8], file[9]]))..]
}

/// An archive of members, by hand.
pub fn zip(members: &[(&str, &[u8])], is_deflated: bool) -> Vec<u8> {
    use std::io::Write;
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in members {
        let mut packed = data.to_vec();
        if is_deflated {
            let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(data).unwrap();
            packed = encoder.finish().unwrap();
        }
        let numbers = [crc32fast::hash(data), packed.len() as u32, data.len() as u32].map(u32::to_le_bytes).concat();
        let method = if is_deflated { 8 } else { 0 };
        let common = [&[20, 0, 0, 0, method, 0, 0, 0, 0x21, 0], &numbers[..], &[name.len() as u8, 0, 0, 0]].concat();
        let start = (file.len() as u32).to_le_bytes();
        directory.extend([b"PK\x01\x02\x14\x00", &common[..], &[0; 10], &start, name.as_bytes()].concat());
        file.extend([b"PK\x03\x04", &common[..], name.as_bytes(), &packed].concat());
    }
    let place = [directory.len() as u32, file.len() as u32].map(u32::to_le_bytes).concat();
    let count = members.len() as u8;
    let end = [b"PK\x05\x06", &[0, 0, 0, 0, count, 0, count, 0][..], &place, &[0, 0]].concat();
    [file, directory, end].concat()
}

/// A .safetensors file, by hand.
pub fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// An ONNX tensor x of 2 float32 numbers whose elements are in another file, which these entries describe.
pub fn external_tensor(entries: &[(&str, &str)]) -> Vec<u8> {
    let entry = |(key, value): &(&str, &str)| {
        let pair = [&[0x0a, key.len() as u8], key.as_bytes(), &[0x12, value.len() as u8], value.as_bytes()].concat();
        [&[0x6a, pair.len() as u8], &pair[..]].concat()
    };
    let entries: Vec<u8> = entries.iter().flat_map(entry).collect();
    // dims 2, FLOAT, name x; data_location EXTERNAL
    [&[0x08, 2, 0x10, 1, 0x42, 1, b'x'][..], &entries, &[0x70, 1]].concat()
}

/// Runs a cast of a file that nobody should trust: it must end as one of `allowed`, within 256 MiB of address space, with
/// one error or none, and leave nothing but the output. It takes a fraction of a second; the limit of a minute of
/// computing time is for slow machines, and what takes time in another proportion needs more.
#[track_caller]
pub fn check_hostile(file: &Path, allowed: &[i32], what: &str) {
    for output in ["out.npz", "out.safetensors"] {
        let bench = Bench::new();
        // The address space, because the memory in use could only be asked for from outside; one thread, because each
        // takes some of it for its stack and its heap, used or not.
        let file = file.to_str().expect("a name in UTF-8");
        let done = bench.run_args_within(256, &["cast", "--no-sync", file, "--to", "float16", "-o", output]);
        let Outcome { code, stdout, stderr, .. } = done;
        assert!(code.is_some_and(|code| allowed.contains(&code)), "{what}: {code:?}: {stderr}");
        assert_eq!(stdout, "", "{what}");
        let errors = stderr.lines().filter(|line| line.starts_with("tcast: error: ")).count();
        assert_eq!(errors, usize::from(code == Some(1)), "{what}: {stderr}");
        assert_eq!(bench.files(), if code == Some(0) { vec![output.to_owned()] } else { vec![] }, "{what}");
    }
}

/// Every file below a folder with its content, by its path in it.
pub fn tree(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            found.extend(tree(&entry.path()).into_iter().map(|(inner, content)| (format!("{name}/{inner}"), content)));
        } else {
            found.insert(name, fs::read(entry.path()).unwrap());
        }
    }
    found
}

#[track_caller]
pub fn same(left: &BTreeMap<String, Vec<u8>>, right: &BTreeMap<String, Vec<u8>>) {
    assert_eq!(left.keys().collect::<Vec<_>>(), right.keys().collect::<Vec<_>>());
    for (name, content) in left {
        assert!(*content == right[name], "{name} differs");
    }
}

/// A shard of float32 tensors, each of some copies of a value.
pub fn shard(tensors: &[(&str, f32, usize)]) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, value, count) in tensors {
        let start = data.len();
        data.extend(std::iter::repeat_n(value.to_le_bytes(), *count).flatten());
        let shape = if *count == 1 { "[1]".to_owned() } else { format!("[{},2]", count / 2) };
        entries.push(format!(
            "\"{name}\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[{start},{}]}}",
            data.len()
        ));
    }
    safetensors(&format!("{{\"__metadata__\":{{\"format\":\"pt\"}},{}}}", entries.join(",")), &data)
}

/// A checkpoint with many shards, which takes a while, and the line that converts it.
pub fn long_work() -> (Bench, &'static str) {
    let bench = Bench::new();
    fs::create_dir(bench.path("in")).unwrap();
    for number in 0..12 {
        let name = format!("w{number}");
        bench.write(&format!("in/s{number:02}.safetensors"), &shard(&[(&name, number as f32 / 3.0, 200_000)]));
    }
    bench.write("in/config.json", b"{\"torch_dtype\": \"float32\"}");
    bench.run("cast in --to f16 -o whole -q").expect(0, "", "");
    (bench, "cast in --to f16 -o out -q")
}

/// Writes a folder of `count` shards of block-quantized weights of `shape`, whose scales are in the shard after that of their
/// codes, and the config that says so.
pub fn quantized_shards(bench: &Bench, folder: &str, count: usize, [rows, columns]: [usize; 2]) {
    fs::create_dir(bench.path(folder)).unwrap();
    let scales = rows.div_ceil(128) * columns.div_ceil(128);
    let grid = [rows.div_ceil(128), columns.div_ceil(128)];
    for number in 0..count {
        let (codes, last) = (rows * columns, (number + count - 1) % count);
        let header = format!(
            r#"{{"w{number}.weight":{{"dtype":"F8_E4M3","shape":[{rows},{columns}],"data_offsets":[0,{codes}]}},
            "w{last}.weight_scale_inv":{{"dtype":"F32","shape":{grid:?},"data_offsets":[{codes},{}]}}}}"#,
            codes + 4 * scales
        );
        let codes = (0..codes).map(|at| (at * 31 + number) as u8 & 0xbf); // none of which is NaN
        let scales = (0..scales).flat_map(|at| (0.01 + (at + number) as f32 / 777.0).to_le_bytes());
        let data: Vec<u8> = codes.chain(scales).collect();
        bench.write(&format!("{folder}/s{number:02}.safetensors"), &safetensors(&header, &data));
    }
    let config = r#"{"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}"#;
    bench.write(&format!("{folder}/config.json"), config.as_bytes());
}

/// As [`long_work`], with a checkpoint whose weights are quantized, in two passes.
pub fn long_encoding() -> (Bench, &'static str) {
    let bench = Bench::new();
    quantized_shards(&bench, "codes", 12, [400, 512]);
    bench.run("dequantize codes -q -o in").expect(0, "", "");
    fs::remove_dir_all(bench.path("codes")).unwrap();
    bench.run("quantize in --scheme nvfp4 -q -o whole").expect(0, "", "");
    (bench, "quantize in --scheme nvfp4 -o out -q")
}

/// As [`long_work`], with a checkpoint whose weights are decoded.
pub fn long_decoding() -> (Bench, &'static str) {
    let bench = Bench::new();
    quantized_shards(&bench, "in", 12, [400, 500]);
    bench.run("dequantize in -o whole -q").expect(0, "", "");
    (bench, "dequantize in -o out -q")
}
