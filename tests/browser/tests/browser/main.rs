//! The flash sale in Chromium, as its visitors use it.

use browser::page::{Outcome, Page, Scheme, Screen, browse};
use fantoccini::key::Key;

mod layout;

const VERDICT: &str = "#sentence";
const RESULTS: &str = "#experiments";

/// Sells with the lock off and on, by clicks.
async fn sell_by_mouse(page: &Page) -> Outcome {
    page.wait_for(VERDICT, "Stock 100 · Ready: press “Start sale”")
        .await?;
    page.click("lock").await?;
    page.wait_for("#log", "Lock: off").await?;
    page.click("start").await?;
    let oversold = "Oversold by [1-9][0-9]*: two requests read the same stock\\.";
    page.wait_for(VERDICT, &format!("^Stock 100 · Sold [0-9]+ · {oversold}$"))
        .await?;
    page.wait_for("[data-text=oversold]", "^[1-9]").await?;
    page.click("reset").await?;
    page.wait_for(VERDICT, "^Stock 100 · Ready").await?;
    page.click("lock").await?;
    page.wait_for("#log", "Lock: on").await?;
    page.click("start").await?;
    page.wait_for(
        VERDICT,
        "^Stock 100 · Sold 100 · Oversold 0 — the lock held$",
    )
    .await?;
    page.wait_for("[data-text=oversold]", "^0$").await
}

const REFUSED: &str = "Instance 1 woke up after 5\\.[0-9] s; its late write was refused: token [0-9]+ \
    is older than [0-9]+\\.";
const TAKEN_OVER: &str =
    "Instance 2 died holding the lock; the next buyer got it after [0-9]\\.[0-9] s\\.";

#[tokio::test(flavor = "multi_thread")]
async fn experiments_by_mouse() {
    browse("experiments-by-mouse", &[], async |page| {
        sell_by_mouse(page).await?;
        page.click("freeze-1").await?;
        page.wait_for(".card[data-state=frozen]", "believes that it holds token")
            .await?;
        page.wait_for(RESULTS, REFUSED).await?;
        page.wait_for(VERDICT, "Oversold 0 — the fencing token held")
            .await?;
        page.click("kill-2").await?;
        page.wait_for(RESULTS, TAKEN_OVER).await?;
        page.wait_for(".card[data-state=stopped]", "Instance 2")
            .await?;
        page.wait_for(VERDICT, "Oversold 0 — the lock held").await?;
        page.click("start-2").await?;
        page.wait_for(".card[data-state=serving]:nth-child(2)", "Serving")
            .await?;
        page.click("fence").await?;
        page.wait_for("#log", "Fencing token: off").await?;
        page.click("freeze-1").await?;
        let late = "Instance 1 wrote late: the lease had ended [0-9]\\.[0-9] s before\\.";
        page.wait_for(RESULTS, late).await?;
        page.wait_for(VERDICT, "Oversold by [1-9][0-9]*: instance 1 wrote after")
            .await
    })
    .await;
}

/// Moves the focus to a button, and presses it by a key.
async fn key(page: &Page, button: &str, key: char) -> Outcome {
    page.tab_to(button).await?;
    page.press(key).await
}

#[tokio::test(flavor = "multi_thread")]
async fn experiments_by_keyboard() {
    let (enter, space) = (char::from(Key::Enter), ' ');
    browse("experiments-by-keyboard", &[], async |page| {
        page.wait_for(VERDICT, "Ready").await?;
        key(page, "lock", space).await?;
        page.wait_for("#log", "Lock: off").await?;
        key(page, "start", enter).await?;
        page.wait_for(VERDICT, "Oversold by [1-9][0-9]*: two requests")
            .await?;
        key(page, "reset", enter).await?;
        page.wait_for(VERDICT, "Ready").await?;
        key(page, "lock", enter).await?;
        page.wait_for("#log", "Lock: on").await?;
        key(page, "start", space).await?;
        page.wait_for(VERDICT, "Sold 100 · Oversold 0 — the lock held")
            .await?;
        key(page, "freeze-1", enter).await?;
        page.wait_for(RESULTS, REFUSED).await?;
        page.wait_for(VERDICT, "the fencing token held").await?;
        key(page, "kill-2", space).await?;
        page.wait_for(RESULTS, TAKEN_OVER).await?;
        page.wait_for(VERDICT, "Oversold 0 — the lock held").await?;
        key(page, "start-2", enter).await?;
        page.wait_for(".card[data-state=serving]:nth-child(2)", "Serving")
            .await?;
        key(page, "rate", Key::Right.into()).await?;
        page.wait_for("#rate-value", "^210$").await?;
        // Enter on the slider presses no button.
        page.press(enter).await?;
        key(page, "slow", space).await?;
        page.wait_for("#log", "Slow payment: on").await?;
        page.wait_for(VERDICT, "Oversold 0 — the lock held").await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn controls_have_roles_and_names() {
    browse("controls", &["--in-process"], async |page| {
        let mut expected: Vec<(String, String)> = [
            ("link", "Skip to the controls"),
            ("button", "Start sale"),
            ("button", "Reset"),
            ("switch", "Lock"),
            ("switch", "Fencing token"),
            ("switch", "Slow payment"),
            ("slider", "Requests per second"),
            ("DisclosureTriangle", "The same numbers as a table"),
        ]
        .map(|(role, name)| (role.to_owned(), name.to_owned()))
        .into();
        for number in 1..=2 {
            for verb in ["Freeze 5 s", "Kill", "Start"] {
                expected.push(("button".to_owned(), format!("{verb} instance {number}")));
            }
        }
        let found = page.controls().await?;
        if found != expected {
            return Err(format!("the controls are {found:?}"));
        }
        let live = page
            .script("return [...document.querySelectorAll('[aria-live]')].map((e) => e.id)")
            .await?;
        if live != serde_json::json!(["sentence"]) {
            return Err(format!("live regions: {live}"));
        }
        Ok(())
    })
    .await;
}

/// The pictures of the README. `./scripts/browser --accept` copies them to docs.
#[tokio::test(flavor = "multi_thread")]
async fn screenshots() {
    browse("screenshots", &[], async |page| {
        sell_by_mouse(page).await?;
        page.click("freeze-1").await?;
        page.wait_for(RESULTS, REFUSED).await?;
        page.wait_for(VERDICT, "the fencing token held").await?;
        page.click("lock").await?;
        page.wait_for("#log > li:first-child", "Lock: off").await?;
        page.click("start").await?;
        let newest = "#log > li:first-child";
        page.wait_for(newest, "Sale [0-9]+: .*Oversold by").await?;
        // The verdict shows the end of the sale too.
        let end = page.text(newest).await?;
        let end = end.split_once(": Stock ").map_or("", |(_, end)| end);
        page.wait_for(VERDICT, end).await?;
        page.show(Screen::LAPTOP, Scheme::Light).await?;
        page.screenshot("flash-sale-light.png", Some(1080)).await?;
        page.show(Screen::LAPTOP, Scheme::Dark).await?;
        page.screenshot("flash-sale-dark.png", Some(1080)).await?;
        page.show(Screen::PHONE, Scheme::Light).await?;
        page.screenshot("flash-sale-phone.png", Some(1600)).await
    })
    .await;
}
