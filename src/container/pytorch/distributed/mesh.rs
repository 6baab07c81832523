//! Meshes of processes, and which part of a tensor each process holds (`torch/distributed/device_mesh.py`,
//! `_mesh_layout.py` and `tensor/placement_types.py`, torch 2.2 to 2.15).

use super::super::TorchFile;
use super::super::values::{PickleValue, PickleValues};
use super::attributes::{Attributes, class_of, is_a};
use super::folder::{MOST_RANKS, ranges_of, view_of};
use crate::container::indices;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::text::shorten;
use std::ops::Range;

/// Maximum depth of a layout of a mesh. Meshes that were flattened several times have a few levels.
const DEEPEST: usize = 8;

/// The processes that share a tensor.
#[derive(Debug)]
pub(super) struct Mesh {
    pub(super) shape: Vec<u64>,
    /// In row-major order.
    pub(super) ranks: Vec<u64>,
    /// The place of the process that wrote the file, if the file records it.
    coordinate: Option<Vec<u64>>,
    /// True if torch before 2.5 wrote it, which did not record the order of two divisions of one axis.
    is_old: bool,
}

fn malformed(what: &str) -> Error {
    Error::new(format!("malformed pickle: {what}"))
}

impl Mesh {
    /// Reads a mesh in the archive of a rank, one of so many.
    ///
    /// # Errors
    /// When it is malformed, or another rank wrote it.
    pub(super) fn read(
        archive: &TorchFile,
        bytes: &[u8],
        mesh: PickleValue,
        (rank, count): (u64, u64),
    ) -> Result<Self> {
        let values = &archive.pickle.values;
        if !is_a(values, mesh, "DeviceMesh") {
            return Err(malformed("a mesh is not a DeviceMesh"));
        }
        let attributes = Attributes::of(values, mesh)?;
        let coordinate = match attributes.find("_coordinate_on_dim") {
            None | Some(PickleValue::None) => None,
            Some(_) => Some(attributes.numbers("_coordinate_on_dim")?),
        };
        if let Some(recorded @ (PickleValue::Int(_) | PickleValue::Long(_))) = attributes.find("_rank")
            && values.integer(recorded) != i64::try_from(rank).ok()
        {
            let recorded = values.integer(recorded).unwrap_or_default();
            return Err(Error::new(format!("the file of rank {rank} was written by rank {recorded}")));
        }
        let (shape, ranks) = match attributes.find("mesh") {
            Some(ranks) => integers(archive, bytes, ranks, count)?,
            None => by_layout(archive, bytes, &attributes, coordinate.as_deref(), (rank, count))?,
        };
        let mut sorted = ranks.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != ranks.len() || ranks.is_empty() {
            return Err(malformed("a mesh has a rank twice, or none"));
        }
        Ok(Self { shape, ranks, coordinate, is_old: attributes.find("_parent_mesh").is_some() })
    }

    /// Returns the place of a rank; `None` outside of the mesh.
    ///
    /// # Errors
    /// When the file records another one.
    pub(super) fn coordinate_of(&self, rank: u64) -> Result<Option<Vec<u64>>> {
        let Some(at) = self.ranks.iter().position(|other| *other == rank) else { return Ok(None) };
        let coordinate = indices(at as u64, &self.shape, false);
        match &self.coordinate {
            Some(recorded) if *recorded != coordinate => {
                let what =
                    format!("the file of rank {rank} was written at {recorded:?} of its mesh, not {coordinate:?}");
                Err(Error::new(what))
            }
            _ => Ok(Some(coordinate)),
        }
    }

    /// Describes its shape: `2x4`.
    pub(super) fn text(&self) -> String {
        self.shape.iter().map(u64::to_string).collect::<Vec<_>>().join("x")
    }

    /// True if ranks ascend along an axis.
    fn ascends(&self, axis: usize) -> bool {
        let step: u64 = self.shape[axis + 1..].iter().product();
        let is_next = |at: usize| at as u64 / step % self.shape[axis] + 1 < self.shape[axis];
        (0..self.ranks.len()).filter(|at| is_next(*at)).all(|at| self.ranks[at] < self.ranks[at + step as usize])
    }
}

