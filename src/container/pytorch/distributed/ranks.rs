//! Folders with a file for each rank, `model_world_size_2_rank_0.pt`: a state dict of whole tensors and of the parts that the
//! rank holds of others (`DTensor` and `ShardedTensor`).
//!
//! The class of a tensor decides whether it is divided, never its values.

use super::super::code::PickleFacts;
use super::super::meaning::CallMeaning;
use super::super::tree;
use super::super::types::TorchType;
use super::super::values::{PickleValue, TensorCall};
use super::super::view::{View, memory};
use super::super::{LEAST_MEMORY, MEMORY_PER_BYTE, Pickle, TorchFile};
use super::attributes::{Attributes, is_a, named_type, numbers, type_in_properties};
use super::folder::{FolderFiles, MOST_RANKS, Opened, Whole, pieces_of, ranges_of, read_archive, view_of};
use super::mesh::{Mesh, Placements};
use super::pieces::{TensorPiece, difference};
use super::roots::{LocatedTensor, RootChoice, choose};
use crate::container::{ReadOptions, Tensor, element_count};
use crate::dtype::Dtype;
use crate::error::{Advice, Error, Opt, Result};
use crate::io::open::{Links, is_missing, read_regular, unreadable};
use crate::text::{counted, first_few};
use crate::threads::in_order;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// The file that says how many ranks there are.
pub(super) const CONFIG: &str = "fsdp_config.json";

/// Memory for a shard in a list, in bytes.
const MEMORY_OF_SHARD: usize = 256;

/// Returns the number of ranks and the rank in the name of a file.
pub(super) fn parse(name: &str) -> Option<(u64, u64)> {
    let (count, rank) = name.strip_prefix("model_world_size_")?.strip_suffix(".pt")?.split_once("_rank_")?;
    let number = |text: &str| text.parse::<u64>().ok().filter(|number| number.to_string() == text);
    Some((number(count)?, number(rank)?))
}

/// Returns the number of ranks of a folder with such files. Requires a file of each rank.
fn world_size(folder: &Path, names: &[String]) -> Result<u64> {
    let mut found: BTreeMap<u64, HashSet<u64>> = BTreeMap::new();
    for (count, rank) in names.iter().filter_map(|name| parse(name)) {
        found.entry(count).or_default().insert(rank);
    }
    let Some((&count, ranks)) = found.first_key_value() else { return Err(Error::new("has no files of ranks")) };
    if found.len() > 1 {
        let counts: Vec<String> = found.keys().map(u64::to_string).collect();
        let what = format!("has files of several trainings, of {} ranks", counts.join(" and "));
        return Err(Error::new(what).remedy("move the files of one of them to another folder"));
    }
    if !(1..=MOST_RANKS).contains(&count) || ranks.iter().any(|rank| *rank >= count) {
        let what = format!("has a file of rank {} of {count}", ranks.iter().max().expect("there is one"));
        return Err(Error::new(what));
    }
    let missing: Vec<String> = (0..count).filter(|rank| !ranks.contains(rank)).map(|rank| rank.to_string()).collect();
    if !missing.is_empty() {
        let what = format!("lacks the files of {} of {count} ranks: {}", missing.len(), first_few(&missing, 5));
        return Err(Error::new(what).remedy("copy or download the whole folder"));
    }
    let config = folder.join(CONFIG);
    if !is_missing(&config) {
        let text = read_regular(&config, 1 << 20, Links::Follow).map_err(unreadable(&config))?;
        let text: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        if let Some(other) = text.get("world_size").and_then(serde_json::Value::as_u64).filter(|other| *other != count)
        {
            return Err(
                Error::new(format!("says that there are {other} ranks, and the files say {count}")).in_file(&config)
            );
        }
    }
    Ok(count)
}

fn too_often() -> Error {
    Error::new("malformed pickle: it refers to its tensors more often than any checkpoint does")
}

/// Division of a tensor, which is the same on all ranks.
#[derive(Debug, PartialEq, Eq)]
enum TensorDivision {
    /// None: each rank has the whole tensor.
    Plain,
    Placed(Placements, Vec<u64>),
    /// The offsets and sizes of all shards, sorted.
    Listed(Vec<(Vec<u64>, Vec<u64>)>),
}

impl TensorDivision {
    fn name(&self) -> &'static str {
        match self {
            Self::Plain => "a plain tensor",
            Self::Placed(..) => "a DTensor",
            Self::Listed(_) => "a ShardedTensor",
        }
    }
}

/// A tensor on one rank.
struct Held {
    torch_type: &'static TorchType,
    shape: Vec<u64>,
    division: TensorDivision,
    pieces: Vec<TensorPiece>,
    mesh: Option<Arc<Mesh>>,
    how: String,
}

