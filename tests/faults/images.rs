//! What a disk can hold after a power failure, modelled as in "All File Systems Are Not Created Equal" (Pillai et al.,
//! OSDI 2014): what was flushed is there; of the rest some, in any order that keeps each name and each file consistent.

use super::{Outcome, calls, traced};
use crate::common::Bench;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Component, Path, PathBuf};

/// The calls that change something, and those that tell which file a number stands for.
const CALLS: &str = "trace=open,openat,openat2,creat,close,dup,dup2,dup3,fcntl,write,writev,pwrite64,pwritev,pwritev2,\
                     truncate,ftruncate,fallocate,copy_file_range,sendfile,splice,fsync,fdatasync,link,linkat,symlink,\
                     symlinkat,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat";

/// Files and folders by their numbers; the first is the folder of the test.
#[derive(Clone)]
struct Disk(Vec<Node>);

#[derive(Clone)]
enum Node {
    File(Vec<u8>),
    Folder(BTreeMap<String, usize>),
}

/// What a call changed.
enum Change {
    Write {
        file: usize,
        at: usize,
        bytes: Vec<u8>,
    },
    Length {
        file: usize,
        len: usize,
    },
    /// Names that change together, and what they stood for before and stand for afterwards.
    Names(Vec<Name>),
    Flush(usize),
}

struct Name {
    folder: usize,
    text: String,
    before: Option<usize>,
    after: Option<usize>,
}

/// What is on a disk: files with their content, and folders.
pub(super) type Image = BTreeMap<String, Option<Vec<u8>>>;

/// What becomes of bytes that were not flushed.
#[derive(Clone, Copy)]
enum Unflushed {
    There,
    Absent,
    Zero,
    Front,
    Back,
}

impl Unflushed {
    const ALL: &[Self] = &[Self::There, Self::Absent, Self::Zero, Self::Front, Self::Back];
}

impl Disk {
    /// A folder that is there.
    fn read(folder: &Path) -> Self {
        let mut disk = Self(vec![Node::Folder(BTreeMap::new())]);
        disk.add(0, folder);
        disk
    }

    fn add(&mut self, node: usize, folder: &Path) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let inner = if path.is_dir() {
                let inner = self.new_node(Node::Folder(BTreeMap::new()));
                self.add(inner, &path);
                inner
            } else {
                self.new_node(Node::File(fs::read(&path).unwrap()))
            };
            self.names(node).insert(path.file_name().unwrap().to_str().unwrap().to_owned(), inner);
        }
    }

    fn new_node(&mut self, node: Node) -> usize {
        self.0.push(node);
        self.0.len() - 1
    }

    fn names(&mut self, folder: usize) -> &mut BTreeMap<String, usize> {
        let Node::Folder(names) = &mut self.0[folder] else { panic!("a file has no names") };
        names
    }

    fn content(&mut self, file: usize) -> &mut Vec<u8> {
        let Node::File(content) = &mut self.0[file] else { panic!("a folder has no bytes") };
        content
    }

    fn apply(&mut self, change: &Change, unflushed: Unflushed) {
        match change {
            Change::Write { file, at, bytes } => {
                let there = match unflushed {
                    Unflushed::There => 0..bytes.len(),
                    Unflushed::Absent => return,
                    Unflushed::Zero => 0..0,
                    Unflushed::Front => 0..bytes.len() / 2,
                    Unflushed::Back => bytes.len() / 2..bytes.len(),
                };
                let content = self.content(*file);
                content.resize(content.len().max(at + bytes.len()), 0);
                content[at + there.start..at + there.end].copy_from_slice(&bytes[there]);
            }
            Change::Length { file, len } if !matches!(unflushed, Unflushed::Absent) => {
                self.content(*file).resize(*len, 0);
            }
            Change::Names(names) => {
                for Name { folder, text, after, .. } in names {
                    match after {
                        Some(node) => drop(self.names(*folder).insert(text.clone(), *node)),
                        None => drop(self.names(*folder).remove(text)),
                    }
                }
            }
            Change::Length { .. } | Change::Flush(_) => {}
        }
    }

    fn image(&self, folder: usize, above: &str, image: &mut Image) {
        let Node::Folder(names) = &self.0[folder] else { return };
        for (name, node) in names {
            let path = format!("{above}{name}");
            match &self.0[*node] {
                Node::File(content) => drop(image.insert(path, Some(content.clone()))),
                Node::Folder(_) => {
                    self.image(*node, &format!("{path}/"), image);
                    image.insert(path, None);
                }
            }
        }
    }
}

