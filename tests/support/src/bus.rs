//! The connections between the nodes of a cluster.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::janitor::Scratch;
use crate::ports::BUS;
use crate::preload::Shim;

/// The connections of one node to the other nodes of its cluster, which the test can cut. Clients and replicas still
/// reach the node.
///
/// Nothing is closed: what the node sends to the others is lost, and so is what they send. Linux only, because the
/// library must be preloaded into the node.
#[derive(Debug)]
pub struct ClusterBus {
    shim: Shim,
    page: File,
    path: PathBuf,
    // The node keeps its mapping of the page.
    _directory: Scratch,
}

impl ClusterBus {
    /// Creates connections that work.
    ///
    /// # Panics
    ///
    /// Panics if there is no C compiler to build the shim.
    #[track_caller]
    pub fn new() -> Self {
        let shim = Shim::build(concat!(
            include_str!("../shim/page.h"),
            include_str!("../shim/bus.c")
        ));
        let directory = Scratch::new();
        let path = directory.path().join("bus");
        let page = File::create_new(&path).expect("the scratch directory is new");
        page.set_len(4096)
            .expect("the scratch directory is writable");
        let bus = Self {
            shim,
            page,
            path,
            _directory: directory,
        };
        bus.write(false);
        bus
    }

    /// Loses all that the node and the others send to each other from now on.
    pub fn cut(&self) {
        self.write(true);
    }

    /// Lets the nodes reach each other again.
    pub fn restore(&self) {
        self.write(false);
    }

    /// Returns the environment variables that the node needs.
    pub(crate) fn environment(&self) -> [(OsString, OsString); 2] {
        let path = self.path.as_os_str().to_owned();
        [self.shim.preload(), ("LOCK_TEST_BUS".into(), path)]
    }

    fn write(&self, is_cut: bool) {
        let words = [u64::from(is_cut), BUS.0.into(), BUS.1.into()];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.page
            .write_all_at(&bytes, 0)
            .expect("the page exists at its full size");
    }
}

impl Default for ClusterBus {
    fn default() -> Self {
        Self::new()
    }
}
