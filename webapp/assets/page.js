/* Browser-side behavior: copy the link, save figures as SVG, zoom the graph, rank search results, close the settings on
   phones, refuse large files, and mark results of earlier settings. */
const copyText = async (text) => { // browsers allow clipboard access only on https and local pages
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
};

const usePasted = (name, text, title) => { // as a dropped file
  const bytes = new TextEncoder().encode(text);
  const contents = `data:text/plain;base64,${btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""))}`;
  const filename = `${title}.${text.startsWith("{") ? "json" : "yaml"}`;
  window.dash_clientside.set_props(`${name}-file`, { filename: [filename], contents: [contents] });
};

document.addEventListener("paste", (event) => { // a config.json in place of a search
  const text = event.clipboardData?.getData("text").trim() || "";
  const searches = event.target.closest?.(".dash-dropdown-content, #model");
  const elsewhere = !event.target.closest?.("input, textarea, [contenteditable]");
  if (!text.startsWith("{") || !(searches || elsewhere)) return;
  event.preventDefault();
  usePasted("model", text, "config");
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.id === "copy") {
    button.textContent = (await copyText(location.href)) ? "Copied" : "Copy the address instead";
    setTimeout(() => (button.textContent = "Copy link"), 1500);
  }
  if (button.classList.contains("paste")) {
    const name = button.dataset.for;
    const area = document.getElementById(`${name}-paste`);
    const text = area.value.trim();
    const title = document.getElementById(`${name}-paste-name`);
    if (text) usePasted(name, text, title.value.trim() || title.placeholder);
  }
  if (button.classList.contains("zoom")) {
    const drawing = button.closest("section").querySelector(".network");
    const before = Number(drawing.style.getPropertyValue("--scale") || 1);
    const fitting = ((window.innerHeight - 40) / drawing.clientHeight) * before; // of the height; the width always fits
    const scale = button.classList.contains("fit") ? Math.min(fitting, 1) : before * (button.classList.contains("enlarge") ? 1.25 : 0.8);
    drawing.style.setProperty("--scale", Math.min(Math.max(scale, 0.02), 4));
    if (button.classList.contains("fit")) drawing.scrollIntoView({ block: "center" });
  }
  if (button.classList.contains("svg")) {
    const figure = button.closest("figure").querySelector(".js-plotly-plot");
    Plotly.downloadImage(figure, { format: "svg", filename: "llmviewer", width: figure.clientWidth, height: figure.clientHeight });
  }
});

/* Letters go to the search of a list, wherever the focus is: the list moves it from its button to an option a moment after it
   opens, and would lose what is typed meanwhile. Nothing has the focus while the list draws that option anew. */
let isSearching = false; // whether the last key was part of a search, as is a space then
const searchList = (event) => {
  const focused = document.activeElement;
  const wrapper = focused === document.body
    ? document.querySelector(".dash-dropdown-wrapper:has(.dash-dropdown-content)")
    : focused.closest(".dash-dropdown-wrapper");
  const button = wrapper?.querySelector("button.dash-dropdown");
  const list = button && window.dash_component_api.getLayout(button.id)?.props;
  if (!list || list.searchable === false) return;
  const [search, text] = [wrapper.querySelector(".dash-dropdown-search"), list.search_value || ""];
  const isLetter = event.key.length === 1 && !event.ctrlKey && !event.metaKey && !event.altKey && (event.key !== " " || isSearching);
  if (event.type === "keydown" && event.key !== "Shift") isSearching = isLetter || (isSearching && event.key === "Backspace");
  if (focused !== button) {
    if (!search || !isSearching || event.type === "keyup") return;
    if (focused !== search) search.focus();
    if (text.length > search.value.length && text.startsWith(search.value)) search.value = text; // not drawn yet
    return;
  }
  if (!isLetter) return;
  event.preventDefault();
  event.stopPropagation(); // or the list adds the letter at keyup, if it has the focus then
  if (event.type === "keyup") return;
  if (button.getAttribute("aria-expanded") !== "true") button.click();
  window.dash_clientside.set_props(button.id, { search_value: text + event.key });
};
for (const kind of ["keydown", "keyup"]) document.addEventListener(kind, searchList, true);

/* Rank of a list option for the words of a search: matches of whole words before prefixes, in the order of the search, then
   shorter titles. Without a search, options keep their original order. */
