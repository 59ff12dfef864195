// The page's script: live updates, keys, verdicts, hover and zoom. Without it every action works by plain forms and links.
// Markup comes only from our own server, as parts of this page; whatever comes as data is set as text.

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const meta = (name) => $(`meta[name="${name}"]`)?.content ?? "";
const view = document.body.dataset.view;
const PARTS = { now: ["pulse", "newest"], queue: ["cases"], account: ["case", "timeline"], tune: ["tune"], model: ["model"], audit: ["entries"] };
document.documentElement.classList.add("script");

// --- Small things ----------------------------------------------------------------------------------------------------

function toast(text, bad = false) {
  const note = document.createElement("p");
  note.className = bad ? "toast bad" : "toast";
  note.textContent = text;
  $("#toasts").append(note);
  setTimeout(() => note.remove(), bad ? 9000 : 4500);
}

const dialogOpen = () => Boolean($("dialog[open]"));
const typing = (element) => Boolean(element?.closest?.("input:not([type=radio], [type=checkbox]), select, textarea, [contenteditable]"));

// --- Parts: pieces of this page, fetched again ------------------------------------------------------------------------

const fetched = {}; // the newest request of each part: an older answer that comes late is dropped

async function refresh(name, address = location.href, forced = false) {
  const place = $(`#part-${name}`);
  if (!place) return false;
  // Nobody's typing, pointing or deciding is disturbed by what merely is newer.
  const begun = () => $$("input:not([type=hidden])", place).some((field) => field.value !== field.defaultValue);
  const busy = () => dialogOpen() || begun() || (typing(document.activeElement) && place.contains(document.activeElement)) || $(".chart:hover", place);
  if (!forced && busy()) return void later(name, 1500);
  const url = new URL(address, location.href);
  url.searchParams.set("part", name);
  url.hash = "";
  const turn = (fetched[name] = (fetched[name] ?? 0) + 1);
  let html;
  try {
    const answer = await fetch(url, { headers: { Accept: "text/html" } });
    if (answer.status === 401 || answer.redirected) return void location.reload();
    if (!answer.ok) return false;
    html = await answer.text();
  } catch {
    return false; // the server is away: the stream of events says so, and comes back with a refresh
  }
  if (turn !== fetched[name] || (!forced && busy())) return void later(name, 1500);
  const opened = new Set($$("li[data-account]", place).filter((li) => $("details[open]", li)).map((li) => li.dataset.account));
  const focused = place.contains(document.activeElement);
  const before = $$("li[data-position]", place);
  const fragment = document.createElement("template");
  fragment.innerHTML = html; // rendered by our own templates, which escape all texts
  place.replaceChildren(fragment.content);
  for (const li of $$("li[data-account]", place)) if (opened.has(li.dataset.account)) $("details", li)?.setAttribute("open", "");
  prepare(place);
  if (name === "cases" || name === "case") select(chosen, focused && name === "cases");
  if (name === "newest") merge(before);
  return true;
}

const timers = {};
// Many events in a row make one request, and a steady stream of them one every so often.
function later(name, wait = 400) {
  timers[name] ??= setTimeout(() => { delete timers[name]; refresh(name); }, wait);
}
const refreshAll = (wait) => (PARTS[view] ?? []).forEach((name) => later(name, wait));

// --- Events of the server --------------------------------------------------------------------------------------------

const seen = new Set($$("#part-newest li[data-position]").map((li) => Number(li.dataset.position)));
let last = meta("at"), source = null, retry, wait = 1000, lost = false;

function state(text) { const place = $("#state"); if (place && place.textContent !== text) place.textContent = text; }

function connect() {
  source = new EventSource("/events" + (last ? `?after=${encodeURIComponent(last)}` : ""));
  const on = (kind, react) => source.addEventListener(kind, (event) => {
    if (event.lastEventId) last = event.lastEventId;
    react(JSON.parse(event.data || "{}"));
  });
  source.onopen = () => {
    wait = 1000;
    state("");
    if (lost) refreshAll(100); // what is no event (claims that ran out, say) may have changed meanwhile
    lost = false;
  };
  source.onerror = () => {
    lost = true;
    state("reconnecting…");
    // The browser tries again by itself with Last-Event-ID, unless the answer was none of a stream: then we do.
    if (source?.readyState !== EventSource.CLOSED) return;
    if (wait > 1000) refreshAll(0); // it may be the session that has ended: a part says so, and leads to the login
    retry = setTimeout(connect, wait * (0.75 + Math.random() / 2));
    wait = Math.min(wait * 2, 30000);
  };
  on("hello", ({ run }) => { if (run && meta("run") && run !== meta("run")) location.reload(); });
  on("alert", gotAlert);
  on("desk", () => { if (view !== "now") refreshAll(); else later("newest", 800); });
  on("pulse", gotPulse);
  on("behind", () => refreshAll(0));
}

