/* What a browser does by itself: copy the link, save a figure as SVG, enlarge a drawing, search lists, close the settings
   on a phone, refuse files that are too large, and say when what is shown is not of the current controls. */
const copied = async (text) => { // browsers give the clipboard only to pages of this machine and of https
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
};

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.id === "copy") {
    button.textContent = (await copied(location.href)) ? "Copied" : "Copy it from the address bar";
    setTimeout(() => (button.textContent = "Copy link"), 1500);
  }
  if (button.classList.contains("zoom")) {
    const drawing = button.closest("section").querySelector(".network");
    const scale = Number(drawing.style.getPropertyValue("--scale") || 1) * (button.classList.contains("enlarge") ? 1.25 : 0.8);
    drawing.style.setProperty("--scale", Math.min(Math.max(scale, 0.5), 4));
  }
  if (button.classList.contains("svg")) {
    const figure = button.closest("figure").querySelector(".js-plotly-plot");
    Plotly.downloadImage(figure, { format: "svg", filename: "llmviewer", width: figure.clientWidth, height: figure.clientHeight });
  }
});

document.addEventListener(
  "keydown", // letters are for the search of an open list, whatever in it has the focus
  (event) => {
    const list = document.activeElement.closest(".dash-dropdown-content");
    const search = list && list.querySelector(".dash-dropdown-search");
    const letter = event.key.length === 1 && event.key !== " " && !event.ctrlKey && !event.metaKey && !event.altKey;
    if (search && letter && document.activeElement !== search) search.focus();
  },
  true,
);

/* Options of a list in the order in which they are meant by what is searched: its words one after another, as whole words
   before beginnings of words, then the shorter name; without a search, in the order in which they came. */
const near = (label, wanted) => {
  const title = label.split(" \u00b7 ")[0].toLowerCase();
  const words = title.split(/[\s-]+/);
  let [at, far] = [0, 0];
  for (const one of wanted) {
    const next = [(word) => word === one, (word) => word.startsWith(one)].map((is) => words.findIndex((word, i) => i >= at && is(word)));
    const found = next.findIndex((place) => place >= 0);
    far += found < 0 ? 2 : found;
    if (found >= 0) at = next[found] + 1;
  }
  return [far, title.length];
};
const chosen = (operator) => { // on a narrow page what is shown of it stands below
  if (!operator) return window.dash_clientside.no_update;
  if (window.innerWidth < 1180) document.querySelector(".inspector").scrollIntoView();
  return operator;
};
const came = new Map(); // where options stood, by their values
window.dash_clientside = Object.assign({}, window.dash_clientside, {
  llmviewer: {
    point: (clicked) => chosen(clicked && clicked.points[0].customdata),
    row: (clicked) => chosen(clicked && clicked.rowId && clicked.rowId.slice(clicked.rowId.indexOf(" ") + 1)),
    node: (tapped) => chosen(tapped && tapped.parent && tapped.id),
    ranked: (searched, options) => {
      options.forEach((option, place) => came.has(option.value) || came.set(option.value, place));
      const wanted = (searched || "").toLowerCase().split(/[\s-]+/).filter((word) => word);
      const rank = (option) => [...(wanted.length ? near(option.label, wanted) : []), came.get(option.value)];
      const ranked = options.map((option) => [rank(option), option]).sort(([a], [b]) => {
        const place = a.findIndex((part, i) => part !== b[i]);
        return place < 0 ? 0 : a[place] - b[place];
      });
      const same = ranked.every(([, option], place) => option === options[place]);
      return same ? window.dash_clientside.no_update : ranked.map(([, option]) => option);
    },
  },
});

/* dash-cytoscape sets the sensitivity of the wheel to what it is anyway, and cytoscape warns of any that is set. */
if (window.dash_cytoscape?.Cytoscape?.defaultProps) delete window.dash_cytoscape.Cytoscape.defaultProps.wheelSensitivity;

document.addEventListener("submit", (event) => event.preventDefault()); // Enter in a field changes the field

const weigh = (event) => { // what takes files says nothing of those that are too large for it
  const place = event.target.closest("[data-most]");
  const [file] = (event.dataTransfer || event.target).files || [];
  if (!place || !file) return;
  const [most, got] = [Number(place.dataset.most), file.size].map((bytes) => bytes.toLocaleString("en"));
  const large = file.size > Number(place.dataset.most);
  const said = [`${file.name}: must have at most ${most} bytes; got ${got}`, place.dataset.instead].filter((part) => part);
  place.querySelector(".error").textContent = large ? said.join("; ") : "";
};
document.addEventListener("change", weigh, true);
document.addEventListener("drop", weigh, true);

