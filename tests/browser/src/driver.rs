//! chromedriver, and the commands that are not in the WebDriver standard.

use std::path::PathBuf;
use std::process::Command;

use fantoccini::wd::WebDriverCompatibleCommand;
use http::Method;
use serde_json::{Value, json};
use test_support::fixtures::SOON;
use test_support::process::Process;
use test_support::{Helper, eventually_some};
use url::{ParseError, Url};

const MISSING: &str = "these tests need Chromium and its driver; install them:\n\
    \x20 Debian  apt-get install chromium chromium-driver\n\
    or run ./scripts/browser, which does it";

/// A running chromedriver on a free port.
pub(crate) struct Driver {
    _process: Process,
    pub(crate) url: String,
}

impl Driver {
    pub(crate) fn start() -> Self {
        for program in ["chromium", "chromedriver"] {
            let version = Command::new(program).arg("--version").output();
            assert!(
                version.is_ok_and(|output| output.status.success()),
                "{MISSING}"
            );
        }
        let process = Helper::new("chromedriver").arg("--port=0").spawn();
        let port = eventually_some(SOON, || {
            let lines = process.lines();
            let ready = lines
                .iter()
                .find(|line| line.contains("started successfully on port "));
            let port = ready?.rsplit(' ').next()?.trim_end_matches('.');
            port.parse::<u16>().ok()
        });
        Self {
            _process: process,
            url: format!("http://127.0.0.1:{port}"),
        }
    }
}

/// A command of chromedriver, or one that fantoccini does not have.
#[derive(Debug)]
pub(crate) enum Extra {
    /// A command of the protocol of Chrome's developer tools.
    DevTools(&'static str, Value),
    /// The entries of a log since the last call.
    Log(&'static str),
    /// The role that assistive technology sees.
    Role(String),
    /// The name that assistive technology sees.
    Name(String),
}

impl WebDriverCompatibleCommand for Extra {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, ParseError> {
        let path = match self {
            Self::DevTools(..) => "goog/cdp/execute".to_owned(),
            Self::Log(_) => "se/log".to_owned(),
            Self::Role(element) => format!("element/{element}/computedrole"),
            Self::Name(element) => format!("element/{element}/computedlabel"),
        };
        base.join(&format!("session/{}/{path}", session.unwrap_or_default()))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        let body = match self {
            Self::DevTools(command, parameters) => json!({ "cmd": command, "params": parameters }),
            Self::Log(kind) => json!({ "type": kind }),
            Self::Role(_) | Self::Name(_) => return (Method::GET, None),
        };
        (Method::POST, Some(body.to_string()))
    }
}

/// The folder for screenshots, and for the page of a step that failed. `./scripts/browser` sets it.
pub(crate) fn output() -> PathBuf {
    std::env::var_os("BROWSER_OUTPUT").map_or_else(std::env::temp_dir, PathBuf::from)
}
