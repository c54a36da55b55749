/** Settings in the fragment of a link, and the inputs that hold them. Keys and documents are not among them. */
const SETTINGS = {
  "tab-race": {
    prompt: "prompt", model: "model-a", compare: "model-b", max_tokens: "max", temperature: "temperature", top_p: "top-p", seed: "seed",
    stop: "stop-strings", form: "text-form",
  },
  "tab-summarize": {
    model: "summary-model", mode: "mode", sentences: "sentences", long_documents: "long-documents", beam_size: "beam", min_tokens: "min-tokens", max_tokens: "max-tokens",
  },
  "tab-compress": { model: "compress-model" },
  "tab-edit": { model: "edit-model", until: "until" },
};
/** Content of each tab's link, for the status message. */
const LINKED = {
  "tab-race": "the prompt and the settings", "tab-summarize": "the settings, not the document", "tab-edit": "the settings, not the text",
};
/** Settings that can be long, as a sentence names them. */
const LONG_SETTINGS = { prompt: "prompt has", stop: "stop strings have" };
const MAX_SETTING = 20000;
/** Settings that name a model. */
const MODEL_SETTINGS = ["model", "compare"];

/** Describes the settings that are too long for a link; empty if there are none. */
const tooLong = (settings, owner) =>
  Object.entries(LONG_SETTINGS)
    .filter(([name]) => (settings.get(name) || "").length > MAX_SETTING)
    .map(([name, words]) => `${owner} ${words} ${shown(settings.get(name).length, 0)} characters: links hold at most ${shown(MAX_SETTING, 0)}.`)
    .join(" ");

/** Returns a tab's settings as they appear in a link. */
function readSettings(tab) {
  const settings = new URLSearchParams({ tab: tab.slice("tab-".length) });
  for (const [name, id] of Object.entries(SETTINGS[tab])) settings.set(name, at(id).value);
  return settings;
}

/** Fills the inputs from settings that are not too long. Others keep their values. Returns a sentence for each model that the server does not have. */
function applySettings(settings) {
  const tab = `tab-${settings.get("tab")}`.replace("generate", "race");
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
    if (!value || !MODEL_SETTINGS.includes(name)) continue;
    missing.push(`This server does not have the model ${value}${before ? `: the page uses ${before}` : ""}.`);
  }
  showFacts();
  return missing;
}

/** The fragment of the link that opened the page, until its settings are applied. */
let link = location.hash;

/** Applies the link's settings once: later edits stay, also if the page's address still has the settings. */
function applyLink() {
  const settings = new URLSearchParams(link.slice(1));
  link = "";
  const text = [...applySettings(settings), tooLong(settings, "The link's")].filter(Boolean).join(" ");
  // Not in the status of a tab: the editor overwrites its own when it connects.
  at("link-problem").textContent = text;
  at("link-problem").hidden = !text;
}

async function copyLink(tab) {
  const settings = readSettings(tab);
  const problem = tooLong(settings, "The");
  if (problem) {
    chosen().showStatus(problem, true);
    return;
  }
  history.replaceState(null, "", `#${settings}`);
  const what = LINKED[tab];
  const done = await copy(location.href).then(() => `Link copied, with ${what}.`, () => `The address of this page now has ${what}.`);
  chosen().showStatus(done);
}

const HISTORY = "weir-playground-history";
const MAX_RUNS = 20;
/** Maximum characters of all stored runs, and of one: a long run must not replace all others. */
const MAX_HISTORY = 200000;
const MAX_RUN = MAX_HISTORY / 4;

const isText = (value) => typeof value === "string";
const isRun = (run) =>
  run && isText(run.at) && isText(run.settings) && Array.isArray(run.results) && run.results.length > 0
  && run.results.every(({ model, prompt, text }) => [model, prompt, text].every(isText));

/** Returns the stored runs, without entries that another version of the page wrote in another form. */
function readHistory() {
  try {
    return JSON.parse(stored(HISTORY)).filter(isRun).slice(0, MAX_RUNS);
  } catch {
    return [];
  }
}

/** Stores the newest runs that fit, and shows them. */
function writeHistory(runs) {
  let kept = runs.slice(0, MAX_RUNS);
  while (kept.length && JSON.stringify(kept).length > MAX_HISTORY) kept = kept.slice(0, -1);
  store(HISTORY, JSON.stringify(kept));
  showHistory();
}

/** Stores a finished run. Returns a sentence if the run is too long for that, and otherwise an empty text. */
function remember(settings, views) {
  const results = views.map((view) => ({
    model: view.model,
    prompt: view.characters.slice(0, view.promptTokens).map((character) => character.text).join(""),
    text: view.characters.slice(view.promptTokens).map((character) => character.text).join(""),
    speed: Number.isFinite(view.speed()) ? view.speed() : null,
  }));
  // The results have the prompt.
  settings.delete("prompt");
  const run = { at: new Date().toISOString(), settings: settings.toString(), results };
  const length = JSON.stringify(run).length;
  if (length > MAX_RUN) return ` The history does not keep this run of ${shown(length, 0)} characters: the limit is ${shown(MAX_RUN, 0)}.`;
  writeHistory([run, ...readHistory()]);
  return "";
}

/** Shows the texts of an earlier run, and its settings. */
function restore(run) {
  if (generation.stopping) {
    generation.showStatus("Stop the run first.", true);
    return;
  }
  const missing = applySettings(new URLSearchParams(run.settings));
  at("prompt").value = run.results[0].prompt;
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
  generation.showStatus([`Text of ${new Date(run.at).toLocaleString()}.`, ...missing].join(" "));
}

function showHistory() {
  const runs = readHistory();
  at("history-count").textContent = runs.length ? `(${runs.length})` : "(empty)";
  at("forget").hidden = !runs.length;
  at("runs").replaceChildren(...runs.map((run) => {
    const item = make("li");
    const start = run.results[0].prompt.slice(0, 60).trim() || "empty prompt";
    const names = run.results.map((result) => result.model).join(" and ");
    const open = button("", () => restore(run));
    open.append(make("strong", "", start), make("span", "about", `${names}, ${new Date(run.at).toLocaleString()}`));
    // Another tab may have changed the order.
    const isOther = (other) => JSON.stringify(other) !== JSON.stringify(run);
    const remove = button("Delete", () => writeHistory(readHistory().filter(isOther)));
    remove.setAttribute("aria-label", `Delete ${start}`);
    item.append(open, remove);
    return item;
  }));
}