// Browsers allow six connections to a host, over all tabs: one that nobody looks at leaves its own to others.
const UNSEEN = 20000;
let leaving;

function watchIfSeen() {
  clearTimeout(leaving);
  if (document.hidden) leaving = setTimeout(disconnect, UNSEEN);
  else if (!source) connect(); // from where it was; when that is open, all parts are fetched again
}

function disconnect() {
  clearTimeout(retry);
  source?.close();
  source = null;
  lost = true;
}

function gotAlert(alert) {
  if (seen.has(alert.position)) return; // sent again after a break
  seen.add(alert.position);
  if (seen.size > 5000) seen.delete(seen.values().next().value);
  if (view === "queue") return later("cases", 1200);
  if (view === "account" && alert.account === $("#part-case [data-account]")?.dataset.account) return refreshAll(800);
  const list = $("#part-newest ol.alerts");
  if (!list) return;
  const item = $("#alert-item").content.firstElementChild.cloneNode(true);
  const slot = (name, text) => { $(`[data-slot="${name}"]`, item).textContent = text; };
  item.dataset.position = alert.position;
  item.className = "fresh";
  $('[data-slot="go"]', item).href = `/alert/${encodeURIComponent(alert.id)}`;
  slot("account", alert.account);
  slot("score", digits(alert.score, 1));
  slot("amount", digits(alert.amount, 2));
  slot("when", clock(alert.when ?? alert.time));
  slot("headline", alert.headline);
  list.prepend(item);
  trim(list);
}

// Alerts that came while the list was under way are newer than it: they stay on top.
function merge(before) {
  const list = $("#part-newest ol.alerts"), place = (li) => Number(li.dataset.position);
  const newest = Math.max(-1, ...$$("li", list).map(place));
  for (const li of $$("li", list)) seen.add(place(li));
  list.prepend(...before.filter((li) => place(li) > newest));
  trim(list);
}

function trim(list) {
  while (list.children.length > Number(list.dataset.most)) list.lastElementChild.remove();
  $("#part-newest .nothing").hidden = list.children.length > 0;
}

const digits = (value, most) => Number(value).toLocaleString("en", { minimumFractionDigits: most, maximumFractionDigits: most });
const clock = (when) => (/^\d{4}-\d\d-\d\dT/.test(when) ? when.slice(0, 16).replace("T", " ") : String(when ?? "–"));

function gotPulse(pulse) {
  for (const place of $$("[data-pulse]")) {
    const value = place.dataset.pulse.split(".").reduce((at, key) => at?.[key], pulse);
    if (typeof value === "number") place.textContent = digits(value, Number(place.dataset.digits ?? 0));
    else place.textContent = place.dataset.pulse === "when" ? clock(value) : value ?? "–";
    if (place.dataset.pulse === "state") place.className = `chip stream ${["running", "waiting", "finished"].includes(value) ? value : ""}`;
  }
  if (view === "now") later("pulse", 3000); // the pictures
}

// --- Cases: selection, verdicts, claims -------------------------------------------------------------------------------

const items = () => $$("#part-cases li.case, #part-case .picks li");
let chosen = null; // by account (queue) or by alert (account): it stays when the list is fetched again
const key = (item) => (view === "queue" ? item.dataset.account : item.dataset.alerts);
const current = () => items().find((item) => item.getAttribute("aria-current") === "true" || item.classList.contains("chosen")) ?? null;
let place = 0; // where the selection was in the list: the next one takes its place when a case is done

function select(wanted, focus = false) {
  const all = items();
  if (view !== "queue" || !all.length) return;
  let item = all.find((one) => key(one) === wanted);
  if (!item && wanted !== null) item = all[Math.min(place, all.length - 1)];
  for (const one of all) {
    one.toggleAttribute("aria-current", false);
    one.tabIndex = -1;
  }
  (item ?? all[0]).tabIndex = 0; // one stop for Tab; j and k go on from there
  if (!item) return;
  item.setAttribute("aria-current", "true");
  chosen = key(item);
  place = all.indexOf(item);
  if (focus) item.focus();
}

function step(by) {
  const all = items();
  if (!all.length) return;
  const next = all[Math.max(0, Math.min(all.length - 1, current() ? all.indexOf(current()) + by : 0))];
  if (view === "account") return $("a.open", next).click();
  select(key(next), true);
  next.scrollIntoView({ block: "nearest" });
}

