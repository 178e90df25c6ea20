//! The temporary folder that a bench works in: beside the store, so that it is on the same file
//! system, and gone afterwards.

use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// A folder that is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes a folder beside `path`.
    pub(crate) fn beside(path: &Path) -> Result<Self, Failure> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let folder = parent.join(format!(".onceward-bench-{}", std::process::id()));
        std::fs::create_dir(&folder).map_err(|error| {
            let message = format!(
                "can't make the bench's folder {}: {error}. The bench runs beside the --store \
                 path; name one in a folder that can be written",
                folder.display()
            );
            Failure::failed("bench.folder", message)
        })?;
        Ok(Self(folder))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What can't be removed is found by its name; there is nobody to tell here.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
