// The page: it asks this computer's server for lists of results and shows them.
import { drawCurve } from "./curve.js";

const byId = (id) => document.getElementById(id);
const controls = {
  point: byId("point"), row: byId("row"), diversity: byId("diversity"), auto: byId("auto"),
  selector: byId("selector"), k: byId("k"), collapse: byId("collapse"),
};
const STATES = { both: "in both", new: "new", left: "left out" };
const QUOTAS_MAX = 16;
// Pictures at most this wide are enlarged without smoothing.
const TINY_PIXELS = 48;

let index = null;
let subject = null; // {like: id} or {row: number}
let latest = 0; // number of the last question, so that a late answer of an earlier one is dropped
let curveKey = "";
let curvePoints = [];
let lastAnswer = null;
let leavesList = false; // whether the focus is on a result that the next answer replaces

async function ask(path, values = {}) {
  const query = new URLSearchParams(values).toString();
  let response;
  try {
    response = await fetch(query ? `${path}?${query}` : path);
  } catch {
    throw new Error("The explorer has ended. Start divgrpc explore again and reload this page.");
  }
  const content = await response.json();
  if (!response.ok) throw new Error(content.error.message);
  return content;
}

function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== "") element.textContent = text;
  return element;
}

const short = (number) =>
  number === null ? "–" : Math.abs(number) >= 1000 ? number.toFixed(0) : number.toPrecision(3);
const name = (point) => point.title || `Point ${point.id}`;

function thumbnail(point) {
  const picture = make("img", "thumb");
  picture.alt = point.title ? "" : name(point);
  picture.loading = "lazy";
  picture.addEventListener("load", () => {
    picture.classList.toggle("tiny", picture.naturalWidth <= TINY_PIXELS);
  });
  picture.addEventListener("error", () => picture.remove());
  picture.src = `thumbnail?id=${encodeURIComponent(point.id)}`;
  return picture;
}

function facts(point, quotaAttributes = []) {
  const line = make("p", "facts");
  for (const [fact, value] of point.facts) {
    const item = make("span", quotaAttributes.includes(fact) ? "quota-value" : "", `${fact} `);
    item.append(make("b", "", value));
    line.append(item);
  }
  return line;
}

function likeButton(point, text) {
  const button = make("button", "plain", text);
  button.type = "button";
  button.setAttribute("aria-label", `${text}: ${name(point)}`);
  button.addEventListener("click", () => {
    leavesList = true;
    choose({ like: point.id });
  });
  return button;
}

function copies(result) {
  const details = make("details");
  const noun = result.copies === 1 ? "near-copy" : "near-copies";
  details.append(make("summary", "", `Stands for ${result.copies} ${noun}`));
  const list = make("ul", "copies");
  // Pictures are fetched when the list is opened.
  details.addEventListener("toggle", () => {
    if (list.childElementCount) return;
    for (const copy of result.copies_shown) {
      const item = make("li");
      if (index.has_pictures) item.append(thumbnail(copy));
      item.append(likeButton(copy, copy.title || `${copy.id}`));
      list.append(item);
    }
    const more = result.copies - result.copies_shown.length;
    if (more > 0) list.append(make("li", "", `and ${more} more`));
  });
  details.append(list);
  return details;
}

function card(result, rank, quotaAttributes) {
  const item = make("li", `card ${result.state}`);
  item.dataset.point = result.id;
  const head = make("div", "head");
  head.append(make("span", "rank", `${rank}`), make("span", "badge", STATES[result.state]));
  item.append(head);
  if (index.has_pictures) item.append(thumbnail(result));
  if (result.title) item.append(make("p", "title", result.title));
  item.append(make("p", "meta", `${index.score} ${short(result.score)} · id\u00a0${result.id}`));
  if (result.facts.length) item.append(facts(result, quotaAttributes));
  item.append(make("p", "reason", result.reason));
  if (result.copies) item.append(copies(result));
  item.append(likeButton(result, "More like this"));
  return item;
}

function showTwins(event) {
  const point = event.type === "mouseleave" || event.type === "focusout"
    ? null : event.target.closest(".card")?.dataset.point;
  for (const element of document.querySelectorAll(".card")) {
    element.classList.toggle("twin", element.dataset.point === point
      && element.classList.contains("both"));
  }
}

function showSubject(query) {
  const place = byId("subject");
  place.replaceChildren();
  if (index.has_pictures && query.id !== null) place.append(thumbnail(query));
  const text = make("div", "text");
  text.append(make("p", "title", name(query)));
  if (query.id !== null && query.title) text.append(make("p", "meta", `Point ${query.id}`));
  if (query.facts.length) text.append(facts(query));
  place.append(text);
}