/// Reads a small tensor of integers.
fn integers(archive: &TorchFile, bytes: &[u8], tensor: PickleValue, most: u64) -> Result<(Vec<u64>, Vec<u64>)> {
    let PickleValue::Tensor(tensor) = tensor else { return Err(malformed("the ranks of a mesh are not a tensor")) };
    let view = view_of(archive, tensor)?;
    let width = match view.torch_type.dtype {
        Some(Dtype::Int32) => 4,
        Some(Dtype::Int64) => 8,
        _ => return Err(malformed("the ranks of a mesh are not integers")),
    };
    if view.count > most {
        return Err(Error::new(format!("is on {} ranks, and there are {most}", view.count)));
    }
    let number = |at: u64| {
        let places = indices(at, &view.shape, false);
        let place = places.iter().zip(&view.strides).map(|(index, stride)| index * stride).sum::<u64>() as usize;
        let stored = &bytes[view.range.start + place * width..][..width];
        let is_negative = stored[width - 1] >= 0x80;
        let mut wide = [0; 8];
        wide[..width].copy_from_slice(stored);
        Some(u64::from_le_bytes(wide)).filter(|number| !is_negative && *number < most)
    };
    let ranks: Option<Vec<u64>> = (0..view.count).map(number).collect();
    Ok((view.shape, ranks.ok_or_else(|| Error::new(format!("is on a rank that is not one of the {most}")))?))
}

/// Returns the shape and the ranks of a mesh of torch 2.9 and later: a layout, and the ranks in its order. A part of a mesh has
/// copies that tile the ranks; the mesh is the one with this rank.
fn by_layout(
    archive: &TorchFile,
    bytes: &[u8],
    attributes: &Attributes,
    coordinate: Option<&[u64]>,
    (rank, count): (u64, u64),
) -> Result<(Vec<u64>, Vec<u64>)> {
    let values = &archive.pickle.values;
    let (shape_of_map, map) = integers(archive, bytes, attributes.get("_rank_map")?, count)?;
    let layout = Attributes::of(values, attributes.get("_layout")?)?;
    let axes: Vec<(PickleValue, PickleValue)> = if layout.find("axes").is_some() {
        let axis = |axis: &PickleValue| {
            let axis = Attributes::of(values, *axis)?;
            Ok((axis.get("shape")?, axis.get("stride")?))
        };
        layout.elements("axes")?.iter().map(axis).collect::<Result<_>>()?
    } else {
        let parts = |name: &str| {
            let value = layout.get(name)?;
            Ok::<_, Error>(values.sequence(value).map_or_else(|| vec![value], <[_]>::to_vec))
        };
        let (shape, stride) = (parts("shape")?, parts("stride")?);
        if shape.len() != stride.len() {
            return Err(malformed("a layout of a mesh has other strides than axes"));
        }
        shape.into_iter().zip(stride).collect()
    };
    let (mut shape, mut places) = (Vec::new(), vec![0]);
    for (lengths, strides) in axes {
        let inner = offsets(values, lengths, strides, (0, count))?;
        shape.push(inner.len() as u64);
        places = sums(&places, &inner, count)?;
    }
    let outside = || malformed("the layout of a mesh leads outside of its ranks");
    if shape_of_map.len() != 1 || places.iter().any(|place| *place >= map.len() as u64) {
        return Err(outside());
    }
    if places.len() != map.len() {
        let mut own = map.iter().enumerate().filter(|(_, other)| **other == rank).map(|(at, _)| at as u64);
        let own = own.next().filter(|_| own.next().is_none());
        let coordinate = coordinate.filter(|coordinate| coordinate.len() == shape.len());
        let coordinate = coordinate.filter(|coordinate| coordinate.iter().zip(&shape).all(|(at, len)| at < len));
        let (Some(own), Some(coordinate)) = (own, coordinate) else {
            return Err(malformed("a mesh does not say where its rank is"));
        };
        let number = coordinate.iter().zip(&shape).fold(0, |number, (at, len)| number * len + at);
        let first = places[number as usize];
        for place in &mut places {
            let moved = (*place + own).checked_sub(first).filter(|place| *place < map.len() as u64);
            *place = moved.ok_or_else(outside)?;
        }
    }
    Ok((shape, places.iter().map(|place| map[*place as usize]).collect()))
}

/// Returns the offsets along an axis of a layout: nested lengths and strides, the last ones fastest.
fn offsets(
    values: &PickleValues,
    lengths: PickleValue,
    strides: PickleValue,
    (depth, most): (usize, u64),
) -> Result<Vec<u64>> {
    let both = (values.sequence(lengths), values.sequence(strides));
    let number = |value: PickleValue| {
        let number = values.integer(value).and_then(|number| u64::try_from(number).ok());
        number.filter(|number| *number <= most).ok_or_else(|| malformed("a mesh is too large"))
    };
    match both {
        (Some(lengths), Some(strides)) if lengths.len() == strides.len() && depth < DEEPEST => {
            let mut all = vec![0];
            for (lengths, strides) in lengths.iter().zip(strides) {
                all = sums(&all, &offsets(values, *lengths, *strides, (depth + 1, most))?, most)?;
            }
            Ok(all)
        }
        (None, None) => {
            let (length, stride) = (number(lengths)?, number(strides)?);
            Ok((0..length).map(|at| at * stride).collect())
        }
        _ => Err(malformed("a layout of a mesh has other strides than axes")),
    }
}