/// A tensor on the ranks that were read so far.
struct SharedTensor {
    path: Vec<String>,
    first: Held,
    first_rank: u64,
    /// The pieces of all ranks.
    pieces: Vec<(u64, TensorPiece)>,
    /// The ranks of each mesh, and those of them that have the tensor.
    meshes: HashMap<Vec<u64>, HashSet<u64>>,
}

/// The tensors of all ranks in the order of their names, with the errors of those that cannot be read.
#[derive(Default)]
struct Ranks {
    names: Vec<String>,
    tensors: HashMap<String, Result<SharedTensor>>,
    facts: PickleFacts,
}

/// Reads the files of all ranks.
pub(super) fn read(
    folder: &Path,
    names: &[String],
    files: &mut FolderFiles,
    &ReadOptions { threads, root, take_rank: taken }: &ReadOptions,
) -> Result<Opened> {
    let count = world_size(folder, names).map_err(|error| error.in_file(folder))?;
    if let Some(rank) = taken.filter(|rank| *rank >= count) {
        let error = Error::usage(format!("has no rank {rank}: its ranks are 0 to {}", count - 1)).in_file(folder);
        return Err(error.without(Opt::TAKE_RANK));
    }
    let mut ranks = Ranks::default();
    for rank in 0..count {
        let name = format!("model_world_size_{count}_rank_{rank}.pt");
        let number = files.open(&name)?;
        ranks.read(files.get(number), number, rank, count).map_err(|error| error.in_file(&folder.join(&name)))?;
    }
    let Ranks { names, mut tensors, facts } = ranks;
    let located = |name: &String| {
        let (path, bytes) = match &tensors[name] {
            Ok(shared) => {
                let count = element_count(&shared.first.shape).unwrap_or_default();
                (shared.path.clone(), count.saturating_mul(shared.first.torch_type.width))
            }
            Err(_) => (vec![name.clone()], 0),
        };
        LocatedTensor { path, bytes }
    };
    let located: Vec<LocatedTensor> = names.iter().map(located).collect();
    let RootChoice { names: new_names, roots, chosen } = choose(&located, root)?;
    let mut opened = Opened::default();
    let chosen_tensors =
        names.iter().zip(new_names).filter_map(|(name, new_name)| Some((tensors.remove(name)?, new_name?)));
    let join = |(): &mut (), (shared, name): (Result<SharedTensor>, String)| {
        let joined = shared.and_then(|shared| shared.join(&name, files, count, taken));
        Ok::<_, Infallible>(joined.map_err(|error| error.in_tensor(&name).in_file(folder)))
    };
    let Ok(_) = in_order(
        threads as u64,
        chosen_tensors,
        || (),
        join,
        |joined| {
            match joined {
                Ok(tensor) => opened.tensors.push(tensor),
                Err(error) => opened.unreadable.push(error),
            }
            ControlFlow::Continue(())
        },
    );
    let is_requested = root.is_some();
    opened.facts = PickleFacts { form: "ranks", roots, chosen, is_requested, ..facts };
    Ok(opened)
}

impl Ranks {
    fn read(&mut self, bytes: &[u8], number: u32, rank: u64, count: u64) -> Result<()> {
        let archive = read_archive(bytes)?;
        self.facts.protocol = archive.pickle.protocol;
        self.facts.merge(&archive.facts)?;
        let Pickle { values, root, .. } = &archive.pickle;
        let mut found = Vec::new();
        let mut left = LEAST_MEMORY + MEMORY_PER_BYTE * archive.pickle.len;
        let (entries, arrays) = tree::visit(values, *root, &mut |name, tensor| {
            /// Bytes of a tensor here besides its names and its shape.
            const EACH: usize = 512;
            let needed = memory(values, &values.tensors[tensor as usize]) + 2 * name.len() + EACH;
            left = left.checked_sub(needed).ok_or_else(too_often)?;
            found.push((name, tensor));
            Ok(())
        })?;
        self.facts.arrays.extend(arrays);
        let mut keys = vec![None; found.len()];
        for entry in &entries {
            keys[entry.tensors.clone()].fill(Some(&*entry.key));
        }
        let mut reader = RankReader { archive: &archive, bytes, number, rank, count, left, meshes: HashMap::new() };
        let mut seen = HashSet::new();
        for ((name, tensor), key) in found.iter().zip(keys) {
            if !seen.insert(name) {
                return Err(Error::new("malformed pickle: it has two tensors of one name").in_tensor(name));
            }
            let held = reader.held(*tensor);
            let path = match key.and_then(|key| name.strip_prefix(key)?.strip_prefix('.').map(|rest| (key, rest))) {
                Some((key, rest)) => vec![key.to_owned(), rest.to_owned()],
                None => vec![name.clone()],
            };
            self.add(name, path, rank, held);
        }
        Ok(())
    }