/// What is in a folder.
pub(super) fn image_of(folder: &Path) -> Image {
    let mut image = Image::new();
    Disk::read(folder).image(0, "", &mut image);
    image
}

/// A run that succeeded: the disk before it, and its changes.
pub(super) struct Recording {
    before: Disk,
    changes: Vec<Change>,
    /// The earlier changes that each of them needs.
    needs: Vec<Vec<usize>>,
}

/// Runs a line in the folder of a bench and records all changes; `flags` are for strace. The changes are complete: carried
/// out on the disk before the run, they give the one after it.
pub(super) fn record_changes(bench: &Bench, flags: &[&str], line: &str) -> Recording {
    let before = Disk::read(&bench.path(""));
    let flags = [&["-xx", "-s", "1000000", "-e", CALLS], flags].concat();
    Outcome::of(&traced(bench, &flags, line).output().unwrap()).expect(0, "", "");
    let trace = String::from_utf8(bench.read("trace")).unwrap();
    fs::remove_file(bench.path("trace")).unwrap();
    let root = fs::canonicalize(bench.path("")).unwrap();
    let mut reader =
        Reader { root, disk: before.clone(), unnamed: before.clone(), open: BTreeMap::new(), changes: Vec::new() };
    for (_, call) in calls(&trace) {
        reader.read(&call);
    }
    let changes = reader.changes;
    let needs = |at: usize| (0..at).filter(|earlier| changes[at].needs(&changes[*earlier])).collect();
    let needs = (0..changes.len()).map(needs).collect();
    let recording = Recording { before: reader.unnamed, changes, needs };
    let all = vec![true; recording.changes.len()];
    assert!(
        recording.image(&all, &all, Unflushed::There) == image_of(&bench.path("")),
        "a call of {line} is not modelled"
    );
    recording
}

/// What reads a trace.
struct Reader {
    root: PathBuf,
    disk: Disk,
    /// The disk before the run, with every later file and folder on it: empty, and without a name.
    unnamed: Disk,
    open: BTreeMap<String, usize>,
    changes: Vec<Change>,
}

/// A string as strace prints it with `-xx`.
fn bytes(text: &str) -> Vec<u8> {
    text.trim_matches('"').split("\\x").skip(1).map(|code| u8::from_str_radix(code, 16).unwrap()).collect()
}

/// A place on the disk: the folder, a name in it, and what has it.
type Place = (usize, String, Option<usize>);

impl Reader {
    fn change(&mut self, change: Change) {
        self.disk.apply(&change, Unflushed::There);
        self.changes.push(change);
    }

    fn rename(&mut self, names: &[(&Place, Option<usize>)]) {
        let name = |((folder, name, before), after): &(&Place, Option<usize>)| Name {
            folder: *folder,
            text: name.clone(),
            before: *before,
            after: *after,
        };
        self.change(Change::Names(names.iter().map(name).collect()));
    }

    fn create(&mut self, node: Node) -> usize {
        self.unnamed.new_node(node.clone());
        self.disk.new_node(node)
    }

    /// The place that a path leads to, from a folder that is open or the current one; `None` where that is elsewhere.
    fn place(&mut self, folder: &str, path: &str) -> Option<Place> {
        let path = PathBuf::from(String::from_utf8(bytes(path)).unwrap());
        let mut here = if folder == "AT_FDCWD" { 0 } else { *self.open.get(folder)? };
        let path = if path.is_absolute() { path.strip_prefix(&self.root).ok()?.to_owned() } else { path };
        let mut names = path.components().filter(|name| *name != Component::CurDir).peekable();
        if names.peek().is_none() {
            return Some((here, ".".to_owned(), Some(here)));
        }
        loop {
            let name = names.next().unwrap().as_os_str().to_str().unwrap().to_owned();
            let node = self.disk.names(here).get(&name).copied();
            if names.peek().is_none() {
                return Some((here, name, node));
            }
            here = node.unwrap();
        }
    }

