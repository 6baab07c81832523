//! GGUF files for tests, written without the program.

/// A file under construction: its keys, and its tensors with their types and bytes.
#[derive(Default)]
pub struct Gguf {
    keys: Vec<Vec<u8>>,
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
    alignment: usize,
}

/// The numbers of some types.
pub const F32: u32 = 0;
pub const F16: u32 = 1;
pub const Q4_0: u32 = 2;
pub const Q4_1: u32 = 3;
pub const Q8_0: u32 = 8;
pub const Q4_K: u32 = 12;
pub const I32: u32 = 26;
pub const MXFP4: u32 = 39;
pub const NVFP4: u32 = 40;

/// A text, as the format stores it.
pub fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl Gguf {
    /// A file of an architecture.
    pub fn of(architecture: &str) -> Self {
        Self { alignment: 32, ..Self::default() }.text("general.architecture", architecture)
    }

    /// Adds a key with the number of its type and the bytes of its value.
    pub fn key(mut self, name: &str, kind: u32, value: &[u8]) -> Self {
        self.keys.push([&text(name)[..], &kind.to_le_bytes(), value].concat());
        self
    }

    pub fn text(self, name: &str, value: &str) -> Self {
        self.key(name, 8, &text(value))
    }

    pub fn number(self, name: &str, value: u32) -> Self {
        self.key(name, 4, &value.to_le_bytes())
    }

    pub fn small(self, name: &str, value: u16) -> Self {
        self.key(name, 2, &value.to_le_bytes())
    }

    /// Adds a list of texts.
    pub fn texts(self, name: &str, values: &[&str]) -> Self {
        let all: Vec<u8> = values.iter().flat_map(|value| text(value)).collect();
        self.key(name, 9, &[&8_u32.to_le_bytes()[..], &(values.len() as u64).to_le_bytes(), &all].concat())
    }

    /// Adds a list of 32-bit integers.
    pub fn integers(self, name: &str, values: &[i32]) -> Self {
        let all: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.key(name, 9, &[&5_u32.to_le_bytes()[..], &(values.len() as u64).to_le_bytes(), &all].concat())
    }

    /// Adds a tensor with a row-major shape.
    pub fn tensor(mut self, name: &str, shape: &[u64], kind: u32, bytes: &[u8]) -> Self {
        self.tensors.push((name.to_owned(), shape.to_vec(), kind, bytes.to_vec()));
        self
    }

    /// Adds a tensor of float32.
    pub fn floats(self, name: &str, shape: &[u64], values: impl IntoIterator<Item = f32>) -> Self {
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        self.tensor(name, shape, F32, &bytes)
    }

    /// Adds a matrix of zeros under each name.
    pub fn tensors_of(self, names: &[&str]) -> Self {
        let file = Self { alignment: 32, ..self };
        names.iter().fold(file, |file, name| file.floats(name, &[2, 32], [0.0; 64]))
    }

    pub fn aligned(self, alignment: u32) -> Self {
        Self { alignment: alignment as usize, ..self.number("general.alignment", alignment) }
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.bytes_of_version(3)
    }

    pub fn bytes_of_version(&self, version: u32) -> Vec<u8> {
        let counts = [self.tensors.len() as u64, self.keys.len() as u64];
        let mut file = [&b"GGUF"[..], &version.to_le_bytes(), &counts.map(u64::to_le_bytes).concat()].concat();
        file.extend(self.keys.concat());
        let mut offset = 0;
        for (name, shape, kind, bytes) in &self.tensors {
            file.extend(text(name));
            file.extend((shape.len() as u32).to_le_bytes());
            file.extend(shape.iter().rev().flat_map(|length| length.to_le_bytes()));
            file.extend(kind.to_le_bytes());
            file.extend((offset as u64).to_le_bytes());
            offset += bytes.len().next_multiple_of(self.alignment);
        }
        file.resize(file.len().next_multiple_of(self.alignment), 0);
        for (.., bytes) in &self.tensors {
            file.extend(bytes);
            file.resize(file.len().next_multiple_of(self.alignment), 0);
        }
        file
    }
}

/// A block of `Q8_0`: the bits of a float16 scale, and 32 codes.
pub fn q8_0(scale: u16, codes: impl Fn(usize) -> i8) -> Vec<u8> {
    scale.to_le_bytes().into_iter().chain((0..32).map(|at| codes(at) as u8)).collect()
}

/// A block of `Q4_0`: the bits of a float16 scale, and 32 codes from 0 to 15, of which code j shares a byte with j + 16.
pub fn q4_0(scale: u16, codes: impl Fn(usize) -> u8) -> Vec<u8> {
    scale.to_le_bytes().into_iter().chain((0..16).map(|at| codes(at) | codes(at + 16) << 4)).collect()
}

/// A block of MXFP4: an exponent, and 32 codes.
pub fn mxfp4(exponent: u8, codes: impl Fn(usize) -> u8) -> Vec<u8> {
    std::iter::once(exponent).chain((0..16).map(|at| codes(at) | codes(at + 16) << 4)).collect()
}

/// A block of NVFP4: four scales, and 64 codes, of which code j of 16 shares a byte with j + 8.
pub fn nvfp4(scales: [u8; 4], codes: impl Fn(usize) -> u8) -> Vec<u8> {
    let pairs = (0..4).flat_map(|group| (0..8).map(move |at| (16 * group + at, 16 * group + at + 8)));
    scales.into_iter().chain(pairs.map(|(low, high)| codes(low) | codes(high) << 4)).collect()
}