    fn add(&mut self, name: &str, path: Vec<String>, rank: u64, held: Result<Held>) {
        let old = self.tensors.remove(name);
        if old.is_none() {
            self.names.push(name.to_owned());
        }
        let new = match (old, held) {
            (Some(Err(error)), _) | (_, Err(error)) => Err(error),
            (None, Ok(held)) => {
                let mut shared =
                    SharedTensor { path, first_rank: rank, first: held, pieces: Vec::new(), meshes: HashMap::new() };
                let pieces = std::mem::take(&mut shared.first.pieces);
                let mesh = shared.first.mesh.take();
                shared.hold(rank, pieces, mesh);
                Ok(shared)
            }
            (Some(Ok(mut shared)), Ok(held)) => shared.check_same(&held, rank).map(|()| {
                shared.hold(rank, held.pieces, held.mesh);
                shared
            }),
        };
        self.tensors.insert(name.to_owned(), new);
    }
}

impl SharedTensor {
    fn hold(&mut self, rank: u64, pieces: Vec<TensorPiece>, mesh: Option<Arc<Mesh>>) {
        self.pieces.extend(pieces.into_iter().map(|piece| (rank, piece)));
        if let Some(mesh) = mesh {
            self.meshes.entry(mesh.ranks.clone()).or_default().insert(rank);
        }
    }

    fn check_same(&self, held: &Held, rank: u64) -> Result<()> {
        let Held { torch_type, shape, division, .. } = &self.first;
        let differs = |what: &str, a: String, b: String| {
            Err(Error::new(format!("{what} differs: {a} on rank {}, {b} on rank {rank}", self.first_rank)))
        };
        let names = [division, &held.division].map(TensorDivision::name);
        if names[0] != names[1] {
            return differs("its class", names[0].to_owned(), names[1].to_owned());
        }
        if torch_type.name != held.torch_type.name {
            return differs("its dtype", torch_type.name.to_owned(), held.torch_type.name.to_owned());
        }
        if *shape != held.shape {
            return differs("its shape", format!("{shape:?}"), format!("{:?}", held.shape));
        }
        if *division != held.division {
            return differs("its division", self.first.how.clone(), held.how.clone());
        }
        Ok(())
    }

    /// Joins the pieces of all ranks. Pieces of several ranks at one place must be equal; of plain tensors, a rank may be
    /// chosen.
    fn join(self, name: &str, files: &FolderFiles, count: u64, taken: Option<u64>) -> Result<Tensor> {
        let Self { first: Held { torch_type, shape, division, how, .. }, mut pieces, meshes, .. } = self;
        for (mesh, holders) in &meshes {
            let mut missing = mesh.iter().filter(|rank| !holders.contains(rank));
            if let Some(rank) = missing.next() {
                return Err(Error::new(format!("rank {rank} of its mesh does not have it")));
            }
        }
        let is_plain = division == TensorDivision::Plain;
        if let Some(rank) = taken.filter(|rank| is_plain && pieces.iter().any(|(other, _)| other == rank)) {
            pieces.retain(|(other, _)| *other == rank);
        }
        pieces.sort_by(|(a_rank, a), (b_rank, b)| a.compare(b).then(a_rank.cmp(b_rank)));
        let mut unique: Vec<(u64, TensorPiece)> = Vec::new();
        for (rank, piece) in pieces {
            match unique.last() {
                Some((first, other)) if other.compare(&piece).is_eq() => {
                    if !piece.is_empty() {
                        check_equal([(*first, other), (rank, &piece)], torch_type, is_plain, files)?;
                    }
                }
                _ => unique.push((rank, piece)),
            }
        }
        let ranks: HashMap<u32, u64> = unique.iter().map(|(rank, piece)| (piece.file, *rank)).collect();
        let how = if is_plain { format!("on {}", counted(count, "rank")) } else { how };
        let pieces = unique.into_iter().map(|(_, piece)| piece).collect();
        let where_is = |file: u32| ranks.get(&file).map_or_else(String::new, |rank| format!("the file of rank {rank}"));
        Whole { name, torch_type, shape, how }.assemble(pieces, &where_is)
    }
}

