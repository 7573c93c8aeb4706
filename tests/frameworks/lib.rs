//! An empty library: the package contains only tests.
