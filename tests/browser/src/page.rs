//! The page of the flash sale in a headless Chromium.

use std::fmt::Display;
use std::fs;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use fantoccini::actions::{InputSource, KeyAction, KeyActions};
use fantoccini::elements::Element;
use fantoccini::key::Key;
use fantoccini::wd::TimeoutConfiguration;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};

use crate::demo::Demo;
use crate::driver::{Driver, Extra, output};

/// The longest wait for a text of the page.
const LIMIT: Duration = Duration::from_secs(20);

/// Completes when the text of an element matches a pattern, or with that text at the limit.
const WAIT_FOR_TEXT: &str = "
    const [selector, pattern, limit, done] = arguments;
    const text = () => document.querySelector(selector)?.textContent ?? '';
    const matches = () => new RegExp(pattern).test(text());
    let observer, timer;
    const end = (found) => { observer.disconnect(); clearTimeout(timer); done([found, text()]); };
    observer = new MutationObserver(() => { if (matches()) end(true); });
    observer.observe(document.documentElement,
        { attributes: true, characterData: true, childList: true, subtree: true });
    timer = setTimeout(() => end(false), limit);
    if (matches()) end(true);";

/// Why a step failed.
pub type Failure = String;

/// The result of a step.
pub type Outcome<T = ()> = Result<T, Failure>;

/// A colour scheme of the system.
#[derive(Clone, Copy, Debug)]
pub enum Scheme {
    /// Dark on light.
    Light,
    /// Light on dark.
    Dark,
}

/// The size of the screen in CSS pixels, and the pixels of the device for each of them.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// The width.
    pub width: u32,
    /// The height.
    pub height: u32,
    /// Two for 200 % zoom, and for the screen of a phone.
    pub scale: u32,
}

impl Screen {
    /// A laptop.
    pub const LAPTOP: Self = Self::new(1280, 900, 1);
    /// A phone.
    pub const PHONE: Self = Self::new(390, 844, 2);

    /// Returns a screen.
    pub const fn new(width: u32, height: u32, scale: u32) -> Self {
        Self {
            width,
            height,
            scale,
        }
    }
}

/// An open page.
#[derive(Debug)]
pub struct Page {
    client: Client,
    url: String,
}

/// Starts a flash sale and a browser, opens the page, and runs the steps. Afterwards checks that the
/// console is empty, and that the browser sent no request to another host.
///
/// # Panics
/// Panics when a step fails. Before, it writes the page and a screenshot.
pub async fn browse(test: &str, arguments: &[&str], steps: impl AsyncFnOnce(&Page) -> Outcome) {
    let demo = Demo::start(arguments);
    let driver = Driver::start();
    let page = Page::open(&driver, &demo.url).await;
    let mut outcome = steps(&page).await;
    if outcome.is_ok() {
        outcome = page.check_logs().await;
    }
    if let Err(failure) = &mut outcome {
        *failure += &page.write_failure(test).await;
    }
    // Ends the browser.
    page.client
        .close()
        .await
        .expect("the session can be closed");
    outcome.unwrap_or_else(|failure| panic!("{test}: {failure}"));
}

impl Page {
    async fn open(driver: &Driver, url: &str) -> Self {
        let capabilities = json!({
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
            "goog:chromeOptions": { "args": [
                "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                "--hide-scrollbars", "--lang=en",
            ] },
        });
        let Value::Object(capabilities) = capabilities else {
            unreachable!("the capabilities are an object");
        };
        let client = ClientBuilder::new(HttpConnector::new())
            .capabilities(capabilities)
            .connect(&driver.url)
            .await
            .expect("Chromium starts");
        let limit = Some(LIMIT + Duration::from_secs(5));
        let timeouts = TimeoutConfiguration::new(limit, limit, None);
        let page = Self {
            client,
            url: url.to_owned(),
        };
        let ready = async {
            page.client.update_timeouts(timeouts).await.map_err(text)?;
            page.show(Screen::LAPTOP, Scheme::Light).await?;
            page.client.goto(url).await.map_err(text)?;
            // The first state has arrived.
            page.wait_for("#rows", "0").await
        };
        ready.await.expect("the page opens");
        page
    }

