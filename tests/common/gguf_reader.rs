//! A reader of GGUF files, for tests of blocks.

/// The name, type and number of elements of each tensor, and its data to the end of the file.
pub(crate) fn tensors_of_gguf(file: &[u8]) -> Vec<(String, u32, u64, &[u8])> {
    let (_, tensors) = parts_of_gguf(file);
    let elements = |shape: &[u64]| shape.iter().product();
    tensors.into_iter().map(|(name, id, shape, data)| (name, id, elements(&shape), data)).collect()
}

/// The keys with the bytes of their values, and the name, type and row-major shape of each tensor with its data to the end of
/// the file.
#[expect(clippy::type_complexity, reason = "tests take it apart at once")]
pub(crate) fn parts_of_gguf(file: &[u8]) -> (Vec<(String, &[u8])>, Vec<(String, u32, Vec<u64>, &[u8])>) {
    let mut reader = GgufReader { file, at: 4 };
    assert_eq!(reader.u32(), 3);
    let (tensors, count) = (reader.u64(), reader.u64());
    let mut alignment = 32;
    let mut keys = Vec::new();
    for _ in 0..count {
        let key = reader.string();
        let kind = reader.u32();
        let start = reader.at;
        reader.skip(kind);
        if key == "general.alignment" {
            alignment = u32::from_le_bytes(file[start..reader.at].try_into().unwrap()) as usize;
        }
        keys.push((key, &file[start..reader.at]));
    }
    let mut found = Vec::new();
    for _ in 0..tensors {
        let name = reader.string();
        let mut shape: Vec<u64> = (0..reader.u32()).map(|_| reader.u64()).collect();
        shape.reverse();
        found.push((name, reader.u32(), shape, reader.u64() as usize));
    }
    let start = reader.at.next_multiple_of(alignment);
    let data = |(name, id, shape, offset)| (name, id, shape, &file[start + offset..]);
    (keys, found.into_iter().map(data).collect())
}

struct GgufReader<'a> {
    file: &'a [u8],
    at: usize,
}

impl GgufReader<'_> {
    fn u32(&mut self) -> u32 {
        self.at += 4;
        u32::from_le_bytes(self.file[self.at - 4..self.at].try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from(self.u32()) | u64::from(self.u32()) << 32
    }

    fn string(&mut self) -> String {
        let length = self.u64() as usize;
        self.at += length;
        String::from_utf8(self.file[self.at - length..self.at].to_vec()).unwrap()
    }

    /// Skips a value of a type.
    fn skip(&mut self, kind: u32) {
        match kind {
            8 => drop(self.string()),
            9 => {
                let (kind, count) = (self.u32(), self.u64());
                for _ in 0..count {
                    self.skip(kind);
                }
            }
            _ => self.at += [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8][kind as usize],
        }
    }
}