const named = [ // what has no name of its own, and whose name it has
  ["[role=slider]:not([aria-label])", (thumb) => thumb.closest(".control")?.querySelector("label")?.textContent],
  ["input[type=file]:not([aria-label])", (input) => input.closest(".drop")?.textContent],
];
let closed = false;
new MutationObserver(() => {
  for (const [selector, name] of named)
    for (const part of document.querySelectorAll(selector)) part.setAttribute("aria-label", name(part) || "");
  const settings = document.getElementById("settings");
  if (!settings || closed) return;
  closed = true;
  if (window.innerWidth < 900) settings.open = false;
}).observe(document, { childList: true, subtree: true });

/* Results are of the current controls only once every request is answered. Until then they are dimmed, and a bar says why:
   a request takes longer than a moment, or the server refused it, failed or could not be reached. */
const NOTICED_MS = 400; // after which a wait is shown
const asking = "link"; // the part of the page whose request turns controls into a question, on which all results rest
const RESULTS = ["answer", "content", "timeline-result", "inspector", "changes"];
const waiting = new Map(); // requests under way: the results that they bring
const unanswered = new Map(); // by output, what went wrong and what asked for it
const parts = (output) => {
  const names = output.split(/\.{2,3}/).map((part) => part.split(".")[0]);
  return names.includes(asking) ? ["all", ...RESULTS] : RESULTS.filter((name) => names.includes(name));
};
const bar = document.createElement("div");
bar.id = "connection";
bar.hidden = true;
bar.setAttribute("role", "alert");
const report = document.createElement("span");
const again = document.createElement("button");
Object.assign(again, { type: "button", textContent: "Try again", id: "try-again" });
bar.append(report, again);
document.addEventListener("DOMContentLoaded", () => document.body.append(bar));

const showConnection = () => {
  const now = performance.now();
  const late = [...waiting.values()].filter(({ since }) => now - since >= NOTICED_MS);
  const [problem] = [...unanswered.values()];
  const stale = new Set([...unanswered.keys()].flatMap(parts));
  const awaited = new Set(late.flatMap(({ output }) => parts(output)));
  document.body.dataset.stale = [...stale].join(" ");
  document.body.dataset.awaited = [...awaited].join(" ");
  const old = stale.size ? " What is faint below is of earlier settings, not of the controls." : "";
  const said = problem ? problem.said + old : awaited.size ? "Working; what is faint is of earlier settings." : "";
  if (report.textContent !== said) report.textContent = said;
  bar.className = problem ? "failed" : "";
  bar.hidden = !said;
  again.hidden = !problem || late.length > 0;
};

again.addEventListener("click", () => {
  for (const { changed } of [...unanswered.values()]) for (const [id, value] of changed) window.dash_clientside.set_props(id, value);
});

const changedBy = (request) => // properties as they were sent, by the identifiers of their components
  (request.inputs || [])
    .flat()
    .filter(({ id, property }) => typeof id === "string" && (request.changedPropIds || []).includes(`${id}.${property}`))
    .map(({ id, property, value }) => [id, { [property]: value }]);

const refused = async (response) => {
  const text = (response.headers.get("Content-Type") || "").startsWith("text/plain") ? (await response.clone().text()).trim() : "";
  if (response.status < 500) return `The server refused this (status ${response.status})${text ? `: ${text.slice(0, 300)}` : ""}.`;
  return `The server failed (status ${response.status}); its log says why.`;
};

const plainFetch = window.fetch.bind(window);
window.fetch = async (resource, options) => {
  if (!String(resource.url || resource).includes("/_dash-update-component") || !options?.body) return plainFetch(resource, options);
  const request = JSON.parse(options.body);
  const token = {};
  waiting.set(token, { output: request.output, since: performance.now() });
  const timer = setTimeout(showConnection, NOTICED_MS);
  let said = "";
  try {
    const response = await plainFetch(resource, options);
    if (!response.ok) said = await refused(response);
    return response;
  } catch (error) {
    said = "The server cannot be reached.";
    throw error;
  } finally {
    clearTimeout(timer);
    waiting.delete(token);
    if (said) unanswered.set(request.output, { said, changed: changedBy(request) });
    else unanswered.delete(request.output);
    showConnection();
  }
};