    /// Sets the screen and the colour scheme.
    ///
    /// # Errors
    /// Fails when the browser refuses.
    pub async fn show(&self, screen: Screen, scheme: Scheme) -> Outcome {
        let metrics = json!({
            "width": screen.width, "height": screen.height, "deviceScaleFactor": screen.scale,
            "mobile": screen.width < 500,
        });
        self.dev_tools("Emulation.setDeviceMetricsOverride", metrics)
            .await?;
        let value = match scheme {
            Scheme::Light => "light",
            Scheme::Dark => "dark",
        };
        let features = json!({ "features": [
            { "name": "prefers-color-scheme", "value": value },
            { "name": "prefers-reduced-motion", "value": "reduce" },
        ] });
        self.dev_tools("Emulation.setEmulatedMedia", features)
            .await?;
        Ok(())
    }

    /// Waits until the text of an element matches a regular expression.
    ///
    /// # Errors
    /// Fails after 20 s, with the text.
    pub async fn wait_for(&self, selector: &str, pattern: &str) -> Outcome {
        let limit = u64::try_from(LIMIT.as_millis()).map_err(text)?;
        let arguments = vec![selector.into(), pattern.into(), limit.into()];
        let found = self.client.execute_async(WAIT_FOR_TEXT, arguments).await;
        let found = found.map_err(text)?;
        if found[0] == true {
            return Ok(());
        }
        Err(format!(
            "`{selector}` has no text like `{pattern}`, but: {}",
            found[1]
        ))
    }

    /// Clicks the button with this value.
    ///
    /// # Errors
    /// Fails when there is no such button.
    pub async fn click(&self, value: &str) -> Outcome {
        let selector = format!("button[value={value}]");
        let button = self
            .client
            .find(Locator::Css(&selector))
            .await
            .map_err(text)?;
        button.click().await.map_err(text)
    }

    /// Returns the text of an element.
    ///
    /// # Errors
    /// Fails when there is no such element.
    pub async fn text(&self, selector: &str) -> Outcome<String> {
        let element = self
            .client
            .find(Locator::Css(selector))
            .await
            .map_err(text)?;
        element.text().await.map_err(text)
    }

    /// Runs a script in the page.
    ///
    /// # Errors
    /// Fails when the script fails.
    pub async fn script(&self, script: &str) -> Outcome<Value> {
        self.client.execute(script, Vec::new()).await.map_err(text)
    }

    /// Presses and releases a key.
    ///
    /// # Errors
    /// Fails when the browser refuses.
    pub async fn press(&self, key: char) -> Outcome {
        let keys = KeyActions::new("keyboard".to_owned());
        let keys = keys
            .then(KeyAction::Down { value: key })
            .then(KeyAction::Up { value: key });
        self.client.perform_actions(keys).await.map_err(text)
    }

    /// Presses Tab until the focus is on the control with this value or id.
    ///
    /// # Errors
    /// Fails when a whole round does not reach it, or reaches it without a visible focus.
    pub async fn tab_to(&self, control: &str) -> Outcome {
        const FOCUS: &str = "
            const focused = document.activeElement;
            const outline = getComputedStyle(focused);
            const visible = outline.outlineStyle !== 'none' && parseFloat(outline.outlineWidth) >= 2;
            return [focused.tagName === 'BUTTON' ? focused.value : focused.id, visible];";
        for _ in 0..60 {
            self.press(Key::Tab.into()).await?;
            let focus = self.script(FOCUS).await?;
            if focus[0] == control {
                let is_visible = focus[1] == true;
                return is_visible
                    .then_some(())
                    .ok_or_else(|| format!("the focus on `{control}` is not visible"));
            }
        }
        Err(format!("Tab does not reach `{control}`"))
    }