const searchRank = (label, terms) => {
  const title = label.split(" \u00b7 ")[0].toLowerCase();
  const words = title.split(/[\s-]+/);
  let [start, penalty] = [0, 0];
  for (const term of terms) {
    const places = [(word) => word === term, (word) => word.startsWith(term)].map((matches) => words.findIndex((word, i) => i >= start && matches(word)));
    const quality = places.findIndex((place) => place >= 0); // 0: a whole word, 1: a prefix, -1: no match
    penalty += quality < 0 ? 2 : quality;
    if (quality >= 0) start = places[quality] + 1;
  }
  return [penalty, title.length];
};
const selectOperator = (operator) => { // on narrow pages the inspector is below
  if (!operator) return window.dash_clientside.no_update;
  if (window.innerWidth < 1180) document.querySelector(".inspector").scrollIntoView();
  return operator;
};
const completeLists = new Map(); // options of a list that nothing is searched in, by id

/* Long work in pieces, by the link of their inputs: the server is asked for one after another. A button begins it, or each
   new state. */
const piecesOf = (name, { redrawnEvery, unit, hasButton }) => {
  const pieces = new Map();
  let [currentLink, stoppedLink] = [null, null]; // of the last work, and of the one that a user stopped
  const set = (part, props) => document.getElementById(`${name}-${part}`) && window.dash_clientside.set_props(`${name}-${part}`, props);
  const setBar = (fraction) => {
    const bar = document.getElementById(`${name}-bar`);
    if (bar) bar.value = fraction;
  };
  const show = (link, total) => {
    const collected = pieces.get(link);
    setBar(collected.length / total);
    const done = collected.length >= total;
    if (done || stoppedLink === link || collected.length % redrawnEvery === 0)
      window.dash_clientside.set_props(`${name}-points`, { data: `${link}#${JSON.stringify(collected)}` });
    set("stop", { disabled: done || stoppedLink === link });
    return `${collected.length} of ${total} ${unit}${stoppedLink === link && !done ? ", stopped" : ""}`;
  };
  return {
    [`${name}Start`]: (jobs) => {
      if (!jobs) return window.dash_clientside.no_update;
      const { link, total } = JSON.parse(jobs);
      const waits = hasButton && !window.dash_clientside.callback_context.triggered.some(({ prop_id }) => prop_id.startsWith(`${name}-start.`));
      const collected = pieces.get(link) || [];
      [currentLink, stoppedLink] = [link, waits ? link : null];
      setBar(0); // of earlier work, as the bar of a button stays
      if (waits && !collected.length) {
        setTimeout(() => [set("progress", { children: "" }), set("stop", { disabled: true })], 0);
        return window.dash_clientside.no_update;
      }
      pieces.set(link, collected);
      const asks = collected.length < total && !waits;
      setTimeout(() => [set("progress", { children: collected.length ? show(link, total) : "" }), set("stop", { disabled: !asks })], 0);
      return asks ? `${collected.length}#${link}` : window.dash_clientside.no_update;
    },
    [`${name}Collect`]: (got, jobs) => {
      if (!got || !jobs) return window.dash_clientside.no_update;
      const { link, ...piece } = JSON.parse(got);
      const current = JSON.parse(jobs);
      const collected = pieces.get(link);
      if (collected && !collected.some(({ place }) => place === piece.place)) collected.push(piece);
      if (link !== current.link) return window.dash_clientside.no_update;
      if (collected.length < current.total && stoppedLink !== link)
        window.dash_clientside.set_props(`${name}-ask`, { data: `${collected.length}#${link}` });
      return show(link, current.total);
    },
    [`${name}Stop`]: (clicks) => {
      if (clicks) stoppedLink = currentLink;
      return !!clicks;
    },
  };
};
const serving = piecesOf("serving", { redrawnEvery: 5, unit: "points" }); // a curve
const plan = piecesOf("plan", { redrawnEvery: 4, unit: "searches", hasButton: true });

