//! A reader of GGUF files, for tests of blocks.

/// The name, type and number of elements of each tensor, and its data to the end of the file.
pub(crate) fn tensors_of_gguf(file: &[u8]) -> Vec<(String, u32, u64, &[u8])> {
    let mut reader = GgufReader { file, at: 4 };
    assert_eq!(reader.u32(), 3);
    let (tensors, keys) = (reader.u64(), reader.u64());
    let mut alignment = 32;
    for _ in 0..keys {
        let key = reader.string();
        let kind = reader.u32();
        let start = reader.at;
        reader.skip(kind);
        if key == "general.alignment" {
            alignment = u32::from_le_bytes(file[start..reader.at].try_into().unwrap()) as usize;
        }
    }
    let mut found = Vec::new();
    for _ in 0..tensors {
        let name = reader.string();
        let mut elements = 1;
        for _ in 0..reader.u32() {
            elements *= reader.u64();
        }
        found.push((name, reader.u32(), elements, reader.u64() as usize));
    }
    let start = reader.at.next_multiple_of(alignment);
    found.into_iter().map(|(name, id, elements, offset)| (name, id, elements, &file[start + offset..])).collect()
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