/// Compares the elements at one place of a tensor on two ranks.
fn check_equal(
    [(a_rank, a), (b_rank, b)]: [(u64, &TensorPiece); 2],
    torch_type: &TorchType,
    is_plain: bool,
    files: &FolderFiles,
) -> Result<()> {
    let Some((place, elements)) = difference([a, b], torch_type.width as usize, &files.files)? else { return Ok(()) };
    let place: Vec<u64> = place.iter().zip(&a.spans).map(|(index, span)| span.start + index).collect();
    let [a, b] = elements.map(|element| text_of(&element, torch_type));
    let what = format!("differs between rank {a_rank} and rank {b_rank}, first at {place:?}: {a}, {b}");
    Err(if is_plain {
        let error = Error::new(format!("{what}; tcast takes one of several copies only if all are equal"));
        error.with_value(Opt::TAKE_RANK, a_rank.to_string(), "add {} to take the values of this rank").with_value(
            Opt::EXCLUDE,
            Advice::TENSOR,
            "add {}",
        )
    } else {
        Error::new(format!("{what}; its replicas should be equal"))
    })
}

/// Returns an element as text: a number, or its bytes.
fn text_of(element: &[u8], torch_type: &TorchType) -> String {
    let mut wide = [0; 8];
    let len = element.len().min(8);
    wide[..len].copy_from_slice(&element[..len]);
    let bits = u64::from_le_bytes(wide);
    match torch_type.dtype {
        Some(Dtype::Float32) => f32::from_bits(bits as u32).to_string(),
        Some(Dtype::Bfloat16) => f32::from_bits((bits as u32) << 16).to_string(),
        Some(Dtype::Float16) => half::f16::from_bits(bits as u16).to_string(),
        Some(Dtype::Float64) => f64::from_bits(bits).to_string(),
        Some(Dtype::Int64) => (bits as i64).to_string(),
        Some(Dtype::Int32) => (bits as i32).to_string(),
        Some(Dtype::Uint8 | Dtype::Bool) => bits.to_string(),
        _ => element.iter().rev().fold("0x".to_owned(), |text, byte| format!("{text}{byte:02x}")),
    }
}

struct RankReader<'r, 'a> {
    archive: &'r TorchFile<'a>,
    bytes: &'a [u8],
    /// The number of the file.
    number: u32,
    rank: u64,
    /// Number of ranks.
    count: u64,
    /// Memory for lists of shards, in bytes.
    left: usize,
    /// Meshes that were read, by the numbers of their objects.
    meshes: HashMap<PickleValue, Arc<Mesh>>,
}

impl RankReader<'_, '_> {
    fn held(&mut self, tensor: u32) -> Result<Held> {
        let values = &self.archive.pickle.values;
        let TensorCall { meaning, arguments, .. } = values.tensors[tensor as usize];
        let parts = values.sequence(arguments).filter(|_| meaning == CallMeaning::NotPlain);
        if let Some(&[PickleValue::Name(function), PickleValue::Name(class), arguments, state, ..]) = parts
            && values.code(function) == (b"torch._utils", b"_rebuild_wrapper_subclass")
        {
            match values.code(class) {
                (b"torch.distributed.tensor", b"DTensor") => return self.placed(arguments, state, false),
                (b"torch.distributed._tensor.api", b"DTensor") => return self.placed(arguments, state, true),
                (b"torch.distributed._shard.sharded_tensor.api", b"ShardedTensor") => return self.listed(state),
                _ => {}
            }
        }
        let view = view_of(self.archive, tensor)?;
        let whole = ranges_of(&vec![0; view.shape.len()], &view.shape);
        let pieces = pieces_of(&view, &whole, self.number, 0)?;
        let View { torch_type, shape, .. } = view;
        Ok(Held { torch_type, shape, division: TensorDivision::Plain, pieces, mesh: None, how: String::new() })
    }

