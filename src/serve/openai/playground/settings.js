/** Settings in the fragment of a link, and the inputs that hold them. Keys and documents are not among them. */
const SETTINGS = {
  "tab-generate": {
    prompt: "prompt", model: "model-a", compare: "model-b", max_tokens: "max", temperature: "temperature", top_p: "top-p", seed: "seed",
    stop: "stop-strings",
  },
  "tab-summarize": { model: "summary-model", beam_size: "beam", min_tokens: "min-tokens", max_tokens: "max-tokens" },
};
const MAX_SETTING = 20000;

/** Returns a tab's settings as they appear in a link. */
function readSettings(tab) {
  const settings = new URLSearchParams({ tab: tab.slice("tab-".length) });
  for (const [name, id] of Object.entries(SETTINGS[tab])) settings.set(name, at(id).value);
  if (tab === "tab-summarize") settings.set("cut", at("cut").checked);
  return settings.toString();
}

/** Fills the inputs from settings that are not too long. Others keep their values. Returns the models that the server does not have. */
function applySettings(text) {
  const settings = new URLSearchParams(text);
  const tab = `tab-${settings.get("tab")}`;
  if (!SETTINGS[tab]) return [];
  openTab(tab);
  const missing = [];
  for (const [name, id] of Object.entries(SETTINGS[tab])) {
    const value = settings.get(name);
    if (value === null || value.length > MAX_SETTING) continue;
    const input = at(id);
    const before = input.value;
    input.value = value;
    if (input.tagName !== "SELECT" || input.value === value) continue;
    input.value = before;
    if (value) missing.push(value);
  }
  if (tab === "tab-summarize" && settings.has("cut")) at("cut").checked = settings.get("cut") !== "false";
  showFacts();
  return missing;
}

/** Applies the settings of the page's address. */
function applyAddress() {
  const missing = applySettings(location.hash.slice(1));
  if (missing.length) chosen().showStatus(`The link names a model that this server does not have: ${missing.join(", ")}.`, true);
}

async function copyLink(tab) {
  history.replaceState(null, "", `#${readSettings(tab)}`);
  const what = tab === "tab-generate" ? "the prompt and the settings" : "the settings, not the document";
  const done = await copy(location.href).then(() => `Link copied, with ${what}.`, () => `The address of this page now has ${what}.`);
  chosen().showStatus(done);
}

const HISTORY = "weir-playground-history";
const MAX_RUNS = 20;
const MAX_HISTORY = 200000;

const isText = (value) => typeof value === "string";
const isRun = (run) =>
  run && isText(run.at) && isText(run.settings) && Array.isArray(run.results) && run.results.length > 0
  && run.results.every(({ model, prompt, text }) => [model, prompt, text].every(isText));

/** Returns the stored runs, without entries that another version of the page wrote in another form. */
function readHistory() {
  try {
    return JSON.parse(localStorage.getItem(HISTORY)).filter(isRun).slice(0, MAX_RUNS);
  } catch {
    return [];
  }
}

/** Stores the newest runs that fit, and shows them. */
function writeHistory(runs) {
  let kept = runs.slice(0, MAX_RUNS);
  while (kept.length && JSON.stringify(kept).length > MAX_HISTORY) kept = kept.slice(0, -1);
  try {
    localStorage.setItem(HISTORY, JSON.stringify(kept));
  } catch {
    // A browser may forbid storage: there is no history then.
  }
  showHistory();
}

function remember(settings, panels) {
  const results = panels.map((panel) => ({
    model: panel.model,
    prompt: panel.characters.slice(0, panel.promptTokens).map((character) => character.text).join(""),
    text: panel.characters.slice(panel.promptTokens).map((character) => character.text).join(""),
    speed: Number.isFinite(panel.speed()) ? panel.speed() : null,
  }));
  writeHistory([{ at: new Date().toISOString(), settings, results }, ...readHistory()]);
}

/** Shows the texts of an earlier run. */
function restore(run) {
  applySettings(run.settings);
  at("verdict").hidden = true;
  at("hint").hidden = true;
  at("panels").replaceChildren(...run.results.map(({ model, prompt, text, speed }) => {
    const panel = make("section", "panel");
    panel.setAttribute("aria-label", `Earlier completion by ${model}`);
    const title = make("div", "title");
    title.append(make("h2", "", model), copyButton("Copy", () => prompt + text));
    const box = make("div", "text");
    box.tabIndex = 0;
    box.append(make("span", "prompt", prompt), text);
    const figures = speed === null ? "" : ` It came at ${shown(speed, 0)} characters a second.`;
    panel.append(title, box, make("p", "about", `From the history: the text without its segments and probabilities.${figures}`));
    return panel;
  }));
  generation.showStatus(`Text of ${new Date(run.at).toLocaleString()}.`);
}

function showHistory() {
  const runs = readHistory();
  at("history-count").textContent = runs.length ? `(${runs.length})` : "(empty)";
  at("forget").hidden = !runs.length;
  at("runs").replaceChildren(...runs.map((run, index) => {
    const item = make("li");
    const start = run.results[0].prompt.slice(0, 60).trim() || "empty prompt";
    const names = run.results.map((result) => result.model).join(" and ");
    const open = button("", () => restore(run));
    open.append(make("strong", "", start), make("span", "about", `${names}, ${new Date(run.at).toLocaleString()}`));
    const remove = button("Delete", () => writeHistory(readHistory().filter((_, other) => other !== index)));
    remove.setAttribute("aria-label", `Delete ${start}`);
    item.append(open, remove);
    return item;
  }));
}