    /// Reads a call that succeeded.
    fn read(&mut self, call: &str) {
        let Some((call, result)) = call.rsplit_once(" = ") else { return };
        let result = result.split(' ').next().unwrap().to_owned();
        if result.starts_with('-') || result == "?" {
            return;
        }
        let (name, arguments) = call.trim_end().strip_suffix(')').unwrap().split_once('(').unwrap();
        let arguments: Vec<&str> = arguments.split(", ").collect();
        let number = |at: usize| arguments[at].parse::<usize>().unwrap();
        let open = self.open.get(arguments[0]).copied();
        match name {
            "open" => self.open(result, "AT_FDCWD", arguments[0], arguments[1]),
            "openat" => self.open(result, arguments[0], arguments[1], arguments[2]),
            "close" => drop(self.open.remove(arguments[0])),
            "fcntl" if arguments[1].starts_with("F_DUPFD") => drop(open.map(|node| self.open.insert(result, node))),
            "fcntl" => {}
            "fsync" | "fdatasync" => self.change(Change::Flush(open.unwrap())),
            "pwrite64" => {
                let Some(file) = open else { return };
                let bytes = bytes(arguments[1]);
                assert_eq!(bytes.len(), result.parse::<usize>().unwrap());
                self.change(Change::Write { file, at: number(3), bytes });
            }
            "fallocate" | "ftruncate" => {
                let Some(file) = open else { return };
                let len = if name == "ftruncate" { number(1) } else { number(2) + number(3) };
                let len = if name == "ftruncate" { len } else { len.max(self.disk.content(file).len()) };
                self.change(Change::Length { file, len });
            }
            "mkdir" => {
                if let Some(place) = self.place("AT_FDCWD", arguments[0]) {
                    let node = self.create(Node::Folder(BTreeMap::new()));
                    self.rename(&[(&place, Some(node))]);
                }
            }
            "linkat" => {
                let Some(to) = self.place(arguments[2], arguments[3]) else { return };
                let from = String::from_utf8(bytes(arguments[1])).unwrap();
                let node = match from.strip_prefix("/proc/self/fd/") {
                    Some(number) => self.open[number],
                    None => self.place(arguments[0], arguments[1]).unwrap().2.unwrap(),
                };
                self.rename(&[(&to, Some(node))]);
            }
            "rename" | "renameat" | "renameat2" => {
                let at = if name == "rename" {
                    ["AT_FDCWD", arguments[0], "AT_FDCWD", arguments[1]]
                } else {
                    [arguments[0], arguments[1], arguments[2], arguments[3]]
                };
                let (Some(from), Some(to)) = (self.place(at[0], at[1]), self.place(at[2], at[3])) else { return };
                let is_exchange = arguments.last().unwrap().contains("RENAME_EXCHANGE");
                self.rename(&[(&from, to.2.filter(|_| is_exchange)), (&to, from.2)]);
            }
            "unlink" | "rmdir" | "unlinkat" => {
                let (folder, path) =
                    if name == "unlinkat" { (arguments[0], arguments[1]) } else { ("AT_FDCWD", arguments[0]) };
                if let Some(place) = self.place(folder, path) {
                    self.rename(&[(&place, None)]);
                }
            }
            // What goes to a stream or a pipe is none of the disk's.
            _ => assert!(name.starts_with("write") && open.is_none(), "{name} is not modelled"),
        }
    }

    fn open(&mut self, number: String, folder: &str, path: &str, flags: &str) {
        self.open.remove(&number);
        let Some(place) = self.place(folder, path) else { return };
        let node = match place.2 {
            _ if flags.contains("O_TMPFILE") => self.create(Node::File(Vec::new())),
            Some(node) => node,
            None => {
                let node = self.create(Node::File(Vec::new()));
                self.rename(&[(&place, Some(node))]);
                node
            }
        };
        if flags.contains("O_TRUNC") {
            self.change(Change::Length { file: node, len: 0 });
        }
        self.open.insert(number, node);
    }
}

impl Change {
    /// Whether this can only be on the disk if an earlier change is: they concern the same name or the same file, or this
    /// removes the folder that the other one was in.
    fn needs(&self, earlier: &Self) -> bool {
        let (Self::Names(later), Self::Names(before)) = (self, earlier) else { return false };
        let nodes = |name: &Name| name.before.into_iter().chain(name.after).collect::<Vec<_>>();
        later.iter().any(|this| {
            before.iter().any(|that| {
                (this.folder, &this.text) == (that.folder, &that.text)
                    || nodes(this).iter().any(|node| nodes(that).contains(node))
                    || this.after.is_none() && this.before == Some(that.folder)
            })
        })
    }

