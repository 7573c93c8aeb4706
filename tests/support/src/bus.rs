//! The connections between the nodes of a cluster.

use std::ffi::OsString;

use crate::page::SharedPage;
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
    page: SharedPage,
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
        let page = SharedPage::new();
        let bus = Self { shim, page };
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
        let page = ("LOCK_TEST_BUS".into(), self.page.path());
        [self.shim.preload(), page]
    }

    fn write(&self, is_cut: bool) {
        self.page
            .write([u64::from(is_cut), BUS.0.into(), BUS.1.into()]);
    }
}

impl Default for ClusterBus {
    fn default() -> Self {
        Self::new()
    }
}
