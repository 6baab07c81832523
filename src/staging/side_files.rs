//! Side files, which are stored next to the shards: copied from the source, or newly made.

use super::Staging;
use super::files::{stray_above, sum_at};
use super::manifest::ManifestSource;
use crate::container::sum_of;
use crate::error::{Error, Result};
use crate::io::map::MappedFile;
use crate::io::open::Links;
use crate::io::output::create_folders;
use std::path::Path;

impl Staging {
    /// Copies side files that are missing or damaged, and writes the newly made ones.
    pub(super) fn add_side_files(&self, source: Option<&Path>) -> Result<()> {
        for (file, text) in &self.manifest.texts {
            let is_same = |sum| sum == sum_of(text.as_bytes()).finalize();
            if !sum_at(&self.place_of(file)?, text.len() as u64, Links::Refuse, 1).is_ok_and(is_same) {
                self.add(file, text.as_bytes())?;
            }
        }
        let Some(source) = source else { return Ok(()) };
        for side in self.manifest.copied() {
            if self.check_side_file(side).is_ok() {
                continue;
            }
            let content = MappedFile::open(&source.join(&side.file))?;
            self.add(&side.file, &content).map_err(|error| error.in_file(content.path()))?;
            content.check_unchanged()?;
            if side.sum.is_some_and(|sum| sum != sum_of(&content).finalize()) {
                let error = Error::new("the file was changed during the work").in_file(content.path());
                return Err(error.remedy("start again when nothing writes to it"));
            }
        }
        Ok(())
    }

    /// Refuses a side file that is missing or has changed.
    pub(super) fn check_side_file(&self, side: &ManifestSource) -> Result<()> {
        let path = self.place_of(&side.file)?;
        let sum = sum_at(&path, side.bytes, Links::Refuse, 1)?;
        if side.sum.is_some_and(|wanted| wanted != sum) {
            return Err(Error::new("is damaged: its checksum is wrong").in_file(&path));
        }
        Ok(())
    }

    fn add(&self, file: &str, content: &[u8]) -> Result<()> {
        let path = self.staged(file);
        if let Some(stray) = stray_above(&self.work, &path) {
            return Err(Error::new("is a link or a file where tcast keeps a folder").in_file(stray));
        }
        if let Some(folder) = path.parent() {
            create_folders(folder)?;
        }
        self.write(self.place(file), content)
    }
}