async function send(action, fields) {
  const body = new URLSearchParams(fields);
  body.set("csrf", meta("csrf"));
  try {
    const answer = await fetch(action, { method: "POST", body, headers: { Accept: "application/json", "X-CSRF-Token": meta("csrf") } });
    const said = await answer.json().catch(() => ({}));
    if (answer.ok) toast(said.done ?? "done");
    else toast(said.error ?? `the server answered ${answer.status}`, true);
    return answer.ok ? said : null;
  } catch {
    toast("the server did not answer: nothing is known to be recorded", true);
    return null;
  }
}

let asked = null; // the verdict that waits for its sentence
function ask(form, finding) {
  if (dialogOpen()) return $("#why-text").focus(); // a second click
  const alerts = $$('input[name="alert"]', form).map((input) => input.value);
  asked = { alerts, finding };
  $("#why-title").textContent = `Verdict: ${finding}`;
  $("#why-about").textContent = `${form.dataset.about}: ${alerts.length === 1 ? "one alert" : `${alerts.length} alerts`}`;
  $("#why-text").value = "";
  $("#why-dialog").returnValue = "";
  $("#why-dialog").showModal();
  $("#why-text").focus();
}

$("#why-dialog")?.addEventListener("close", async () => {
  const verdict = asked;
  asked = null;
  if (!verdict || $("#why-dialog").returnValue !== "send") return;
  const fields = [...verdict.alerts.map((id) => ["alert", id]), ["finding", verdict.finding], ["why", $("#why-text").value.trim()]];
  if (await send("/judge", fields)) return void (PARTS[view] ?? []).forEach((name) => refresh(name, location.href, true));
  asked = verdict; // refused: what was written stays, to be sent again or called off
  $("#why-dialog").returnValue = "";
  $("#why-dialog").showModal();
});

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.matches("form.judge")) {
    event.preventDefault();
    ask(form, event.submitter?.value ?? "unsure");
  } else if (form.matches("form.claim, form.take")) {
    event.preventDefault();
    const said = await send(form.getAttribute("action"), [...new FormData(form)].filter(([name]) => name !== "csrf"));
    await Promise.all((PARTS[view] ?? []).map((name) => refresh(name, location.href, true)));
    if (said && form.matches(".take")) {
      if (said.to && new URL(said.to, location.href).pathname !== location.pathname) location.assign(said.to);
      else select(said.account ?? $("li.case.mine")?.dataset.account ?? null, true);
    }
  }
});

// --- Keys -------------------------------------------------------------------------------------------------------------

const GO = { n: "/now", q: "/queue", t: "/tune", m: "/model", a: "/audit" };
let going = 0; // until when a second key names a view

function act(selector) {
  const at = view === "account" ? $("#part-case") : current();
  const button = at && $(selector, at);
  if (button) button.form.requestSubmit(button);
  else if (items().length && view === "queue") toast(at ? "that cannot be done with this case" : "no case is selected: press j");
}

const KEYS = {
  j: () => step(1),
  k: () => step(-1),
  f: () => act("button.fraud"),
  n: () => act("button.normal"),
  u: () => act("button.unsure"),
  c: () => act('form.claim[action="/claim"] button'),
  r: () => act('form.claim[action="/release"] button'),
  t: async () => {
    const form = $("form.take");
    if (form) return form.requestSubmit();
    const said = await send("/take", []);
    if (said?.to) location.assign(said.to);
  },
  F: () => act(".all button.fraud"),
  N: () => act(".all button.normal"),
  U: () => act(".all button.unsure"),
  Enter: () => { if (view === "queue" && current()) $("a.open", current()).click(); },
  "/": () => $("#search").focus(),
  "?": () => $("#help-dialog").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || dialogOpen() || typing(event.target)) return;
  if (event.target.matches(".chart[tabindex]") && ["ArrowLeft", "ArrowRight", "Escape"].includes(event.key)) return walk(event);
  // Enter belongs to what has the focus, where that does something itself.
  if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
  if (Date.now() < going && GO[event.key]) return location.assign(GO[event.key]);
  going = event.key === "g" ? Date.now() + 1500 : 0;
  if (KEYS[event.key]) { event.preventDefault(); KEYS[event.key](); }
});

document.addEventListener("focusin", (event) => {
  const item = event.target.closest?.("li.case");
  if (item && key(item) !== chosen) select(key(item));
});
document.addEventListener("click", (event) => {
  const item = event.target.closest("li.case");
  if (item) select(key(item));
  const choice = event.target.closest("a[data-choose]");
  if (choice && !event.ctrlKey && !event.metaKey && !event.shiftKey) { event.preventDefault(); choose(choice.href); }
  const zoom = event.target.closest("a[data-zoom]");
  if (zoom && !event.ctrlKey && !event.metaKey && !event.shiftKey) { event.preventDefault(); zoomTo(zoom.href, zoom.textContent); }
});
// A threshold is tried: what it would have changed is shown, and the form is filled in.
async function choose(address) {
  if (!(await refresh("tune", address, true))) return location.assign(address);
  history.replaceState(null, "", address);
  $('#budget input[name="why"]').focus();
}
if ($("#help-button")) {
  $("#help-button").hidden = false;
  $("#help-button").addEventListener("click", KEYS["?"]);
}