    /// Whether a flush brings this to the disk.
    fn is_flushed_by(&self, node: usize) -> bool {
        match self {
            Self::Write { file, .. } | Self::Length { file, .. } => *file == node,
            Self::Names(names) => names.iter().any(|name| name.folder == node),
            Self::Flush(_) => true,
        }
    }
}

impl Recording {
    /// The disk when these changes are on it, in their order.
    fn image(&self, is_there: &[bool], is_flushed: &[bool], unflushed: Unflushed) -> Image {
        let mut disk = self.before.clone();
        for (at, change) in self.changes.iter().enumerate().take(is_there.len()).filter(|(at, _)| is_there[*at]) {
            disk.apply(change, if is_flushed[at] { Unflushed::There } else { unflushed });
        }
        let mut image = Image::new();
        disk.image(0, "", &mut image);
        image
    }

    /// With each change all that it needs.
    fn close(&self, is_there: &mut [bool]) {
        for at in (0..is_there.len()).rev() {
            if is_there[at] {
                self.needs[at].iter().for_each(|earlier| is_there[*earlier] = true);
            }
        }
    }

    /// Every image that a power failure after so many changes can leave: names in their order, each alone, and all but
    /// one, with the unflushed bytes in each of their states.
    fn images_at(&self, end: usize) -> Vec<Image> {
        let is_flushed = |at: usize| {
            let mut later = self.changes[at..end].iter();
            later.any(|later| matches!(later, Change::Flush(node) if self.changes[at].is_flushed_by(*node)))
        };
        let mut flushed: Vec<bool> = (0..end).map(is_flushed).collect();
        self.close(&mut flushed);
        let (names, bytes): (Vec<usize>, Vec<usize>) = (0..end)
            .filter(|at| !flushed[*at] && !matches!(self.changes[*at], Change::Flush(_)))
            .partition(|at| matches!(self.changes[*at], Change::Names(_)));
        let mut chosen = BTreeSet::new();
        for at in 0..=names.len() {
            // All but one, and what needs it.
            let mut kept = vec![true; end];
            for (number, change) in names.iter().enumerate().skip(at) {
                kept[*change] = number != at && self.needs[*change].iter().all(|earlier| kept[*earlier]);
            }
            let (until, alone) = (|number, _| number < at, |number, _| number == at);
            for is_chosen in [&until as &dyn Fn(usize, usize) -> bool, &alone, &|_, change| kept[change]] {
                let mut there = flushed.clone();
                names.iter().enumerate().for_each(|(number, change)| there[*change] = is_chosen(number, *change));
                self.close(&mut there);
                for change in &bytes {
                    there[*change] = true;
                }
                chosen.insert(there);
            }
        }
        let states: &[Unflushed] = if bytes.is_empty() { &[Unflushed::There] } else { Unflushed::ALL };
        let images = chosen.iter().flat_map(|there| states.iter().map(|state| self.image(there, &flushed, *state)));
        images.collect()
    }

    /// What a kill leaves after each change: the system writes all of it back in time.
    pub(super) fn after_kills(&self) -> Vec<Image> {
        let all = vec![true; self.changes.len()];
        (0..=all.len()).map(|end| self.image(&all[..end], &all[..end], Unflushed::There)).collect()
    }

    /// All images that differ, each with whether the run was over; of very many about `most`, spread evenly, and all of
    /// the end.
    pub(super) fn images(&self, most: usize) -> Vec<(Image, bool)> {
        let distinct = |ends: std::ops::RangeInclusive<usize>| {
            let mut seen = HashSet::new();
            let images: Vec<Image> =
                ends.flat_map(|end| self.images_at(end)).filter(|image| seen.insert(hash(image))).collect();
            images
        };
        let over = self.changes.len();
        let (early, last) = (distinct(0..=over - 1), distinct(over..=over));
        let thinned = early.len().div_ceil(most).max(1);
        let early = early.into_iter().step_by(thinned).map(|image| (image, false));
        early.chain(last.into_iter().map(|image| (image, true))).collect()
    }
}

fn hash(image: &Image) -> u64 {
    let mut hasher = DefaultHasher::new();
    image.hash(&mut hasher);
    hasher.finish()
}

/// Puts an image into an empty folder.
pub(super) fn write_image(image: &Image, folder: &Path) {
    for (path, content) in image {
        let path = folder.join(path);
        match content {
            None => fs::create_dir_all(path).unwrap(),
            Some(content) => {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, content).unwrap();
            }
        }
    }
}
