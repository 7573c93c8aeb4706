// Shows the states that the server sends, and sends the form without a new page.
"use strict";

const byId = (id) => document.getElementById(id);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

// Sets a text only if it is another one, so that screen readers and selections are left alone.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

// The verdict is a live region: it changes at most once per second.
const VERDICT_INTERVAL = 1000;
let verdict = "", verdictAt = -Infinity, verdictTimer = 0;

function showVerdict(text) {
  verdict = text;
  if (verdictTimer) return;
  const wait = Math.max(0, verdictAt + VERDICT_INTERVAL - performance.now());
  const show = () => {
    verdictTimer = 0;
    if (byId("sentence").textContent === verdict) return;
    verdictAt = performance.now();
    byId("sentence").textContent = verdict;
  };
  if (wait === 0) show(); else verdictTimer = setTimeout(show, wait);
}

function show(view) {
  for (const element of all("[data-text]")) setText(element, view.texts[element.dataset.text]);
  showVerdict(view.texts.verdict);
  setAttribute(byId("verdict"), "data-kind", view.kind);
  setAttribute(byId("oversold"), "data-bad", view.sold > view.items);
  for (const element of all("[data-switch]")) {
    setAttribute(element, "aria-checked", view.switches[element.dataset.switch]);
  }
  setAttribute(document.querySelector("[data-can=start]"), "aria-disabled", !view.can_start);
  if (document.activeElement !== byId("rate")) {
    byId("rate").value = view.rate;
    setText(byId("rate-value"), String(view.rate));
  }
  showBar(view);
  showQueue(view);
  all(".card").forEach((card, index) => showInstance(card, view.instances[index]));
  all("#experiments li").forEach((item, index) => {
    const result = view.experiments[index];
    setAttribute(item, "data-tone", result ? result.tone : "");
    setText(item.querySelector(".result"), result ? result.text : "Not tried yet");
  });
  showPlots(view.plot);
  showRows(view.rows);
}

// The whole bar is the stock, or what was sold if that is more.
function showBar(view) {
  const unit = 1000 / Math.max(view.items, view.sold, 1);
  const sold = Math.min(view.sold, view.items) * unit;
  setAttribute(byId("bar-sold"), "width", sold);
  setAttribute(byId("bar-over"), "x", sold);
  setAttribute(byId("bar-over"), "width", Math.max(0, view.sold - view.items) * unit);
  const mark = view.items * unit;
  setAttribute(byId("bar-mark"), "x1", mark);
  setAttribute(byId("bar-mark"), "x2", mark);
}

function showQueue(view) {
  setAttribute(byId("lease-bar"), "width", view.lease);
  const queue = byId("queue");
  while (queue.children.length > view.queue.length) queue.lastElementChild.remove();
  while (queue.children.length < view.queue.length) queue.append(document.createElement("li"));
  view.queue.forEach((waiter, index) => {
    const item = queue.children[index];
    setText(item, waiter);
    item.classList.toggle("even", Number(waiter) % 2 === 0);
  });
}

function showInstance(card, instance) {
  setAttribute(card, "data-state", instance.state);
  setText(card.querySelector(".state"), instance.state_text);
  setText(card.querySelector(".tokens"), instance.lock);
  setText(card.querySelector(".grants"), instance.grants);
  for (const button of all("[data-verb]", card)) {
    setAttribute(button, "aria-disabled", !instance[button.dataset.verb]);
  }
}

// The plots: 240 points of a quarter of a second; the newest is at the right.
const POINTS = 240, HEIGHT = 60, LONGEST_WAIT = 2000;

function roundUp(value, least) {
  const unit = 10 ** Math.floor(Math.log10(Math.max(value, least)));
  return [1, 2, 3, 5, 10].map((step) => step * unit).find((top) => top >= Math.max(value, least));
}

// A line has a gap where there is no value.
function drawLine(group, values, top) {
  const lines = [];
  let line = [];
  const first = POINTS - values.length;
  values.forEach((value, index) => {
    if (value === null) {
      if (line.length) lines.push(line);
      line = [];
    } else {
      line.push(`${first + index},${(HEIGHT - 1 - (Math.min(value, top) / top) * (HEIGHT - 4)).toFixed(1)}`);
    }
  });
  if (line.length) lines.push(line);
  while (group.children.length > lines.length) group.lastElementChild.remove();
  while (group.children.length < lines.length) {
    group.append(document.createElementNS("http://www.w3.org/2000/svg", "polyline"));
  }
  lines.forEach((points, index) => setAttribute(group.children[index], "points", points.join(" ")));
}

function showPlots(plot) {
  const rates = plot.rate.some((rate) => rate > 0) ? plot.rate : [];
  const rateTop = roundUp(Math.max(...plot.rate), 100);
  setText(byId("rate-top"), String(rateTop));
  drawLine(byId("plot-rate"), rates, rateTop);
  // A request of a frozen instance waits for as long as the freeze: it leaves the plot at the top.
  const waitTop = Math.min(LONGEST_WAIT, roundUp(Math.max(...plot.p99.map((wait) => wait ?? 0)), 10));
  setText(byId("wait-top"), `${waitTop} ms`);
  drawLine(byId("plot-p50"), plot.p50, waitTop);
  drawLine(byId("plot-p99"), plot.p99, waitTop);
}

let rowsAt = -Infinity;

function showRows(rows) {
  if (performance.now() - rowsAt < 1000) return;
  rowsAt = performance.now();
  const body = byId("rows");
  while (body.children.length > rows.length) body.lastElementChild.remove();
  while (body.children.length < rows.length) {
    const row = body.insertRow();
    const head = document.createElement("th");
    head.scope = "row";
    row.append(head);
    for (let cell = 0; cell < 3; cell += 1) row.insertCell();
  }
  rows.forEach((row, index) => row.forEach((text, cell) => setText(body.rows[index].cells[cell], text)));
}

const NOTICES = 50;
let newestNotice = 0;

function showNotice(notice) {
  if (notice.id <= newestNotice) return;
  newestNotice = notice.id;
  const item = document.createElement("li");
  item.dataset.tone = notice.tone;
  const at = document.createElement("span");
  at.className = "at";
  at.textContent = `${notice.at.toFixed(1)} s`;
  const text = document.createElement("span");
  text.textContent = notice.text;
  item.append(at, text);
  byId("log").prepend(item);
  while (byId("log").children.length > NOTICES) byId("log").lastElementChild.remove();
}

async function send(fields) {
  const body = new URLSearchParams(fields);
  try {
    const reply = await fetch("/control", { method: "POST", headers: { accept: "application/json" }, body });
    if (reply.ok) show(await reply.json());
  } catch {
    showVerdict("The demo does not answer. Start it again, and reload this page.");
  }
}

for (const form of all("form")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const button = event.submitter;
    if (!button?.value || button.getAttribute("aria-disabled") === "true") return;
    send({ action: button.value });
  });
}

let rateTimer = 0;
byId("rate").addEventListener("input", () => {
  setText(byId("rate-value"), byId("rate").value);
  clearTimeout(rateTimer);
  rateTimer = setTimeout(() => send({ rate: byId("rate").value }), 100);
});

// The stream sends the notices again.
byId("log").replaceChildren();
const events = new EventSource("/events");
events.addEventListener("state", (event) => show(JSON.parse(event.data)));
events.addEventListener("notice", (event) => showNotice(JSON.parse(event.data)));
let lost = 0;
events.onopen = () => clearTimeout(lost);
events.onerror = () => {
  clearTimeout(lost);
  lost = setTimeout(() => showVerdict("The demo has ended. Start it again, and reload this page."), 1000);
};