function showFigures(answer) {
  const rows = [
    [`mean ${index.score}`, "score"],
    ["mean distance between results", "distance"],
    ["least distance between results", "least"],
  ].map(([label, key]) => [label, short(answer.plain.figures[key]), short(answer.diverse.figures[key])]);
  for (const [label, count] of Object.entries(answer.plain.figures.values)) {
    rows.push([`values of ${label}`, count, answer.diverse.figures.values[label]]);
  }
  byId("figures").tBodies[0].replaceChildren(...rows.map(([label, ...values]) => {
    const row = make("tr");
    const heading = make("th", "", label);
    heading.scope = "row";
    row.append(heading, ...values.map((value) => make("td", "", `${value}`)));
    return row;
  }));
}

function showAnswer(answer) {
  lastAnswer = answer;
  const counted = answer.quotas.map(([attribute]) => attribute);
  for (const side of ["plain", "diverse"]) {
    const cards = answer[side].results.map((result, place) => card(result, place + 1, counted));
    byId(side).replaceChildren(...cards);
  }
  showSubject(answer.query);
  if (leavesList) byId("subject").focus();
  leavesList = false;
  showFigures(answer);
  const dial = answer.diversity.toFixed(2);
  const limits = answer.quotas.map(([attribute, most]) => `${most} of each ${attribute}`);
  byId("dial").textContent = dial;
  if (controls.auto.checked) controls.diversity.value = dial;
  byId("diverse-note").textContent = `${controls.selector.value} at ${dial}`
    + (counted.length && `, at most ${limits.join(" and ")}` || "");
  const count = (state, side) => answer[side].results.filter((r) => r.state === state).length;
  const hidden = answer.diverse.results.reduce((sum, result) => sum + result.copies, 0);
  byId("status").textContent = `${answer.diverse.results.length} diverse results: `
    + `${count("new", "diverse")} new, ${count("left", "plain")} of the nearest left out`
    + (hidden ? `; they stand for ${hidden} near-${hidden === 1 ? "copy" : "copies"}.` : ".");
  byId("warnings").replaceChildren(...answer.warnings.map((text) => make("li", "", text)));
  byId("warnings").hidden = !answer.warnings.length;
}

function showCurve() {
  const now = lastAnswer && {
    diversity: lastAnswer.diversity, ...lastAnswer.diverse.figures,
  };
  drawCurve(byId("curve"), byId("curve-caption"), curvePoints, now, index);
  byId("curve-table").tBodies[0].replaceChildren(...curvePoints.map((point) => {
    const row = make("tr");
    row.append(make("td", "", point.diversity.toFixed(1)),
      make("td", "", short(point.score)), make("td", "", short(point.distance)));
    return row;
  }));
}

// Quotas: a row for each, and an empty row for a further one.

const quotaRows = () => [...byId("quotas").children];
const attributeOf = (row) => row.querySelector("select");
const mostOf = (row) => row.querySelector("input");

function quotas() {
  return quotaRows().filter((row) => attributeOf(row).value)
    .map((row) => [attributeOf(row).value, mostOf(row).value]);
}

function quotaRow(attribute, most) {
  const row = make("div", "fields quota");
  row.setAttribute("role", "group");
  row.setAttribute("aria-label", "Quota");
  const number = make("input");
  Object.assign(number, { type: "number", min: 1, max: index.k_max, step: 1, inputMode: "numeric" });
  number.value = most;
  const select = make("select");
  select.append(new Option("(no quota)", ""), ...index.attributes.map((name) => new Option(name, name)));
  select.value = attribute;
  for (const [text, control] of [["At most", number], ["of each", select]]) {
    const field = make("div");
    const label = make("label", "", text);
    control.id = `quota-${(quotaRow.count = (quotaRow.count ?? 0) + 1)}`;
    label.htmlFor = control.id;
    field.append(label, control);
    row.append(field);
  }
  return row;
}

function showQuotas(wanted) {
  const known = wanted.filter(([attribute]) => index.attributes.includes(attribute));
  byId("quotas").replaceChildren(...known.map(([attribute, most = "2"]) => quotaRow(attribute, most)));
  tidyQuotas();
}

function tidyQuotas() {
  const rows = quotaRows();
  const has = (attribute) => rows.some((row) => attributeOf(row).value === attribute);
  if (!has("") && rows.length < Math.min(index.attributes.length, QUOTAS_MAX)) {
    rows.push(quotaRow("", "2"));
    byId("quotas").append(rows.at(-1));
  }
  for (const row of rows) {
    const own = attributeOf(row).value;
    mostOf(row).disabled = !own;
    // An attribute has one quota.
    for (const option of attributeOf(row).options) {
      option.disabled = option.value !== "" && option.value !== own && has(option.value);
    }
  }
}

function question() {
  return {
    ...subject,
    k: controls.k.value || index.k,
    selector: controls.selector.value,
    diversity: controls.auto.checked ? "auto" : controls.diversity.value,
    keep_duplicates: controls.collapse.checked ? 0 : 1,
    ...(quotas().length && { max_each: quotas().map((quota) => quota.join("=")).join(",") }),
  };
}

function showError(error) {
  const place = byId("error");
  place.hidden = !error;
  place.textContent = error ? error.message : "";
}

