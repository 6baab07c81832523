//! Decodes any number of blocks to a target type, through lanes that fit into the first-level cache.

use super::real::Real;
use super::{BlockFormat, Codec, LANE};
use crate::dtype::{Class, Dtype};
use crate::kernel::{Isa, Kernel, Loop, Loss, Minifloat, Rules, Storage, prefetch_behind};

/// Distance in bytes by which blocks are prefetched.
const AHEAD: usize = 4096;

/// The decoder of values to a target type, through lanes of float64 for that target, and of float32 for all others.
struct Lanes<'a> {
    isa: Isa,
    source: BlockSource<'a>,
    lane: Dtype,
    factor: Option<f32>,
    /// The cast of float32 to a narrower target, and the format of that target.
    narrow: Option<(Kernel, Minifloat)>,
}

/// The origin of values.
enum BlockSource<'a> {
    Blocks(&'a dyn Codec),
    /// Plain numbers, which are cast to the type of the lane.
    Plain(Kernel),
}

impl BlockFormat {
    /// Decodes whole blocks to little endian float32, bfloat16, float16 or float64.
    ///
    /// The first three are the float32 values of ggml, multiplied by `factor` in float32, and rounded once to the target,
    /// to nearest even. float64 values are exact, multiplied by `factor` in float64. A plain number that float32 cannot
    /// hold is rounded to it first; a cast by a [`Kernel`](crate::kernel::Kernel) rounds it once.
    ///
    /// Returns true if a result is infinite or NaN, or is 0 although the value without `factor` is not. There is only one
    /// NaN, which is positive and quiet.
    ///
    /// # Panics
    /// When `blocks` is not a whole number of blocks, `out` has another length than its values, or the target is another
    /// type.
    pub fn decode(&self, isa: Isa, blocks: &[u8], factor: Option<f32>, target: Dtype, out: &mut [u8]) -> bool {
        let is_float = matches!(target, Dtype::Float32 | Dtype::Bfloat16 | Dtype::Float16 | Dtype::Float64);
        assert!(is_float, "blocks are not decoded to {target}");
        let width = target.bits() as usize / 8;
        assert_eq!(out.len(), self.elements_in(blocks) * width, "the output has another length");
        let lane = if target == Dtype::Float64 { target } else { Dtype::Float32 };
        let source = match self.codec {
            Some(codec) => BlockSource::Blocks(codec),
            None => BlockSource::Plain(cast(self.dtype.expect("other formats have a codec"), lane)),
        };
        let narrow = match target.class() {
            Class::Float(format) if target != lane => Some((cast(lane, target), Minifloat::new(&format))),
            _ => None,
        };
        let lanes = Lanes { isa, source, lane, factor, narrow };
        let (count, mut is_unusual) = (LANE / self.elements as usize, false);
        for (blocks, out) in blocks.chunks(count * self.bytes as usize).zip(out.chunks_mut(LANE * width)) {
            prefetch_behind(blocks, AHEAD);
            let is_ordinary = match (self.codec, &lanes.narrow) {
                (Some(codec), Some((_, float))) if target == Dtype::Bfloat16 => {
                    codec.decode_bfloat16(isa, blocks, factor.unwrap_or(1.0), *float, out.as_chunks_mut().0)
                }
                _ => false,
            };
            is_unusual |= !is_ordinary && lanes.decode(blocks, out);
        }
        is_unusual
    }
}

