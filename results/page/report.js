"use strict";
// Charts are drawn when they come near the window, samples are shown a page at a time: the report opens at once
// whatever its size.

const PER_PAGE = 50;
const byId = (id) => document.getElementById(id);
const read = (id) => JSON.parse(byId(id).textContent);

// --- light and dark ---

const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;
const theme = () => chosenTheme ?? (systemDark.matches ? "dark" : "light");

function applyTheme() {
  document.documentElement.dataset.theme = theme();
  for (const id of drawn) draw(id);
}

function chartConfig() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const [ink, dim, line] = [colour("--ink"), colour("--dim"), colour("--line")];
  return {
    background: null,
    font: "system-ui, sans-serif",
    view: { stroke: line },
    axis: { labelColor: dim, titleColor: ink, gridColor: line, domainColor: dim, tickColor: dim, titleFontWeight: 500 },
    legend: { labelColor: ink, titleColor: ink },
  };
}

// --- charts ---

const charts = read("chart-data");
const drawn = new Set();

async function draw(id) {
  drawn.add(id);
  const wide = byId(id).parentElement.className === "wide";
  const spec = { ...charts[id], height: wide ? 300 : 190, config: chartConfig() };
  await vegaEmbed("#" + id, spec, { actions: false, renderer: "svg" });
  byId(id).dataset.drawn = "yes";
}

const near = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (isIntersecting && !drawn.has(target.id)) draw(target.id);
  }
}, { rootMargin: "600px" });

// --- samples ---

const samples = read("sample-data");
const [RUN, TASK, LENGTH, ID, SCORE, TAIL, PREDICTION, REFERENCES, ERROR, FACTS] = Array(10).keys();
let found = samples.rows;
let page = 0;

const outcomes = {
  wrong: (row) => row[ERROR] !== null || (samples.percent[row[TASK]] && row[SCORE] < 1),
  right: (row) => samples.percent[row[TASK]] && row[SCORE] === 1,
  empty: (row) => row[PREDICTION] !== null && row[PREDICTION].trim() === "",
  failed: (row) => row[ERROR] !== null,
};

function filterSamples() {
  const wanted = Object.fromEntries(new FormData(byId("filters")));
  const text = wanted.text.toLowerCase();
  found = samples.rows.filter((row) =>
    (wanted.run === "" || row[RUN] === Number(wanted.run)) &&
    (wanted.task === "" || row[TASK] === Number(wanted.task)) &&
    (wanted.length === "" || row[LENGTH] === wanted.length) &&
    (wanted.outcome === "" || outcomes[wanted.outcome](row)) &&
    (text === "" || searchable(row).includes(text)));
  page = 0;
  showPage();
}

const searchable = (row) => [row[ID], row[TAIL], row[PREDICTION], row[ERROR], ...row[REFERENCES]].join("\n").toLowerCase();

function showPage() {
  const pages = Math.max(1, Math.ceil(found.length / PER_PAGE));
  byId("count").textContent = `${found.length.toLocaleString("en")} found · page ${page + 1} of ${pages.toLocaleString("en")}`;
  byId("previous").disabled = page === 0;
  byId("next").disabled = page + 1 >= pages;
  byId("list").replaceChildren(...found.slice(page * PER_PAGE, (page + 1) * PER_PAGE).map(sampleElement));
}

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function shownScore(row) {
  if (row[SCORE] === null) return "failed";
  return samples.percent[row[TASK]] ? (100 * row[SCORE]).toFixed(0) : row[SCORE].toFixed(3);
}

function sampleElement(row) {
  const made = element("details");
  const summary = element("summary");
  const tone = row[ERROR] !== null || (samples.percent[row[TASK]] && row[SCORE] === 0) ? " worse" : "";
  summary.append(
    element("span", shownScore(row), "score" + tone),
    element("span", `${samples.tasks[row[TASK]]} ${row[LENGTH]} · ${samples.runs[row[RUN]]}`, "where"),
    element("span", row[ERROR] ?? row[PREDICTION] ?? "", "said"));
  made.append(summary);
  made.addEventListener("toggle", () => {
    if (made.open && made.childElementCount === 1) made.append(sampleDetails(row));
  });
  return made;
}

function sampleDetails(row) {
  const list = element("dl");
  const add = (name, value) => list.append(element("dt", name), element("dd", value));
  add("id", row[ID]);
  add("checkpoint", samples.runs[row[RUN]]);
  if (row[ERROR] !== null) add("error", row[ERROR]);
  add("prompt end", row[TAIL]);
  if (row[PREDICTION] !== null) add("prediction", row[PREDICTION]);
  if (row[REFERENCES].length) add("references", row[REFERENCES].join("\n"));
  add("score", shownScore(row));
  add("facts", Object.entries(row[FACTS]).map(([name, value]) => `${name}: ${value}`).join(" · "));
  return list;
}

function fillSelect(name, options) {
  const select = byId("filters").querySelector(`[name="${name}"]`);
  select.replaceChildren(new Option("all", ""), ...options.map(([label, value]) => new Option(label, value)));
}

// --- start ---

for (const heading of document.querySelectorAll("h2")) {
  const link = element("a", heading.textContent);
  link.href = "#" + heading.id;
  byId("nav").append(link);
}
fillSelect("run", samples.runs.map((label, index) => [label, index]));
fillSelect("task", samples.tasks.map((label, index) => [label, index]));
fillSelect("length", [...new Set(samples.rows.map((row) => row[LENGTH]))].map((label) => [label, label]));
byId("filters").addEventListener("input", filterSamples);
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("previous").addEventListener("click", () => { page -= 1; showPage(); });
byId("next").addEventListener("click", () => { page += 1; showPage(); });
byId("theme").addEventListener("click", () => { chosenTheme = theme() === "dark" ? "light" : "dark"; applyTheme(); });
systemDark.addEventListener("change", applyTheme);
applyTheme();
showPage();
for (const chart of document.querySelectorAll(".chart")) near.observe(chart);
document.documentElement.dataset.ready = "yes";