/* The operator graph: folded blocks, colors, and operators found by a part of their name. */
const foldsText = ({ model }, folded) => [model, ...folded].join("\n");
const textOfSelector = (text) => text.replaceAll("\\", "\\\\").replaceAll('"', '\\"');
let findShown = ""; // the last text that was scrolled to
let blocksShown = ""; // of the drawing that was last scrolled to its middle
const graph = {
  foldBlock: (tapped, shown) => {
    if (!tapped?.fold || !shown) return window.dash_clientside.no_update;
    const blocks = JSON.parse(shown);
    const others = blocks.folded.filter((name) => name !== tapped.fold);
    return foldsText(blocks, others.length < blocks.folded.length ? others : [...others, tapped.fold]);
  },
  foldAll: (folds, unfolds, shown) => {
    if (!shown || !(folds || unfolds)) return window.dash_clientside.no_update;
    const blocks = JSON.parse(shown);
    const all = window.dash_clientside.callback_context.triggered[0].prop_id.startsWith("network-fold.");
    return foldsText(blocks, all ? blocks.blocks : []);
  },
  styleNetwork: (by, find, op, shown, styles, elements) => {
    if (shown !== blocksShown) setTimeout(showMiddle, 0);
    blocksShown = shown;
    const text = (find || "").trim().toLowerCase();
    const nodes = (elements || []).filter(({ classes }) => classes.startsWith("operator")).map(({ data }) => data);
    const found = text ? nodes.filter(({ names }) => names.toLowerCase().includes(text)) : [];
    const selected = op ? [{ selector: `node[op = "${textOfSelector(op)}"]`, style: { "border-width": 4, "border-color": "#e69f00" } }] : [];
    const faded = [{ selector: ".operator", style: { opacity: 0.3 } }];
    const marked = found.map(({ id }) => ({ selector: `node[id = "${textOfSelector(id)}"]`, style: { opacity: 1 } }));
    if (found.length && text !== findShown) showNode(found[0].id);
    findShown = text;
    const folded = found.filter(({ fold }) => fold).length;
    const count = `${found.length - folded} of ${nodes.filter(({ fold }) => !fold).length} operators`;
    return [
      [...JSON.parse(styles)[by || "bound"], ...(text ? [...faded, ...marked] : []), ...selected],
      `by-${by || "bound"}`,
      text ? count + (folded ? `, and in ${folded} folded ${folded > 1 ? "blocks" : "block"}` : "") : "",
    ];
  },
};
const showMiddle = () => { // of a drawing that is wider than its place
  const scroll = document.getElementById("network-drawing");
  if (scroll) scroll.scrollLeft = (scroll.scrollWidth - scroll.clientWidth) / 2;
};
const showNode = (id) => {
  const place = document.getElementById("network");
  const node = place?._cyreg?.cy?.getElementById(id);
  if (!node?.length) return;
  const at = node.renderedPosition();
  const box = place.getBoundingClientRect();
  window.scrollTo({ top: window.scrollY + box.top + at.y - window.innerHeight / 2 });
  place.closest(".scroll").scrollTo({ left: at.x - place.closest(".scroll").clientWidth / 2 });
};
window.dash_clientside = Object.assign({}, window.dash_clientside, {
  llmviewer: {
    ...serving,
    ...plan,
    ...graph,
    point: (clicked) => selectOperator(clicked && clicked.points[0].customdata),
    row: (clicked) => selectOperator(clicked && clicked.rowId && clicked.rowId.slice(clicked.rowId.indexOf(" ") + 1)),
    node: (tapped) => selectOperator(tapped && tapped.op),
    /* Options that a search finds, best first, and those that are chosen, which the list has to know. The list indexes all
       substrings of its options anew whenever they change: only the complete list has the names that a search is compared
       with, where the list ignores them. */
    foundOptions: (searched, options, chosen, id) => {
      if (options.some(({ names }) => names)) completeLists.set(id, options);
      const complete = completeLists.get(id);
      const text = (searched || "").toLowerCase();
      const parts = text.split(/\s+/).filter((part) => part);
      if (!parts.length) return options === complete ? window.dash_clientside.no_update : complete;
      const terms = text.split(/[\s-]+/).filter((word) => word);
      const matches = ({ label, value, names = "" }) => parts.every((part) => `${label} ${value} ${names}`.toLowerCase().includes(part));
      const found = complete.filter(matches).map((option) => [searchRank(option.label, terms), option]); // sorted stably
      found.sort(([[penalty, length]], [[otherPenalty, otherLength]]) => penalty - otherPenalty || length - otherLength);
      const others = complete.filter((option) => !matches(option) && [chosen].flat().includes(option.value));
      return [
        ...found.map(([, { label, value }]) => ({ label, value, search: searched })),
        ...others.map(({ label, value }) => ({ label, value })),
      ];
    },
  },
});