impl Lanes<'_> {
    /// Decodes at most [`LANE`] elements. Returns true if a result is infinite or NaN, or is 0 although its value is not.
    fn decode(&self, blocks: &[u8], out: &mut [u8]) -> bool {
        let Some((kernel, float)) = &self.narrow else {
            self.fill(blocks, out);
            return self.finish(out);
        };
        let mut lane = [[0; 4]; LANE];
        let lane = &mut lane[..out.len() / 2];
        self.fill(blocks, lane.as_flattened_mut());
        let (factor, float) = (self.factor.unwrap_or(1.0), *float);
        // Nearly all lanes have ordinary numbers only.
        if self.isa.run(NarrowLoop { values: lane, factor, float, out: out.as_chunks_mut().0 }) {
            return false;
        }
        let is_unusual = self.finish(lane.as_flattened_mut());
        let counts = kernel.run_on(self.isa, lane.as_flattened(), out, lane.len()).unwrap_or_default();
        is_unusual || counts[Loss::Infinite] + counts[Loss::Flushed] != 0
    }

    /// Fills a lane with values that are complete but for the factor.
    fn fill(&self, blocks: &[u8], lane: &mut [u8]) {
        match &self.source {
            BlockSource::Blocks(codec) if self.lane == Dtype::Float64 => {
                codec.decode_float64(self.isa, blocks, lane.as_chunks_mut().0);
            }
            BlockSource::Blocks(codec) => codec.decode_float32(self.isa, blocks, lane.as_chunks_mut().0),
            BlockSource::Plain(kernel) => {
                // Numbers of whole bytes cannot be malformed.
                let count = 8 * blocks.len() / kernel.storages()[0].dtype.bits() as usize;
                let _ = kernel.run_on(self.isa, blocks, lane, count);
            }
        }
    }

    /// Multiplies the values of a lane; returns the same as [`Self::decode`].
    fn finish(&self, lane: &mut [u8]) -> bool {
        if self.lane == Dtype::Float64 {
            finish::<f64>(self.isa, lane.as_chunks_mut().0, self.factor.map(f64::from))
        } else {
            finish::<f32>(self.isa, lane.as_chunks_mut().0, self.factor)
        }
    }
}

fn cast(source: Dtype, target: Dtype) -> Kernel {
    let [source, target] = [source, target].map(Storage::packed);
    Kernel::cast(source, target, &Rules::LOSSLESS).expect("numbers can be cast to floats")
}

/// Multiplies values, and replaces each NaN by the only one that is written.
fn finish<N: Real>(isa: Isa, values: &mut [N::Bytes], factor: Option<N>) -> bool {
    let is_unusual = isa.run(FinishLoop { values, factor });
    if is_unusual {
        for bytes in values {
            if N::from_bytes(*bytes).is_nan() {
                *bytes = N::NAN.to_bytes();
            }
        }
    }
    is_unusual
}

/// The loop over values that are complete but for a factor.
struct FinishLoop<'a, N: Real> {
    values: &'a mut [N::Bytes],
    factor: Option<N>,
}

impl<N: Real> Loop for FinishLoop<'_, N> {
    type Result = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let mut marks = N::Bits::default();
        if let Some(factor) = self.factor {
            for bytes in self.values {
                let value = N::from_bytes(*bytes);
                let product = value * factor;
                marks = marks | N::mark(value, product);
                *bytes = product.to_bytes();
            }
        } else {
            for bytes in self.values {
                let value = N::from_bytes(*bytes);
                marks = marks | N::mark(value, value);
            }
        }
        N::is_marked(marks)
    }
}

/// The loop that multiplies values and rounds them to floats of 16 bits. Returns false if a result could be infinite or
/// NaN, or is 0 although its value is not; all results are then unspecified.
struct NarrowLoop<'a> {
    values: &'a [[u8; 4]],
    factor: f32,
    float: Minifloat,
    out: &'a mut [[u8; 2]],
}

impl Loop for NarrowLoop<'_> {
    type Result = bool;

    #[inline(always)]
    fn run(self) -> bool {
        // Magnitudes are signed integers, because all instruction sets can compare these.
        let (mut largest, mut smallest) = (0, i32::MAX);
        for (bytes, out) in self.values.iter().zip(self.out) {
            let value = f32::from_le_bytes(*bytes);
            let bits = (value * self.factor).to_bits();
            let magnitude = (bits & 0x7fff_ffff) as i32;
            largest = largest.max(magnitude);
            smallest = smallest.min(if value == 0.0 { i32::MAX } else { magnitude });
            *out = (self.float.round_bits(bits).0 as u16).to_le_bytes();
        }
        largest as u32 <= self.float.limit && smallest as u32 > self.float.zero
    }
}