async function refresh() {
  const number = (latest += 1);
  const values = question();
  history.replaceState(null, "", `#${new URLSearchParams(values)}`);
  byId("lists").classList.add("busy");
  try {
    const answer = await ask("api/answer", values);
    if (number !== latest) return;
    showError(null);
    showAnswer(answer);
    const { diversity: _, ...fixed } = values;
    const key = JSON.stringify(fixed);
    if (key !== curveKey) {
      const curve = await ask("api/curve", fixed);
      if (number !== latest) return;
      [curveKey, curvePoints] = [key, curve.points];
    }
    showCurve();
  } catch (error) {
    if (number === latest) showError(error);
  } finally {
    if (number === latest) byId("lists").classList.remove("busy");
  }
}

// While the slider moves, at most one question is under way, and the last value is asked for.
let isAsking = false;
let isStale = false;
async function refreshOften() {
  if (isAsking) {
    isStale = true;
    return;
  }
  isAsking = true;
  do {
    isStale = false;
    await refresh();
  } while (isStale);
  isAsking = false;
}

function choose(next) {
  subject = next;
  controls.point.value = next.like ?? "";
  controls.row.value = next.row ?? controls.row.value;
  // A step of the history for each query, so that the browser's way back leads to the last one.
  history.pushState(null, "", `#${new URLSearchParams(question())}`);
  return refresh();
}

async function chooseRandom() {
  try {
    await choose({ like: (await ask("api/random")).id });
  } catch (error) {
    showError(error);
  }
}

function readAddress() {
  const values = new URLSearchParams(location.hash.slice(1));
  if (values.has("like")) subject = { like: values.get("like") };
  else if (values.has("row") && index.rows) subject = { row: values.get("row") };
  else return false;
  const diversity = values.get("diversity");
  controls.auto.checked = diversity === "auto";
  if (diversity && diversity !== "auto") controls.diversity.value = diversity;
  if (index.selectors.includes(values.get("selector"))) controls.selector.value = values.get("selector");
  controls.k.value = values.get("k") ?? index.k;
  controls.collapse.checked = values.get("keep_duplicates") !== "1";
  showQuotas((values.get("max_each") ?? "").split(",").map((quota) => quota.split("=")));
  controls.point.value = subject.like ?? "";
  controls.row.value = subject.row ?? "0";
  showSettings();
  return true;
}

function showSettings() {
  controls.diversity.disabled = controls.auto.checked;
  byId("dial").textContent = controls.auto.checked ? "…" : Number(controls.diversity.value).toFixed(2);
}

function listen() {
  controls.diversity.addEventListener("input", () => {
    showSettings();
    refreshOften();
  });
  const { auto, selector, k, collapse } = controls;
  for (const control of [auto, selector, k, collapse]) {
    control.addEventListener("change", () => {
      showSettings();
      refresh();
    });
  }
  byId("quotas").addEventListener("change", (event) => {
    const row = event.target.closest(".quota");
    const isEmpty = !attributeOf(row).value;
    // Of two empty rows, the one that was just emptied stays, so that it keeps the focus.
    for (const other of quotaRows()) {
      if (isEmpty && other !== row && !attributeOf(other).value) other.remove();
    }
    tidyQuotas();
    refresh();
  });
  byId("by-point").addEventListener("submit", (event) => {
    event.preventDefault();
    choose({ like: controls.point.value.trim() });
  });
  byId("by-row").addEventListener("submit", (event) => {
    event.preventDefault();
    choose({ row: controls.row.value });
  });
  byId("random").addEventListener("click", chooseRandom);
  addEventListener("popstate", () => {
    if (readAddress()) refresh();
  });
  for (const list of document.querySelectorAll(".cards")) {
    for (const event of ["mouseover", "mouseleave", "focusin", "focusout"]) {
      list.addEventListener(event, showTwins);
    }
  }
}

async function begin() {
  try {
    index = await ask("api/index");
  } catch (error) {
    showError(error);
    return;
  }
  document.title = `${index.name} - divgrpc explore`;
  byId("name").textContent = index.name;
  byId("facts").textContent = index.facts;
  byId("curve-score").textContent = `mean ${index.score}`;
  byId("lists").classList.toggle("pictures", index.has_pictures);
  byId("by-row").hidden = !index.rows;
  byId("rows").textContent = index.rows ? `0 to ${index.rows - 1}` : "";
  byId("collapse-label").hidden = !index.collapses;
  controls.row.max = index.rows - 1;
  controls.row.value = 0;
  byId("quotas").hidden = !index.attributes.length;
  showQuotas([]);
  controls.k.max = index.k_max;
  controls.k.value = index.k;
  controls.selector.append(...index.selectors.map((word) => new Option(word, word)));
  controls.selector.value = index.selectors.includes(index.selector) ? index.selector : "greedy";
  controls.diversity.value = index.diversity;
  showSettings();
  listen();
  if (readAddress()) await refresh();
  else if (index.rows) await choose({ row: 0 });
  else await chooseRandom();
}

begin();