    /// Reads a `DTensor`: the arguments have its dtype and shape, and the state the part of this rank and the mesh.
    fn placed(&mut self, arguments: PickleValue, state: PickleValue, is_old: bool) -> Result<Held> {
        let values = &self.archive.pickle.values;
        let (archive, rank) = (self.archive, self.rank);
        let malformed = || Error::new("malformed pickle: a DTensor is not what torch writes");
        let Some(&[_, dtype, shape, ..]) = values.sequence(arguments) else { return Err(malformed()) };
        let torch_type = named_type(values, dtype)?;
        let shape = numbers(values, shape).ok_or_else(malformed)?;
        let state = Attributes::of_state(values, state, "DTensor".to_owned())?;
        let spec = Attributes::of(values, state.get("_spec")?)?;
        if let Some(PickleValue::Object(meta)) = spec.find("tensor_meta") {
            let described = values.sequence(values.objects[meta as usize].arguments);
            let described = described.and_then(|described| numbers(values, *described.first()?));
            if described.as_ref() != Some(&shape) {
                return Err(Error::new(format!("has two shapes: {shape:?} and {:?}", described.unwrap_or_default())));
            }
        }
        let object = spec.get("mesh")?;
        let mesh = match self.meshes.get(&object) {
            Some(mesh) => Arc::clone(mesh),
            None => Arc::new(Mesh::read(archive, self.bytes, object, (rank, self.count))?),
        };
        self.meshes.insert(object, Arc::clone(&mesh));
        let placements = Placements::read(values, &spec, &mesh, shape.len(), is_old)?;
        let PickleValue::Tensor(local) = state.get("_local_tensor")? else {
            return Err(Error::new("has a part of another class, which tcast does not read"));
        };
        let how = placements.text(&mesh);
        let (mut pieces, mut group) = (Vec::new(), None);
        // The part of a rank outside of the mesh is empty.
        if let Some(coordinate) = mesh.coordinate_of(rank)? {
            let local = view_of(archive, local)?;
            if local.torch_type.name != torch_type.name {
                let what = format!("is {} on rank {rank}, and {} as a whole", local.torch_type.name, torch_type.name);
                return Err(Error::new(what));
            }
            let held = placements.held(&shape, &mesh, &coordinate);
            let lengths: Vec<u64> =
                held.iter().map(|ranges| ranges.iter().map(|range| range.end - range.start).sum()).collect();
            if lengths != local.shape {
                let what = format!("has the shape {:?} on rank {rank}, and {how} gives it {lengths:?}", local.shape);
                return Err(Error::new(what));
            }
            pieces = pieces_of(&local, &held, self.number, 0)?;
            group = Some(Arc::clone(&mesh));
        }
        let division = TensorDivision::Placed(placements, mesh.shape.clone());
        Ok(Held { torch_type, shape, division, pieces, mesh: group, how })
    }

    /// Reads a `ShardedTensor`: its state has the shards of this rank, and the places of all shards.
    fn listed(&mut self, state: PickleValue) -> Result<Held> {
        let values = &self.archive.pickle.values;
        let malformed = || Error::new("malformed pickle: a ShardedTensor is not what torch writes");
        let Some(&[shards, metadata, group, _, _]) = values.sequence(state) else { return Err(malformed()) };
        let group = Attributes::of(values, group)?;
        let (rank, count) = (group.number("global_rank")?, group.number("global_world_size")?);
        if (rank, count) != (self.rank, self.count) {
            let what =
                format!("the file of rank {} of {} was written by rank {rank} of {count}", self.rank, self.count);
            return Err(Error::new(what));
        }
        let metadata = Attributes::of(values, metadata)?;
        let shape = metadata.numbers("size")?;
        let torch_type = type_in_properties(values, metadata.get("tensor_properties")?)?;
        let shards_of_all = metadata.elements("shards_metadata")?;
        self.left = self.left.checked_sub(MEMORY_OF_SHARD.saturating_mul(shards_of_all.len())).ok_or_else(too_often)?;
        let place = |shard: &PickleValue| {
            let shard = Attributes::of(values, *shard)?;
            Ok((shard.numbers("shard_offsets")?, shard.numbers("shard_sizes")?))
        };
        let mut places = shards_of_all.iter().map(place).collect::<Result<Vec<_>>>()?;
        places.sort_unstable();
        let how = counted(places.len() as u64, "shard");
        let mut pieces = Vec::new();
        for shard in values.sequence(shards).ok_or_else(malformed)? {
            if !is_a(values, *shard, "Shard") {
                return Err(malformed());
            }
            let shard = Attributes::of(values, *shard)?;
            let own = place(&shard.get("metadata")?)?;
            if places.binary_search(&own).is_err() {
                return Err(Error::new(format!(
                    "rank {rank} has a shard at {:?} that the tensor does not list",
                    own.0
                )));
            }
            let PickleValue::Tensor(local) = shard.get("tensor")? else { return Err(malformed()) };
            let local = view_of(self.archive, local)?;
            if local.torch_type.name != torch_type.name || local.shape != own.1 || own.0.len() != shape.len() {
                let what = format!("its shard at {:?} is {} {:?}", own.0, local.torch_type.name, local.shape);
                return Err(Error::new(format!("{what} on rank {rank}, and not {} {:?}", torch_type.name, own.1)));
            }
            pieces.extend(pieces_of(&local, &ranges_of(&own.0, &own.1), self.number, 0)?);
        }
        Ok(Held { torch_type, shape, division: TensorDivision::Listed(places), pieces, mesh: None, how })
    }
}