/// Returns the sum of each of some numbers with each of others.
fn sums(outer: &[u64], inner: &[u64], most: u64) -> Result<Vec<u64>> {
    if outer.len().saturating_mul(inner.len()) as u64 > most {
        return Err(malformed(&format!("a mesh has more than {most} ranks")));
    }
    Ok(outer.iter().flat_map(|outer| inner.iter().map(move |inner| outer + inner)).collect())
}

/// The division of a tensor along one axis of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MeshPlacement {
    Replicate,
    /// Consecutive parts of an axis.
    Shard(usize),
    /// A part of each of so many parts of an axis.
    Strided(usize, u64),
}

impl MeshPlacement {
    fn read(values: &PickleValues, value: PickleValue) -> Result<Self> {
        let Some((module, name)) = class_of(values, value) else {
            return Err(malformed("a placement is not an object"));
        };
        let number = |name: &str| Attributes::of(values, value)?.number(name);
        let is_known = module.starts_with(b"torch.distributed.") && module.ends_with(b".placement_types");
        match name {
            _ if !is_known => {}
            b"Replicate" => return Ok(Self::Replicate),
            b"Shard" => return Ok(Self::Shard(number("dim")? as usize)),
            b"_StridedShard" => {
                let factor = number("split_factor")?;
                if (1..=MOST_RANKS).contains(&factor) {
                    return Ok(Self::Strided(number("dim")? as usize, factor));
                }
                return Err(malformed("a strided shard has no split factor"));
            }
            b"Partial" | b"_Partial" | b"_MaskPartial" => {
                return Err(Error::new("is a partial tensor (Partial): the values of its ranks are not summed yet"));
            }
            _ => {}
        }
        let name = shorten(&String::from_utf8_lossy(name));
        Err(Error::new(format!("is divided by the unknown placement {name}")))
    }

    fn axis(self) -> Option<usize> {
        match self {
            Self::Replicate => None,
            Self::Shard(axis) | Self::Strided(axis, _) => Some(axis),
        }
    }

    fn text(self) -> String {
        match self {
            Self::Replicate => "R".to_owned(),
            Self::Shard(axis) => format!("S({axis})"),
            Self::Strided(axis, factor) => format!("S({axis}, {factor})"),
        }
    }
}

/// The placements of a tensor on a mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placements(Vec<MeshPlacement>);

impl Placements {
    /// Reads the placements of a spec, and checks that they say what each rank holds.
    pub(super) fn read(
        values: &PickleValues,
        spec: &Attributes,
        mesh: &Mesh,
        dimensions: usize,
        is_old_class: bool,
    ) -> Result<Self> {
        let all = spec.elements("placements")?.iter().map(|value| MeshPlacement::read(values, *value));
        let all: Vec<MeshPlacement> = all.collect::<Result<_>>()?;
        if all.len() != mesh.shape.len() {
            let what = format!("has {} placements on a mesh of {} axes", all.len(), mesh.shape.len());
            return Err(Error::new(what));
        }
        if let Some(axis) = all.iter().filter_map(|placement| placement.axis()).find(|axis| *axis >= dimensions) {
            return Err(Error::new(format!("is divided along axis {axis}, and has {dimensions}")));
        }
        if all.iter().enumerate().any(|(axis, placement)| placement.axis().is_some() && !mesh.ascends(axis)) {
            let what = "is divided along an axis of its mesh whose ranks do not ascend: torch itself does not join it";
            return Err(Error::new(what));
        }
        let mut axes: Vec<usize> = Vec::new();
        for placement in &all {
            if let MeshPlacement::Shard(axis) = placement {
                if axes.contains(axis) && (mesh.is_old || is_old_class) {
                    let what = format!("is divided twice along axis {axis} by a torch before 2.5");
                    return Err(Error::new(format!("{what}, which did not record the order")));
                }
                axes.push(*axis);
            }
        }
        let is_strided = all.iter().any(|placement| matches!(placement, MeshPlacement::Strided(..)));
        let order = spec.find("shard_order").and_then(|order| values.sequence(order)).unwrap_or_default();
        let ascends = |entry: &PickleValue| {
            let PickleValue::Object(at) = *entry else { return true };
            let arguments = values.sequence(values.objects[at as usize].arguments).unwrap_or_default();
            let axes = arguments.get(1).and_then(|axes| values.sequence(*axes)).unwrap_or_default();
            axes.windows(2).all(|pair| values.integer(pair[0]) < values.integer(pair[1]))
        };
        if !is_strided && !order.iter().all(ascends) {
            return Err(Error::new("is divided in another order than that of its mesh, which tcast does not read"));
        }
        Ok(Self(all))
    }

