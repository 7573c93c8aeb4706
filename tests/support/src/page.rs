//! A page of memory that a test shares with a preloaded shim.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::janitor::Scratch;

/// The size of the mapping; mappings consist of whole pages.
const SIZE: u64 = 4096;

/// The test writes words, and the processes that have mapped the file see them.
#[derive(Debug)]
pub(crate) struct SharedPage {
    file: File,
    path: PathBuf,
    // The directory is removed with the page; processes keep their mapping.
    _directory: Scratch,
}

impl SharedPage {
    /// Creates a page of zeros.
    #[track_caller]
    pub(crate) fn new() -> Self {
        let directory = Scratch::new();
        let path = directory.path().join("page");
        let file = File::create_new(&path).expect("the scratch directory is new");
        file.set_len(SIZE)
            .expect("the scratch directory is writable");
        Self {
            file,
            path,
            _directory: directory,
        }
    }

    /// Returns the path of the file, for an environment variable.
    pub(crate) fn path(&self) -> OsString {
        self.path.as_os_str().to_owned()
    }

    /// Writes the first words.
    pub(crate) fn write<const N: usize>(&self, words: [u64; N]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.file
            .write_all_at(&bytes, 0)
            .expect("the page exists at its full size");
    }
}