    /// Returns the role and the name of each control, as assistive technology has them.
    ///
    /// # Errors
    /// Fails when the browser refuses.
    pub async fn controls(&self) -> Outcome<Vec<(String, String)>> {
        let controls = self
            .client
            .find_all(Locator::Css("button, input, summary, a"))
            .await;
        let mut found = Vec::new();
        for control in controls.map_err(text)? {
            found.push(self.role_and_name(&control).await?);
        }
        Ok(found)
    }

    async fn role_and_name(&self, element: &Element) -> Outcome<(String, String)> {
        let id = || element.element_id().to_string();
        let mut texts = Vec::new();
        for command in [Extra::Role(id()), Extra::Name(id())] {
            let text_of = self.client.issue_cmd(command).await.map_err(text)?;
            texts.push(text_of.as_str().unwrap_or_default().to_owned());
        }
        let name = texts.pop().unwrap_or_default();
        Ok((texts.pop().unwrap_or_default(), name))
    }

    /// Writes a screenshot of the whole page, or of its beginning down to this height in CSS pixels.
    ///
    /// # Errors
    /// Fails when the browser refuses, or the file cannot be written.
    pub async fn screenshot(&self, name: &str, height: Option<u32>) -> Outcome {
        let size = "return [innerWidth, document.documentElement.scrollHeight]";
        let size = self.script(size).await?;
        let height = height.map_or_else(|| size[1].clone(), Into::into);
        let options = json!({
            "format": "png", "captureBeyondViewport": true,
            "clip": { "x": 0, "y": 0, "width": size[0], "height": height, "scale": 1 },
        });
        let shot = self.dev_tools("Page.captureScreenshot", options).await?;
        let bytes = BASE64_STANDARD.decode(shot["data"].as_str().unwrap_or_default());
        fs::create_dir_all(output()).map_err(text)?;
        fs::write(output().join(name), bytes.map_err(text)?).map_err(text)
    }

    async fn dev_tools(&self, command: &'static str, parameters: Value) -> Outcome<Value> {
        let command = Extra::DevTools(command, parameters);
        self.client.issue_cmd(command).await.map_err(text)
    }

    async fn check_logs(&self) -> Outcome {
        let log = self.client.issue_cmd(Extra::Log("browser")).await;
        let log = log.map_err(text)?;
        if log.as_array().is_none_or(|entries| !entries.is_empty()) {
            return Err(format!("the console is not empty: {log}"));
        }
        let log = self.client.issue_cmd(Extra::Log("performance")).await;
        let mut own = 0;
        for entry in log.map_err(text)?.as_array().into_iter().flatten() {
            let message = entry["message"].as_str().unwrap_or_default();
            let message: Value = serde_json::from_str(message).map_err(text)?;
            let message = &message["message"];
            if message["method"] != "Network.requestWillBeSent" {
                continue;
            }
            let url = message["params"]["request"]["url"]
                .as_str()
                .unwrap_or_default();
            if !url.starts_with(&self.url) {
                return Err(format!("a request went to another host: {url}"));
            }
            own += 1;
        }
        // The page, the style, the script, and the events.
        if own < 4 {
            return Err(format!("only {own} requests were logged"));
        }
        Ok(())
    }

    /// Writes the page and a screenshot, and says where they are.
    async fn write_failure(&self, test: &str) -> String {
        let name = format!("failed-{test}");
        let file = output().join(format!("{name}.html"));
        let written = async {
            self.screenshot(&format!("{name}.png"), None).await?;
            let source = self.client.source().await.map_err(text)?;
            fs::write(&file, source).map_err(text)
        };
        match written.await {
            Ok(()) => format!("; see {} and the .png beside it", file.display()),
            Err(failure) => format!("; the page could not be written: {failure}"),
        }
    }
}

fn text(error: impl Display) -> Failure {
    error.to_string()
}