/* Bundles of grids and graphs are loaded when one of them comes near the window, or once the first figure had time. */
const PREFETCH_DELAY_MS = 1000;
const loadScript = (url) =>
  new Promise((resolve, reject) => {
    const script = Object.assign(document.createElement("script"), { src: url, onload: resolve, onerror: reject });
    document.head.append(script);
  });
const loading = new Map(); // promises of components, by namespace
const loadComponent = (namespace, { component, url }, standIn) => {
  if (!loading.has(namespace))
    loading.set(namespace, loadScript(url).then(() => {
      const bundle = window[namespace];
      const loaded = bundle[component];
      if (namespace === "dash_cytoscape" && loaded.defaultProps) delete loaded.defaultProps.wheelSensitivity; // or cytoscape warns
      window[namespace] = { ...bundle, [component]: standIn }; // components on the page keep their type
      return loaded;
    }));
  return loading.get(namespace);
};
for (const [namespace, bundle] of Object.entries(window.llmviewerBundles || {})) {
  const standIn = (props) => {
    const [loaded, setLoaded] = React.useState({});
    const place = React.useRef(null);
    React.useEffect(() => {
      if (loaded.component || !place.current) return;
      const load = () => {
        observer.disconnect();
        loadComponent(namespace, bundle, standIn).then((component) => setLoaded({ component }));
      };
      const observer = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && load(), { rootMargin: "400px" });
      observer.observe(place.current);
      const folded = () => place.current.closest("details:not([open])");
      const later = setTimeout(() => place.current?.offsetParent && !folded() && load(), PREFETCH_DELAY_MS);
      return () => [observer.disconnect(), clearTimeout(later)];
    }, []);
    if (loaded.component) return React.createElement(loaded.component, props);
    return React.createElement("div", { id: props.id, className: props.className, style: { minHeight: 40, ...props.style }, ref: place });
  };
  standIn.dashRenderType = namespace === "dash_ag_grid";
  window[namespace] = { [bundle.component]: standIn };
}

document.addEventListener("submit", (event) => event.preventDefault()); // Enter in a field only changes the field

const applyNumber = ({ type, key, target: input }) => { // dcc.Input compares a number with that of an earlier event, and may ignore it
  if (!(input instanceof HTMLInputElement) || input.type !== "number" || !input.id || (type === "keyup" && key !== "Enter")) return;
  setTimeout(() => { // after its own handlers
    const layout = window.dash_component_api.getLayout(input.id);
    if (!input.isConnected || !layout || !input.checkValidity()) return;
    const value = input.value === "" ? null : Number(input.value);
    if ((layout.props.value ?? null) !== value) window.dash_clientside.set_props(input.id, { value });
  }, 0);
};
document.addEventListener("keyup", applyNumber);
document.addEventListener("focusout", applyNumber);

const checkFileSize = (event) => { // dcc.Upload ignores files that are too large without an error
  const place = event.target.closest("[data-most]");
  const [file] = (event.dataTransfer || event.target).files || [];
  if (!place || !file) return;
  const [limit, size] = [Number(place.dataset.most), file.size].map((bytes) => bytes.toLocaleString("en"));
  const large = file.size > Number(place.dataset.most);
  const errors = [`${file.name}: must have at most ${limit} bytes; got ${size}`, place.dataset.instead].filter((part) => part);
  place.querySelector(".error").textContent = large ? errors.join("; ") : "";
};
document.addEventListener("change", checkFileSize, true);
document.addEventListener("drop", checkFileSize, true);

