/* What a browser does by itself: copy the link, save a figure as SVG, search lists, close the settings on a phone. */
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

document.addEventListener("submit", (event) => event.preventDefault()); // Enter in a field changes the field

new MutationObserver((_, observer) => {
  const settings = document.getElementById("settings");
  if (!settings) return;
  observer.disconnect();
  if (window.innerWidth < 900) settings.open = false;
}).observe(document, { childList: true, subtree: true });
