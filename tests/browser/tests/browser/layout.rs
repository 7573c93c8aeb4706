//! Small screens, zoom, contrast and the size of targets.

use browser::page::{Outcome, Page, Scheme, Screen, browse};

/// Texts whose contrast with what is behind them is below 4.5.
const LOW_CONTRAST: &str = r"
    const probe = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const colour = (text) => {
        probe.clearRect(0, 0, 1, 1);
        probe.fillStyle = text;
        probe.fillRect(0, 0, 1, 1);
        return [...probe.getImageData(0, 0, 1, 1).data];
    };
    const luminance = ([r, g, b]) => {
        const [x, y, z] = [r, g, b].map((c) => c / 255)
            .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const behind = (element) => {
        for (let e = element; e; e = e.parentElement) {
            const back = colour(getComputedStyle(e).backgroundColor);
            if (back[3] === 255) return back;
        }
        return [255, 255, 255, 255];
    };
    const low = [];
    let checked = 0;
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const element = node.parentElement;
        if (!node.data.trim() || !element.checkVisibility() || element.closest('.hidden, .skip')) continue;
        const style = getComputedStyle(element);
        const ink = element.closest('svg') ? style.fill : style.color;
        const [a, b] = [luminance(colour(ink)), luminance(behind(element))].sort((x, y) => y - x);
        checked += 1;
        const contrast = (a + 0.05) / (b + 0.05);
        if (contrast < 4.5) low.push(`${contrast.toFixed(2)}: ${node.data.trim()}`);
    }
    return [checked, low];";

/// Controls that are smaller than 44 px, and the width of the page in windows.
const SMALL: &str = "
    return [...document.querySelectorAll('button, input, summary')].flatMap((control) => {
        const { width, height } = control.getBoundingClientRect();
        return width < 44 || height < 44 ? [`${control.textContent}: ${width} x ${height}`] : [];
    });";

const WIDTHS: &str = "return [document.documentElement.scrollWidth, innerWidth]";

async fn check(page: &Page, screen: Screen, scheme: Scheme) -> Outcome {
    page.show(screen, scheme).await?;
    let widths = page.script(WIDTHS).await?;
    if widths[0] != widths[1] || widths[1] != screen.width {
        return Err(format!(
            "{screen:?}: the page scrolls to the side: {widths}"
        ));
    }
    let small = page.script(SMALL).await?;
    if small != serde_json::json!([]) {
        return Err(format!("{screen:?}: small targets: {small}"));
    }
    let contrast = page.script(LOW_CONTRAST).await?;
    if contrast[0].as_u64() < Some(60) || contrast[1] != serde_json::json!([]) {
        return Err(format!("{screen:?}, {scheme:?}: low contrast: {contrast}"));
    }
    Ok(())
}

/// Checks all screens in both schemes.
async fn check_all(page: &Page) -> Outcome {
    // 640 px at a scale of two are a laptop at 200 % zoom.
    let screens = [
        Screen::LAPTOP,
        Screen::PHONE,
        Screen::new(320, 700, 2),
        Screen::new(640, 450, 2),
    ];
    for screen in screens {
        for scheme in [Scheme::Light, Scheme::Dark] {
            check(page, screen, scheme).await?;
        }
    }
    page.show(Screen::LAPTOP, Scheme::Light).await
}

#[tokio::test(flavor = "multi_thread")]
async fn page_fits_small_screens_and_has_contrast() {
    browse("layout", &[], async |page| {
        page.wait_for("#sentence", "Ready").await?;
        check_all(page).await?;
        // All colours: good, frozen, bad and stopped.
        page.click("start").await?;
        page.wait_for("#sentence", "the lock held").await?;
        check_all(page).await?;
        page.click("lock").await?;
        page.wait_for("#log", "Lock: off").await?;
        page.click("kill-2").await?;
        page.wait_for(".card[data-state=stopped]", "Instance 2")
            .await?;
        page.wait_for("#sentence", "Oversold by").await?;
        check_all(page).await
    })
    .await;
}