// --- Charts: values on hover and by arrow keys, zoom by dragging -----------------------------------------------------

const tip = $("#tip");
function show(mark) {
  $$(".at").forEach((one) => one.classList.remove("at"));
  if (!mark) return void (tip.hidden = true);
  mark.classList.add("at");
  tip.textContent = mark.dataset.tip;
  tip.hidden = false;
  const box = mark.getBoundingClientRect(), own = tip.getBoundingClientRect();
  const x = Math.max(6, Math.min(innerWidth - own.width - 6, box.x + box.width / 2 - own.width / 2));
  const y = box.y - own.height - 8 < 4 ? Math.min(box.bottom + 8, innerHeight - own.height - 4) : box.y - own.height - 8;
  tip.style.transform = `translate(${x}px, ${y}px)`; // set by the script: the policy allows that, unlike a style in the markup
}

function walk(event) {
  event.preventDefault();
  const marks = $$("[data-tip]", event.target), at = marks.findIndex((mark) => mark.classList.contains("at"));
  if (event.key === "Escape") return show(null);
  const by = event.key === "ArrowRight" ? 1 : -1;
  show(marks[at < 0 ? (by > 0 ? 0 : marks.length - 1) : Math.max(0, Math.min(marks.length - 1, at + by))]);
}

document.addEventListener("pointerover", (event) => { if (tip) show(event.target.closest?.("[data-tip]") ?? null); });
document.addEventListener("focusin", (event) => { if (event.target.closest?.(".alerted")) show($("[data-tip]", event.target)); });
document.addEventListener("focusout", (event) => { if (event.target.closest?.(".chart")) show(null); });
document.addEventListener("scroll", () => tip && show(null), { passive: true, capture: true });

async function zoomTo(address, focus) {
  if (!(await refresh("timeline", address, true))) return location.assign(address);
  history.replaceState(null, "", address);
  if (focus) $$("a[data-zoom]").find((link) => link.textContent === focus)?.focus();
}

document.addEventListener("pointerdown", (event) => {
  const chart = event.target.closest?.(".chart.timeline");
  if (!chart || event.button !== 0 || event.target.closest("a")) return;
  const area = $(".catch", chart).getBoundingClientRect();
  const share = (at) => Math.max(0, Math.min(1, (at.clientX - area.x) / area.width));
  const start = share(event), shade = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  const set = (a, b) => Object.entries({ class: "zooming", x: `${a * 100}%`, width: `${(b - a) * 100}%`, y: 0, height: "100%" }).forEach(([k, v]) => shade.setAttribute(k, v));
  const move = (at) => { set(Math.min(start, share(at)), Math.max(start, share(at))); if (!shade.isConnected) chart.append(shade); };
  const end = (at) => {
    removeEventListener("pointermove", move);
    shade.remove();
    const [a, b] = [start, share(at)].sort((p, q) => p - q);
    if (at.type !== "pointerup" || b - a < 0.015) return;
    const from = Number(chart.dataset.from), to = Number(chart.dataset.to), url = new URL($("a[data-zoom]").href);
    url.searchParams.set("from", from + (to - from) * a);
    url.searchParams.set("to", from + (to - from) * b);
    zoomTo(url.href);
  };
  addEventListener("pointermove", move);
  addEventListener("pointerup", end, { once: true });
  addEventListener("pointercancel", end, { once: true });
  event.preventDefault();
});

// Charts can be walked through; their title becomes a label, so that browsers do not show it over the values.
function prepare(root) {
  for (const chart of $$(".chart", root)) {
    const title = $("title", chart);
    if (title) { chart.setAttribute("aria-label", title.textContent); title.remove(); }
    if ($("[data-tip]", chart)) chart.tabIndex = 0;
  }
  // Times of the wall come in UTC; people live elsewhere.
  for (const time of $$("time.wall", root)) {
    const text = new Date(time.dateTime).toLocaleString("sv", { dateStyle: "short", timeStyle: "short" });
    time.textContent = time.hasAttribute("data-short") ? text.slice(11) : text;
  }
}

// On a phone the cases come first, unless something is filtered.
if (innerWidth < 640 && !location.search) $("#filters")?.removeAttribute("open");
prepare(document);
select(null);
if (PARTS[view]) {
  connect();
  watchIfSeen();
  document.addEventListener("visibilitychange", watchIfSeen);
}