    /// Returns the indices along each axis of the tensor that a rank holds, as ranges in its order.
    pub(super) fn held(&self, shape: &[u64], mesh: &Mesh, coordinate: &[u64]) -> Vec<Vec<Range<u64>>> {
        let mut held = ranges_of(&vec![0; shape.len()], shape);
        for ((placement, count), at) in self.0.iter().zip(&mesh.shape).zip(coordinate) {
            match *placement {
                MeshPlacement::Replicate => {}
                MeshPlacement::Shard(axis) => held[axis] = chunk(&held[axis], *count, *at),
                MeshPlacement::Strided(axis, factor) => {
                    let parts = (0..factor).map(|part| chunk(&held[axis], factor, part));
                    held[axis] = parts.flat_map(|part| chunk(&part, *count, *at)).collect();
                }
            }
        }
        held
    }

    /// Describes them with the mesh: `mesh 2x2 [R, S(0)]`.
    pub(super) fn text(&self, mesh: &Mesh) -> String {
        let all: Vec<String> = self.0.iter().map(|placement| placement.text()).collect();
        format!("mesh {} [{}]", mesh.text(), all.join(", "))
    }
}

/// Returns a part of some indices: of `count` parts of equal length, as `torch.chunk` makes them. The last ones may be short or
/// empty.
fn chunk(ranges: &[Range<u64>], count: u64, at: u64) -> Vec<Range<u64>> {
    let len: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    let size = len.div_ceil(count);
    let (start, end) = ((size * at).min(len), (size * at).saturating_add(size).min(len));
    let mut before = 0;
    let mut part = Vec::new();
    for range in ranges {
        let len = range.end - range.start;
        let [from, to] = [start, end].map(|place| place.clamp(before, before + len) - before);
        if from < to {
            part.push(range.start + from..range.start + to);
        }
        before += len;
    }
    part
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges are meant")]
mod tests {
    use super::MeshPlacement::{Replicate, Shard, Strided};
    use super::*;

    fn mesh(shape: &[u64]) -> Mesh {
        let ranks = (0..shape.iter().product()).collect();
        Mesh { shape: shape.to_vec(), ranks, coordinate: None, is_old: false }
    }

    #[test]
    fn parts_are_those_of_torch_chunk() {
        let parts = |len: u64, count: u64| -> Vec<Vec<Range<u64>>> {
            (0..count).map(|at| chunk(&[0..len], count, at)).collect()
        };
        assert_eq!(parts(5, 4), [vec![0..2], vec![2..4], vec![4..5], vec![]]);
        assert_eq!(parts(1, 3), [vec![0..1], vec![], vec![]]);
        assert_eq!(parts(0, 2), [vec![], vec![]]);
        assert_eq!(chunk(&[0..2, 6..9], 2, 0), [0..2, 6..7]);
        assert_eq!(chunk(&[0..2, 6..9], 2, 1), [7..9]);
    }

    #[test]
    fn the_axes_of_a_mesh_divide_from_the_first_to_the_last() {
        let held = |placements: &[MeshPlacement], coordinate: &[u64]| {
            Placements(placements.to_vec()).held(&[10, 3], &mesh(&[2, 2]), coordinate)
        };
        assert_eq!(held(&[Shard(0), Shard(0)], &[1, 0]), [vec![5..8], vec![0..3]]);
        assert_eq!(held(&[Replicate, Shard(1)], &[1, 1]), [vec![0..10], vec![2..3]]);
        // Tensor parallelism divided first, and then FSDP.
        assert_eq!(held(&[Strided(0, 2), Shard(0)], &[0, 1]), [vec![5..8], vec![0..3]]);
        assert_eq!(held(&[Strided(0, 2), Replicate], &[1, 0]), [vec![3..5, 8..10], vec![0..3]]);
    }

    #[test]
    fn ranks_must_ascend_along_an_axis() {
        let mut mesh = mesh(&[2, 2]);
        assert!(mesh.ascends(0) && mesh.ascends(1));
        mesh.ranks = vec![1, 0, 3, 2];
        assert!(mesh.ascends(0) && !mesh.ascends(1));
    }
}
