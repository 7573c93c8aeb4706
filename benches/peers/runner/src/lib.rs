//! Compares lock libraries in one run: the measurements, the table and the plots.
//!
//! `contract.md` in the folder above describes the programs that this package starts. `./scripts/peers`
//! builds them and starts the runner.

mod chart;
mod conditions;
mod crashes;
mod figures;
mod measure;
mod page;
mod plots;
mod program;
mod results;
mod run;
mod stats;
mod table;

pub use figures::{ROWS, Row};
pub use page::{BEGIN, END, replace_results};
pub use plots::PLOTS;
pub use program::programs_in;
pub use results::Results;
pub use run::{Options, run};
pub use table::render;
