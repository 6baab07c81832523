//! Tables of entries, and the lookup of one code without special instructions.

/// Entries of two bytes, for codes of 4 bits.
///
/// For float8e4m3fn, which has 128 magnitudes, the entries are bfloat16 numbers. Entry m is for the subnormal number of
/// mantissa m. Entry 8 + m plus the exponent field of a normal number is for the number of mantissa m.
pub type Table = [u16; 16];

/// The unit of the exponent field of a bfloat16 number.
pub const EXPONENT: u16 = 1 << 7;

/// Derivation of table entries from the first or the second of a pair of numbers.
pub struct Derivation {
    /// For each byte of the entries, the byte of the pair that it derives from.
    pub(super) chosen: [u8; 32],
    /// Number added to the chosen number, and mask of the bits of the sum that are kept.
    pub(super) added: [u16; 16],
    pub(super) kept: [u16; 16],
}

impl Derivation {
    /// Creates a derivation. Each of `entries` is true if the entry derives from the second number, followed by the
    /// number to add and the mask of the bits to keep.
    pub fn new(entries: [(bool, u16, u16); 16]) -> Self {
        Self {
            chosen: std::array::from_fn(|at| 2 * u8::from(entries[at / 2].0) + at as u8 % 2),
            added: entries.map(|entry| entry.1),
            kept: entries.map(|entry| entry.2),
        }
    }
}

/// Returns the entry of one code.
#[inline(always)]
pub(super) fn entry_of(code: u8, table: &Table) -> [u8; 2] {
    table[usize::from(code & 15)].to_le_bytes()
}

/// Returns the entry of one finite float8e4m3fn code.
#[inline(always)]
pub(super) fn float_of(code: u8, table: &Table) -> [u8; 2] {
    let magnitude = code & 0x7f;
    let entry = table[usize::from(magnitude.min(magnitude & 7 | 8))];
    let exponent_and_sign = ((i16::from(code as i8) << 4) as u16) & 0x8780;
    entry.wrapping_add(exponent_and_sign).to_le_bytes()
}

/// Calls `look_up` with N codes, their table and their results, and `look_up_one` with each of the remaining codes of a
/// group.
#[inline(always)]
pub(super) fn each_table<const N: usize, T: Copy>(
    codes: &[u8],
    tables: &[Table],
    size: usize,
    out: &mut [[u8; 2]],
    load: impl Fn(&Table) -> T,
    look_up: impl Fn(&[u8; N], T, &mut [[u8; 2]; N]),
    look_up_one: impl Fn(u8, &Table) -> [u8; 2],
) {
    for ((codes, out), table) in codes.chunks(size).zip(out.chunks_mut(size)).zip(tables) {
        let ((codes, last), (out, last_out)) = (codes.as_chunks(), out.as_chunks_mut());
        let loaded = load(table);
        for (codes, out) in codes.iter().zip(out) {
            look_up(codes, loaded, out);
        }
        for (out, code) in last_out.iter_mut().zip(last) {
            *out = look_up_one(*code, table);
        }
    }
}
