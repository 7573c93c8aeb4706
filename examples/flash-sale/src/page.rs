//! The page: its files, its events and its form.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{Form, Request, State};
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, ORIGIN, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, Sse};
use axum::response::{Html, IntoResponse, Json, Redirect, Response};
use axum::routing::{get, post};
use axum::{Router, http::HeaderName};
use futures_util::stream::{self, Stream, StreamExt};
use tokio::sync::watch;

use crate::control::{self, ControlError};
use crate::demo::Demo;
use crate::view::View;

const HTML: &str = include_str!("../page/index.html");
const STYLE: &str = include_str!("../page/style.css");
const SCRIPT: &str = include_str!("../page/app.js");
const ICON: &str = include_str!("../page/icon.svg");

/// Nothing from other hosts, and no scripts or styles inside the page.
const POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

pub(crate) fn router(demo: &Arc<Demo>) -> Router {
    let file = |text: &'static str, kind: &'static str| {
        get(move || async move { ([(CONTENT_TYPE, kind)], text) })
    };
    Router::new()
        .route("/", get(page))
        .route("/style.css", file(STYLE, "text/css; charset=utf-8"))
        .route("/app.js", file(SCRIPT, "text/javascript; charset=utf-8"))
        .route("/icon.svg", file(ICON, "image/svg+xml"))
        .route("/events", get(events))
        .route("/state", get(state))
        .route("/control", post(control))
        .with_state(Arc::clone(demo))
        .layer(middleware::from_fn(only_from_here))
}

async fn page(State(demo): State<Arc<Demo>>) -> Html<String> {
    Html(demo.refresh().fill(HTML))
}

/// The state as JSON, for programs.
async fn state(State(demo): State<Arc<Demo>>) -> Response {
    Json(&*demo.refresh()).into_response()
}

/// Handles the form of the page. A script gets the new state, and a page without a script gets itself.
async fn control(
    State(demo): State<Arc<Demo>>,
    headers: HeaderMap,
    Form(form): Form<control::Form>,
) -> Response {
    match control::apply(&demo, form).await {
        Ok(()) => {}
        Err(ControlError::Failed(error)) => {
            eprintln!("flash-sale: {error}");
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    }
    let accepts = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    if accepts == Some("application/json") {
        return state(State(demo)).await;
    }
    Redirect::to("/").into_response()
}

/// Sends whole states, and each notice once. The stream ends with the demo: an open stream would
/// block the end of the server.
async fn events(
    State(demo): State<Arc<Demo>>,
    headers: HeaderMap,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let last = headers.get("last-event-id");
    let last = last.and_then(|id| id.to_str().ok()?.parse().ok());
    let mut views = demo.view();
    // The current state comes first, and at once.
    views.mark_changed();
    let feed = Feed {
        views,
        last_notice: last.unwrap_or_default(),
        ready: VecDeque::new(),
    };
    let events = stream::unfold(feed, async |mut feed| {
        let event = feed.next().await?;
        Some((Ok(event), feed))
    });
    Sse::new(events.take_until(Box::pin(demo.ended())))
}

/// The events of one reader.
struct Feed {
    views: watch::Receiver<Arc<View>>,
    last_notice: u64,
    ready: VecDeque<Event>,
}

impl Feed {
    async fn next(&mut self) -> Option<Event> {
        while self.ready.is_empty() {
            self.views.changed().await.ok()?;
            let view = Arc::clone(&self.views.borrow_and_update());
            for notice in &view.notices {
                if notice.id > self.last_notice {
                    self.last_notice = notice.id;
                    let event = Event::default().event("notice").id(notice.id.to_string());
                    self.ready.extend(event.json_data(notice));
                }
            }
            self.ready
                .extend(Event::default().event("state").json_data(&*view));
        }
        self.ready.pop_front()
    }
}

/// Refuses requests of pages of other hosts, and adds headers to each response.
async fn only_from_here(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text(HOST).unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_local = ["127.0.0.1", "localhost"].contains(&name);
    let is_own = text(ORIGIN).is_none_or(|origin| origin == format!("http://{host}"));
    if !is_local || !is_own {
        return StatusCode::FORBIDDEN.into_response();
    }
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // `no-referrer` would hide the origin of the form.
        (REFERRER_POLICY, "same-origin"),
        (CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