const ariaLabels = [ // components without a label, and the source of their label
  ["[role=slider]:not([aria-label])", (thumb) => thumb.closest(".control")?.querySelector("label")?.textContent],
  ["input[type=file]:not([aria-label])", (input) => input.closest(".drop")?.textContent],
];
const labelOf = (part) => part.closest(".control, #chosen, .tabs, .parts > div, details")?.querySelector("label[for], summary")?.textContent || "View";
const repairRoles = () => { // of Dash components, in which a screen reader would find a list with inputs, or unnamed fields
  for (const group of document.querySelectorAll(".dash-radioitems[role=listbox]")) {
    group.setAttribute("role", "radiogroup");
    group.setAttribute("aria-label", group.closest(".tabs") ? "View" : labelOf(group));
  }
  for (const option of document.querySelectorAll("[role=radiogroup] > :is([role=option], [aria-selected])")) {
    option.removeAttribute("role");
    option.removeAttribute("aria-selected");
  }
  for (const target of document.querySelectorAll(".dash-dropdown-focus-target[aria-hidden]")) {
    target.removeAttribute("aria-hidden");
    target.setAttribute("aria-label", labelOf(target));
  }
  const several = document.querySelector("#on[aria-labelledby^='on-value-count']");
  several?.removeAttribute("aria-labelledby"); // its label names it; the devices, of which some may be cut off, describe it
  several?.setAttribute("aria-describedby", "on-value on-value-count");
};
let closed = false;
let tabShown = "";
new MutationObserver(() => {
  repairRoles();
  const tab = document.querySelector("#tab input:checked");
  if (tab && tab.value !== tabShown) { // in a row that scrolls
    tabShown = tab.value;
    const label = tab.closest("label");
    const row = label?.parentElement;
    if (row) row.scrollLeft = label.offsetLeft + label.offsetWidth / 2 - row.clientWidth / 2;
  }
  for (const [selector, name] of ariaLabels)
    for (const part of document.querySelectorAll(selector)) part.setAttribute("aria-label", name(part) || "");
  const settings = document.getElementById("settings");
  if (!settings || closed) return;
  closed = true;
  if (window.innerWidth < 900) settings.open = false;
}).observe(document, { childList: true, subtree: true, attributeFilter: ["aria-selected"] });

/* Results belong to the current controls only once every request is answered. Until then they are faded, and a bar shows
   the reason: a slow request, or a server that refused it, failed or could not be reached. */
const NOTICE_DELAY_MS = 400; // before a pending request is shown
const STATE_OUTPUT = "link"; // output of the request that turns controls into the page state, which all results need
const RESULTS = ["answer", "content", "timeline-result", "inspector", "changes"];
const pending = new Map(); // requests by token, with their outputs
const failed = new Map(); // errors and changed properties of failed requests, by output
const resultsOf = (output) => {
  const names = output.split(/\.{2,3}/).map((part) => part.split(".")[0]);
  return names.includes(STATE_OUTPUT) ? ["all", ...RESULTS] : RESULTS.filter((name) => names.includes(name));
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
  const late = [...pending.values()].filter(({ since }) => now - since >= NOTICE_DELAY_MS);
  const [problem] = [...failed.values()];
  const stale = new Set([...failed.keys()].flatMap(resultsOf));
  const awaited = new Set(late.flatMap(({ output }) => resultsOf(output)));
  document.body.dataset.stale = [...stale].join(" ");
  document.body.dataset.awaited = [...awaited].join(" ");
  const old = stale.size ? " Faded results are of earlier settings." : "";
  const text = problem ? problem.error + old : awaited.size ? "Working. Faded results are of earlier settings." : "";
  if (report.textContent !== text) report.textContent = text;
  bar.className = problem ? "failed" : "";
  bar.hidden = !text;
  again.hidden = !problem || late.length > 0;
};

again.addEventListener("click", () => {
  for (const { changed } of [...failed.values()]) for (const [id, value] of changed) window.dash_clientside.set_props(id, value);
});

const changedProperties = (request) => // values that triggered a request, by component id
  (request.inputs || [])
    .flat()
    .filter(({ id, property }) => typeof id === "string" && (request.changedPropIds || []).includes(`${id}.${property}`))
    .map(({ id, property, value }) => [id, { [property]: value }]);

const errorOf = async (response) => {
  const text = (response.headers.get("Content-Type") || "").startsWith("text/plain") ? (await response.clone().text()).trim() : "";
  if (response.status < 500) return `The server refused this (status ${response.status})${text ? `: ${text.slice(0, 300)}` : ""}.`;
  return `Server error (status ${response.status}); details are in its log.`;
};

const plainFetch = window.fetch.bind(window);
window.fetch = async (resource, options) => {
  if (!String(resource.url || resource).includes("/_dash-update-component") || !options?.body) return plainFetch(resource, options);
  const request = JSON.parse(options.body);
  const token = {};
  pending.set(token, { output: request.output, since: performance.now() });
  const timer = setTimeout(showConnection, NOTICE_DELAY_MS);
  let error = "";
  try {
    const response = await plainFetch(resource, options);
    if (!response.ok) error = await errorOf(response);
    return response;
  } catch (exception) {
    error = "The server cannot be reached.";
    throw exception;
  } finally {
    clearTimeout(timer);
    pending.delete(token);
    if (error) failed.set(request.output, { error, changed: changedProperties(request) });
    else failed.delete(request.output);
    showConnection();
  }
};
